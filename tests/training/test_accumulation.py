"""Accumulated batches of captions give the gradient of one batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from visattn.data.captions.batch import CaptionBatch, CaptionSample, Vocabulary, collate_captions
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.training.captioning.task import CaptioningTask
from visattn.training.optim import OptimConfig

WORDS = [f"word{index}" for index in range(20)]


class Batches(Dataset[CaptionBatch]):
    def __init__(self, batches: list[CaptionBatch]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> CaptionBatch:
        return self.batches[index]


def samples(count: int) -> list[CaptionSample]:
    """Captions of 1 to 20 words; the second half is longer than the first."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 24, 24), generator=random, dtype=torch.uint8)
    lengths = [1 + 19 * index // (count - 1) for index in range(count)]
    return [
        CaptionSample(str(index), image, (" ".join(WORDS[:length]),))
        for index, (image, length) in enumerate(zip(images, lengths, strict=True))
    ]


def trained_weights(sizes: list[int], folder: Path, **settings: Any) -> list[Tensor]:
    """Return the weights after one step over batches of these sizes."""
    vocabulary, every = Vocabulary.from_captions([" ".join(WORDS)]), samples(sum(sizes))
    batches = [
        collate_captions(every[sum(sizes[:index]) :][:size], vocabulary)
        for index, size in enumerate(sizes)
    ]

    def build(words: list[str]) -> ShowAttendTell:
        torch.manual_seed(0)
        encoder = SmallEncoder((24, 24), channels=8).eval()  # statistics of no batch
        return ShowAttendTell(
            words, encoder, embed_dim=7, hidden_size=11, attention_dim=5, dropout=0.0
        )

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1.0)

    task = CaptioningTask(
        build, {"words": list(vocabulary.words)}, optim=OptimConfig(sgd), **settings
    ).double()
    Trainer(
        accelerator="cpu",
        max_steps=1,
        accumulate_grad_batches=len(batches),
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    ).fit(task, DataLoader(Batches(batches), batch_size=None))
    return [weight.detach() for weight in task.model.parameters()]


@pytest.mark.filterwarnings(
    "ignore:.*no `val_dataloader`", "ignore:.*in eval mode", "ignore:.*workers"
)
@pytest.mark.parametrize("reduction", ["mean", "paper"])
def test_accumulated_batches_equal_one_batch(reduction: str, tmp_path: Path) -> None:
    whole = trained_weights([64], tmp_path, reduction=reduction)
    for sizes in ([32, 32], [40, 20, 4]):
        parts = trained_weights(sizes, tmp_path, reduction=reduction)
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)
