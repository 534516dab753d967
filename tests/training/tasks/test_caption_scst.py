"""Training on the score itself: rewards that know the end of a caption, and a run that gains."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from miniatures import write_caption_data
from torch import nn

from visattn.data.captions.batch import CaptionSample, caption_batch
from visattn.data.captions.vocabulary import split_words
from visattn.functional.captioning.sampling import Samples
from visattn.metrics.captioning.cider import rarity_of
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioner import END, START
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.training.data.captions import CaptionDataModule
from visattn.training.tasks.caption_scst import SILENT, SCSTTask, _grams
from visattn.training.tasks.captioning import CaptioningTask

# Dropout is left out on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:Found .* in eval mode")
REFERENCES = {
    "mat": ("a dog on a mat", "the dog lies on a mat"),
    "car": ("two red cars", "cars on a road"),
}


def build(words: list[str], dropout: float = 0.0) -> ShowAttendTell:
    encoder = TimmEncoder("test_resnet", size=(64, 64))
    return ShowAttendTell(
        words, encoder, word_width=7, hidden=11, attention=5, projection=13, dropout=dropout
    )


def task(**settings: Any) -> SCSTTask:
    said = sorted({word for told in REFERENCES.values() for one in told for word in one.split()})
    words = ["<pad>", "<start>", "<end>", "<unknown>", *said]
    torch.manual_seed(0)
    made = SCSTTask(build, {"words": words}, **settings)
    made.reference_ngrams = {
        name: [_grams(split_words(one)) for one in told] for name, told in REFERENCES.items()
    }
    made.rarity = rarity_of(list(made.reference_ngrams.values()))
    return made


def drawn(made: SCSTTask, *captions: str) -> Samples:
    """Captions that end in a full stop have said the stop word; the others were cut."""
    rows = [
        [made.model.words.index(word) for word in caption.rstrip(".").split()]
        + [END] * caption.endswith(".")
        for caption in captions
    ]
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[END] * (longest - len(row))] for row in rows])
    return Samples(tokens[None], torch.tensor([[len(row) for row in rows]]))


def batch_of(made: SCSTTask, *names: str) -> Any:
    from visattn.data.captions.vocabulary import Vocabulary

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
    return caption_batch(samples, Vocabulary(made.model.words))


def test_a_caption_that_breaks_off_is_worth_less() -> None:
    made = task()
    told = drawn(made, "a dog on a mat.", "a dog on a mat", "a dog on a.", "two cars.")
    whole, cut, broken, other = made.rewards(told, batch_of(made, "mat"))[0].tolist()
    assert whole > cut > other
    assert whole > broken > other


def test_words_are_as_likely_as_the_model_says_step_by_step() -> None:
    made = task(samples=3).eval()
    told = drawn(made, "a dog on a mat.", "two red.", "cars.")
    seen = made.model.encoder(batch_of(made, "mat").images)
    spoken, owners = made._spoken(seen, told)
    for sample, (tokens, length) in enumerate(
        zip(told.tokens[0], told.lengths[0].tolist(), strict=True)
    ):
        state, wanted, word = made.model.start(seen), [], START
        for token in tokens[:length].tolist():
            logits, state, _ = made.model.step(state, torch.tensor([[word]]))
            logits[..., list(SILENT)] = -torch.inf
            wanted.append(float(logits.log_softmax(-1)[0, 0, token].detach()))
            word = token
        mine = spoken[owners == sample].tolist()
        assert mine == pytest.approx(wanted, abs=1e-5)


def test_nothing_is_dropped_out_and_the_rest_trains() -> None:
    words = list(task().model.words)
    made = SCSTTask(lambda told: build(told, dropout=0.5), {"words": words}).train()
    made.on_train_epoch_start()
    drops = [module for module in made.model.modules() if isinstance(module, nn.Dropout)]
    assert drops
    assert not any(module.training for module in drops)
    assert made.model.training


@pytest.mark.parametrize("wrong", [{"samples": 1}, {"max_length": 0}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 2"):
        task(**wrong)


class Rewards(Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self.seen.append(float(trainer.callback_metrics["train/reward"]))


def test_a_run_raises_the_reward(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path, photos=9)
    data = CaptionDataModule(
        str(paths.captions),
        str(paths.photos),
        train=str(paths.train),
        validation=str(paths.validation),
        min_count=1,
        batch=5,
    )
    torch.manual_seed(0)
    rewards = Rewards()
    made = SCSTTask(
        build,
        data.data_info,
        samples=7,
        max_length=9,
        optimizer=lambda groups: torch.optim.Adam(groups, lr=0.02),
        warm=0,
        hold=1.0,
    )
    assert isinstance(made, CaptioningTask)
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
    trainer.fit(made, data)
    assert sum(rewards.seen[-10:]) > 1.2 * sum(rewards.seen[:10])
