"""Self-critical sequence training: rewards, log-probabilities, and a run that raises the reward."""

from pathlib import Path
from typing import Any

import pytest
import torch
from caption_data import write_caption_data
from lightning import Callback, Trainer
from torch import nn

from visattn.data.captions.batch import CaptionSample, collate_captions, split_words
from visattn.data.captions.files import CaptionFile
from visattn.functional.captions import SampledCaptions
from visattn.metrics.ngrams import idf_table, ngram_counts, weighted_ngrams
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.results.kinds import END, START
from visattn.training.captioning.data import CaptionData
from visattn.training.captioning.scst import BANNED_TOKENS, SCSTTask
from visattn.training.captioning.task import CaptioningTask
from visattn.training.optim import OptimConfig

# SCSTTask disables dropout.
pytestmark = pytest.mark.filterwarnings("ignore:Found .* in eval mode")
REFERENCES = {
    "mat": ("a dog on a mat", "the dog lies on a mat"),
    "car": ("two red cars", "cars on a road"),
}


def build(words: list[str], dropout: float = 0.0, attention: str = "soft") -> ShowAttendTell:
    encoder = TimmEncoder("test_resnet", img_size=(64, 64))
    return ShowAttendTell(
        words,
        encoder,
        embed_dim=7,
        hidden_size=11,
        attention_dim=5,
        feature_proj_dim=13,
        dropout=dropout,
        attention=attention,  # type: ignore[arg-type]
    )


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
    from visattn.data.captions.batch import Vocabulary

    random = torch.Generator().manual_seed(3)
    samples = [
        CaptionSample(
            name,
            torch.randint(0, 256, (3, 64, 64), generator=random, dtype=torch.uint8),
            REFERENCES[name],
            references=REFERENCES[name],
        )
        for name in names
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


def test_dropout_is_disabled_in_training_mode() -> None:
    words = list(build_task().model.words)
    task = SCSTTask(lambda vocabulary: build(vocabulary, dropout=0.5), {"words": words}).train()
    task.on_train_epoch_start()
    drops = [module for module in task.model.modules() if isinstance(module, nn.Dropout)]
    assert drops
    assert not any(module.training for module in drops)
    assert task.model.training


class Rewards(Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.values.append(float(trainer.callback_metrics["train/reward"]))


def test_training_raises_the_reward(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path, photos=9)
    files = CaptionFile(
        str(paths.captions), str(paths.photos), train=str(paths.train), val=str(paths.validation)
    )
    data = CaptionData(files, min_word_freq=1, batch_size=5)
    torch.manual_seed(0)
    rewards = Rewards()
    task = SCSTTask(
        build,
        data.data_info,
        num_samples=7,
        max_length=9,
        optim=OptimConfig(lambda groups: torch.optim.Adam(groups, lr=0.02), decay_start=1.0),
    )
    assert isinstance(task, CaptioningTask)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=60,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
        default_root_dir=str(tmp_path),
        callbacks=[rewards],
    )
    trainer.fit(task, data)
    assert sum(rewards.values[-10:]) > 1.2 * sum(rewards.values[:10])
