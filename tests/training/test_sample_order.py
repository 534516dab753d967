"""The order of samples: two epochs, resumed within an epoch, on two processes, in evaluation."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from caption_data import write_caption_data
from classification_data import write_digits, write_photo_folders

from visattn.training.captioning.data import CaptionDataModule, ScenesDataModule
from visattn.training.classification.data import (
    ClutteredMNISTDataModule,
    FolderDataModule,
    SingleObjectDataModule,
    TorchvisionDataModule,
)
from visattn.training.data_module import DataModule
from visattn.training.detection.data import ScenesDetectionDataModule
from visattn.training.questions.data import SortOfClevrDataModule
from visattn.training.segmentation.data import SceneSegmentationDataModule
from visattn.training.sequences.data import DigitSequenceDataModule

COUNT, BATCH, SEED = 23, 3, 7
SCENES = (
    ScenesDataModule,
    ScenesDetectionDataModule,
    SceneSegmentationDataModule,
    SingleObjectDataModule,
    SortOfClevrDataModule,
)
DIGITS = (ClutteredMNISTDataModule, DigitSequenceDataModule)
PAIRS = (ScenesDataModule, SortOfClevrDataModule, CaptionDataModule)


class Indices:
    """A data set of any number of samples whose items are the indices that it was read with."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> Any:
        return index


def sources(folder: Path) -> list[Callable[..., DataModule]]:
    write_digits(folder)
    write_photo_folders(folder / "photos")
    paths = write_caption_data(folder / "captions")
    files = {"captions": str(paths.captions), "photos": str(paths.photos)}
    splits = {"train": str(paths.train), "val": str(paths.validation), "test": str(paths.test)}
    return [
        *SCENES,
        *(lambda kind=kind, **options: kind(root=str(folder), val=5, **options) for kind in DIGITS),
        lambda **options: TorchvisionDataModule("MNIST", root=str(folder), val=5, **options),
        lambda **options: FolderDataModule(str(folder / "photos"), **options),
        lambda **options: CaptionDataModule(**files, **splits, **options),
    ]


def data_of(source: Callable[..., DataModule], rank: int, world: int) -> DataModule:
    data = source(batch_size=BATCH, num_workers=0, seed=SEED)
    data.trainer = SimpleNamespace(global_rank=rank, world_size=world)  # pyright: ignore[reportAttributeAccessIssue]
    data.datasets = dict.fromkeys(("train", "validation", *data.test_splits), Indices())
    if data.collate_fn("train") is not None:
        data.collate_fn = lambda split: list
    return data


def expected_epoch(epoch: int, rank: int, world: int) -> list[list[int]]:
    """Return the batches of a process: it takes every sample after those of the others."""
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + epoch)
    order = [epoch * COUNT + index for index in torch.randperm(COUNT, generator=generator).tolist()]
    steps = COUNT // (BATCH * world)
    own = order[: steps * BATCH * world][rank::world]
    return [own[BATCH * step : BATCH * (step + 1)] for step in range(steps)]


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2)])
def test_training_order_follows_from_seed_epoch_and_process(
    tmp_path: Path, rank: int, world: int
) -> None:
    for source in sources(tmp_path):
        loader = data_of(source, rank, world).train_dataloader()
        for epoch in range(2):
            loader.epoch_sampler.set_epoch(epoch)
            assert list(loader) == expected_epoch(epoch, rank, world), source
        interrupted = data_of(source, rank, world).train_dataloader()
        interrupted.epoch_sampler.set_epoch(1)
        first, *others = expected_epoch(1, rank, world)
        assert next(iter(interrupted)) == first
        resumed = data_of(source, rank, world).train_dataloader()
        resumed.load_state_dict(interrupted.state_dict())
        assert list(resumed) == others


def test_evaluation_reads_each_image_once_and_keeps_pairs_together(tmp_path: Path) -> None:
    for source in sources(tmp_path):
        modules = [data_of(source, rank, 2) for rank in range(2)]
        pairs = isinstance(modules[0], PAIRS)
        shares = [[index for batch in data.val_dataloader() for index in batch] for data in modules]
        assert sorted(shares[0] + shares[1]) == list(range(COUNT))
        assert shares[1] == [index for index in range(COUNT) if index // (1 + pairs) % 2]
        (loader, *_) = modules[1].test_dataloader()
        assert [index for batch in loader for index in batch] == shares[1]
        assert len(modules[0].test_dataloader()) == len(modules[0].test_splits)
