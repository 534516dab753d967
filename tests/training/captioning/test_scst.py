"""Self-critical sequence training: rewards, log-probabilities, and the gradient of both."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from caption_data import write_caption_data
from torch import nn

from visattn.data.captions.batch import CaptionSample, Vocabulary, collate_captions, split_words
from visattn.data.captions.files import CaptionFile
from visattn.functional.captions import SampledCaptions
from visattn.metrics.ngrams import idf_table, ngram_counts, weighted_ngrams
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.config import model_config
from visattn.results.kinds import END, START
from visattn.training.captioning import scst
from visattn.training.captioning.data import CaptionData
from visattn.training.captioning.scst import BANNED_TOKENS, SCSTTask

REFERENCES = {
    "mat": ("a dog on a mat", "the dog lies on a mat"),
    "car": ("two red cars", "cars on a road"),
}


def build(words: list[str], dropout: float = 0.0) -> ShowAttendTell:
    encoder = TimmEncoder("test_resnet", img_size=(64, 64))
    sizes: Any = {"embed_dim": 7, "hidden_size": 11, "attention_dim": 5, "feature_proj_dim": 13}
    return ShowAttendTell(words, encoder, **sizes, dropout=dropout)


def build_task(**settings: Any) -> SCSTTask:
    texts = [text for texts in REFERENCES.values() for text in texts]
    vocabulary = sorted({word for text in texts for word in text.split()})
    words = ["<pad>", "<start>", "<end>", "<unknown>", *vocabulary]
    torch.manual_seed(0)
    task = SCSTTask(build, {"words": words}, **settings)
    ngrams = {
        name: [ngram_counts([*split_words(text), "<end>"]) for text in texts]
        for name, texts in REFERENCES.items()
    }
    task.idf_table = idf = idf_table(list(ngrams.values()))
    task.references = {
        name: [weighted_ngrams(each, idf) for each in image] for name, image in ngrams.items()
    }
    return task


def samples_of(task: SCSTTask, *captions: str) -> SampledCaptions:
    """Captions with a full stop have the end token; the others were truncated."""
    rows = [
        [task.model.words.index(word) for word in caption.rstrip(".").split()]
        + [END] * caption.endswith(".")
        for caption in captions
    ]
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[END] * (longest - len(row))] for row in rows])
    return SampledCaptions(tokens[None], torch.tensor([[len(row) for row in rows]]))


def batch_of(task: SCSTTask, *names: str) -> Any:
    random = torch.Generator().manual_seed(3)
    images = torch.randint(256, (len(names), 3, 64, 64), generator=random, dtype=torch.uint8)
    samples = [
        CaptionSample(name, image, REFERENCES[name], references=REFERENCES[name])
        for name, image in zip(names, images, strict=True)
    ]
    return collate_captions(samples, Vocabulary(task.model.words))


def test_incomplete_captions_have_a_lower_reward() -> None:
    task = build_task()
    samples = samples_of(task, "a dog on a mat.", "a dog on a mat", "a dog on a.", "two cars.")
    whole, cut, broken, other = task.rewards(samples, batch_of(task, "mat"))[0].tolist()
    assert whole > cut > other
    assert whole > broken > other


def test_log_probs_match_the_decoder_step_by_step() -> None:
    task = build_task(num_samples=3).eval()
    samples = samples_of(task, "a dog on a mat.", "two red.", "cars.")
    features = task.model.encoder(batch_of(task, "mat").images)
    log_probs, owners = task._log_probs(features, samples)
    for sample, (tokens, length) in enumerate(
        zip(samples.tokens[0], samples.lengths[0].tolist(), strict=True)
    ):
        state, expected, word = task.model.start(features), [], START
        for token in tokens[:length].tolist():
            logits, state, _ = task.model.step(state, torch.tensor([[word]]))
            logits[..., list(BANNED_TOKENS)] = -torch.inf
            expected.append(float(logits.log_softmax(-1)[0, 0, token].detach()))
            word = token
        actual = log_probs[owners == sample].tolist()
        assert actual == pytest.approx(expected, abs=1e-5)


def test_dropout_is_disabled_and_kept_in_the_config() -> None:
    words = list(build_task().model.words)
    task = SCSTTask(lambda vocabulary: build(vocabulary, dropout=0.5), {"words": words}).train()
    drops = [module for module in task.model.modules() if isinstance(module, nn.Dropout)]
    assert [drop.p for drop in drops] == [0.0] * len(drops) != []
    assert model_config(task.model)["arguments"]["dropout"] == 0.5


def test_the_frequencies_are_those_of_the_training_photos(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path, photos=9)
    files: Any = {"train": str(paths.train), "val": str(paths.validation)}
    data = CaptionData(CaptionFile(str(paths.captions), str(paths.photos), **files))
    task = SCSTTask(build, data.data_info)
    task.data = data
    task.on_fit_start()
    assert list(task.references) == paths.train.read_text().split()
    assert task.idf_table.unseen_weight == pytest.approx(math.log(len(task.references)))
    task.data = None
    with pytest.raises(TypeError, match="needs photos with reference captions"):
        task.on_fit_start()


def test_the_loss_is_that_of_reinforce_with_the_reward_of_the_other_caption() -> None:
    task = build_task(num_samples=2)
    task.log = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    batch = batch_of(task, "mat")
    samples = samples_of(task, "a dog on a mat.", "two cars.")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scst, "sample_captions", lambda *_, **__: samples)
        patch.setattr(scst, "step_generator", lambda _: SimpleNamespace(rand=print))
        loss = task.training_step(batch, 0)
    log_probs, owners = task._log_probs(task.model.encoder(batch.images), samples)
    first, second = task.rewards(samples, batch)[0].tolist()
    advantages = torch.tensor([first - second, second - first])
    torch.testing.assert_close(loss, -(log_probs * advantages[owners]).mean())
    assert loss.requires_grad
    assert first > second
