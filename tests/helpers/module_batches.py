"""Batches of data modules, compared with those of the same photos in loose files."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from visattn.data.captions.batch import CaptionBatch
from visattn.models.base import ImageEncoder, SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.resnet import AttentionResNet
from visattn.training.captioning.task import CaptioningTask
from visattn.training.classification.task import ClassificationTask
from visattn.training.data_module import DataModule


def set_up(
    data: DataModule, encoder: ImageEncoder | None = None, *, rank: int = 0, world: int = 1,
    stage: str = "fit",
) -> Any:  # fmt: skip
    """Set up data with the input specification of a matching task, for one of the processes."""
    encoder = encoder or SmallEncoder(img_size=(24, 24), channels=8)
    info = data.data_info
    if "words" in info:
        task: Any = CaptioningTask(
            lambda words: ShowAttendTell(
                words, encoder, embed_dim=7, hidden_size=11, attention_dim=5
            ),
            info,
        )
    else:
        task = ClassificationTask(
            lambda classes: AttentionResNet(classes, depth=8, stem_width=4, img_size=(24, 24)), info
        )
    data.input_spec = task.input_spec
    data.trainer = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        global_rank=rank,
        world_size=world,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    data.setup(stage)
    return data


def parts(batch: Any) -> list[Any]:
    """Return all contents of a batch, with the names of the samples."""
    contents = [part for part in batch if isinstance(part, Tensor)]
    if isinstance(batch, CaptionBatch):
        contents += [*batch.grids, batch.caption_indices]
        contents += [(sample.id, sample.captions, sample.phrases) for sample in batch.samples]
    return contents


def count_equal_batches(loader: Any, reference: Any) -> int:
    """Assert that two loaders return the same batches, and return their number."""
    count = 0
    for batch, expected in zip(loader, reference, strict=True):
        for part, same in zip(parts(batch), parts(expected), strict=True):
            assert torch.equal(part, same) if isinstance(part, Tensor) else part == same
        count += 1
    return count


def check_modules(
    other_data: Callable[[], DataModule], file_data: Callable[[], DataModule]
) -> None:
    """Assert equal batches in two epochs of training, in validation and in test."""
    others, files = set_up(other_data()), set_up(file_data())
    assert others.data_info == files.data_info
    train, reference = others.train_dataloader(), files.train_dataloader()
    for epoch in range(2):
        for loader in (train, reference):
            loader.epoch_sampler.set_epoch(epoch)
        assert count_equal_batches(train, reference) > 1
    assert count_equal_batches(others.val_dataloader(), files.val_dataloader())
    others, files = set_up(other_data(), stage="test"), set_up(file_data(), stage="test")
    assert count_equal_batches(others.test_dataloader()[0], files.test_dataloader()[0])
