"""A data module: loaders, samplers, resizing and the report, for the samples of any source."""

import os
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
import torch
from jaxtyping import Float
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader
from torchvision.transforms import v2

from visattn import data
from visattn.data.augment import says_side
from visattn.data.loading import (
    DistributedEvalSampler,
    EpochBatches,
    Prepared,
    StatefulDataLoader,
    default_num_workers,
    loader_options,
)
from visattn.data.source import AnySource, Source, photo_of
from visattn.images.resize import ResizeMode, ResizeSpec
from visattn.io.messages import format_names
from visattn.models.base import ImageEncoder
from visattn.results.kinds import Split

for _name in dir(data):
    getattr(data, _name)  # a source that is imported needs no module in a config
_EVAL_SEEDS = {"validation": 1, "test": 2, "novel": 3}  # the same in every run


@dataclass(frozen=True)
class InputSpec:
    """Input that a model expects; `connect` hands it to the data module before `setup`.

    Args:
        image_size: Height and width in pixels.
        mean: Mean of each color channel, in [0, 1].
        std: Standard deviation of each color channel, in [0, 1].
        encoder: The image encoder of a captioner, whose features a data module may cache; None
            for other models.
    """

    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    encoder: ImageEncoder | None = None


class DataModule(LightningDataModule, ABC):
    """Training, validation and test data of a task, from any source.

        source(split)   samples: photos with classes, captions, questions, objects
        prepare(split)  sample, seed -> what a batch has of it: read, augmented, resized
        collate(split)  these -> batch

    Sample i of training epoch e has the index i + e · length; its random augmentation follows from
    the seed and this index. Only the test opens the test splits.

    Args:
        source: Returns the samples of a split, `train`, `validation` or `test`: a function, or a
            `Source` with options.
        batch_size: Images per training batch and process.
        num_workers: Worker processes that load batches; 0 loads them in this process. By default
            as many as there are cores but one, up to 16; none for fewer than 1,000 images.
        seed: Seed of the order of the training images, of their augmentation, and of what the
            source draws, unless that has a seed of its own. On the command line, by default that of
            a given `--seed_everything`.
        resize_mode: How a photo is resized to the input of the network: `crop` takes the center
            crop, `pad` adds margins, `squash` ignores the aspect ratio. By default `pad` for masks
            and boxes, `squash` for questions, else `crop`.
        value_range: The values of float and 32-bit images that become black and white, the same
            for all; by default these must be floats from 0 to 1.
        on_error: Whether an unreadable training photo is an error (`raise`), or is replaced by the
            next one, with a warning (`substitute`).
    """

    eval_batch_size: int | None = 64
    """Images per batch of validation and test; None for `batch_size`."""
    group_size = 1
    """Number of consecutive validation and test images that stay in one batch on one process: with
    2, a control may show a model the image of its partner. It divides `eval_batch_size`."""
    pin_memory = False
    """Whether batches are tensors only, which are pinned to be copied to a GPU faster."""
    default_resize: ResizeMode = "crop"
    class_names: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers."""
    input_spec: InputSpec | None = None
    """The input that the model expects; `connect` sets it before `setup`."""
    needed_task = "whose input_spec has the size of its images"
    """The task that trains on the data, for messages."""
    train_transforms: Sequence[v2.Transform] = ()
    """Random transforms of training images."""
    sample_type: Any = None
    """Class whose `of` makes a sample of what a source returns."""
    collate_fn: Callable[[Any], Any]
    """Makes a batch of inputs, unless `collate` returns another function."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a copy of a task, such as that of averaged weights, shares its data

    def __init__(
        self,
        source: AnySource,
        *,
        batch_size: int = 32,
        num_workers: int | None = None,
        seed: int = 0,
        resize_mode: ResizeMode | None = None,
        value_range: tuple[float, float] | None = None,
        on_error: Literal["raise", "substitute"] = "raise",
    ) -> None:
        super().__init__()
        if isinstance(source, Source) and source.seed is None:
            source = copy(source)  # other data with the same source may have another seed
            source.seed = seed
        self.source = source
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.resize_mode: ResizeMode = resize_mode or self.default_resize
        self.value_range = value_range
        self.on_error = on_error
        self.test_splits: tuple[Split, ...] = getattr(source, "test_splits", ("test",))
        self.datasets: dict[Split, Prepared] = {}
        self._samples: dict[Split, Sequence[Any]] = {}

    @abstractmethod
    def prepare(self, split: Split) -> Callable[[Any, int], Any]:
        """Return what makes an input of a sample and a seed, once `input_spec` is known."""

    def collate(self, split: Split) -> Callable[[list[Any]], Any]:
        """Return what makes a batch of inputs."""
        return self.collate_fn

    @property
    def data_info(self) -> dict[str, Any]:
        """Plain values from which a task builds its model; by default the names of the classes."""
        return {"class_names": list(self.class_names)}

    def samples(self, split: Split) -> Sequence[Any]:
        """Return the samples of a split, which the source makes once."""
        if split not in self._samples:
            self._samples[split] = self.source(split)
        return self._samples[split]

    def listed(self, split: Split) -> list[Any]:
        """Return the samples of a split as `sample_type`; none of those that are drawn."""
        samples = self.samples(split)
        return list(map(self.sample_type.of, samples)) if isinstance(samples, list | tuple) else []

    def random(self, split: Split) -> Sequence[v2.Transform]:
        """Return the random transforms of a split."""
        return self.train_transforms if split == "train" else []

    def dataset(self, split: Split) -> Prepared:
        """Return the inputs of a split, which is opened on first use."""
        if split not in self.datasets:
            samples = self.samples(split)
            seed = self.seed if split == "train" else _EVAL_SEEDS[split]
            # Validation and test never replace an image: the score would be another one.
            substitute = split == "train" and self.on_error == "substitute"
            self.datasets[split] = Prepared(
                samples, self.prepare(split), seed=seed, substitute=substitute
            )
        return self.datasets[split]

    def setup(self, stage: str) -> None:
        """Open the splits of a stage of Lightning."""
        splits: dict[str, tuple[Split, ...]] = {
            "fit": ("train", "validation"),
            "test": self.test_splits,
        }
        for split in splits.get(stage, ("validation",)):
            if not len(self.dataset(split)) and (stage, split) != ("fit", "validation"):
                raise ValueError(f"the data have no {split} samples")

    def train_dataloader(self) -> Any:
        """Return random batches of training images."""
        samples = self.dataset("train")
        order = EpochBatches(
            len(samples),
            batch_size=self.batch_size,
            seed=self.seed,
            weights=self.weights(),
            **self._share,
        )
        names = sorted(map(os.path.basename, _names(self.samples("train"))))
        content = zlib.crc32("/".join(names).encode("utf-8", "surrogateescape"))
        return StatefulDataLoader(samples, order, content=content, **self._loading("train"))

    def weights(self) -> Float[Tensor, " n"] | None:
        """Return how often each training sample is drawn; None for each once an epoch."""
        return None

    def val_dataloader(self) -> Any:
        """Return the validation images, each once; none if the data have none."""
        return self.eval_dataloader("validation") if len(self.dataset("validation")) else []

    def test_dataloader(self) -> list[DataLoader[Any]]:
        """Return the images of each test split, each once."""
        return [self.eval_dataloader(split) for split in self.test_splits]

    def eval_dataloader(self, split: Split) -> DataLoader[Any]:
        """Return the images of a split in order, each once, this process its share of them."""
        images = self.dataset(split)
        sampler = DistributedEvalSampler(len(images), group_size=self.group_size, **self._share)
        size = self.eval_batch_size or self.batch_size
        batches: Any = BatchSampler(sampler, size, drop_last=False)
        return DataLoader(images, **loader_options(batches, **self._loading(split)))

    def _loading(self, split: Split) -> dict[str, Any]:
        """Return the options of the loader of a split."""
        workers = self.num_workers
        if workers is None:
            workers = getattr(self.source, "num_workers", None)
        if workers is None:
            shared = getattr(self.trainer, "num_devices", 1)
            workers = default_num_workers(len(self.dataset(split)), num_processes=shared)
        collate = self.collate(split)
        return {"collate_fn": collate, "num_workers": workers, "pin_memory": self.pin_memory}

    @property
    def _share(self) -> dict[str, int]:
        trainer = self.trainer
        rank, count = (trainer.global_rank, trainer.world_size) if trainer else (0, 1)
        return {"rank": rank, "num_replicas": count}

    def example_batch(self, count: int) -> Any:
        """Return the first validation images as a batch."""
        dataset = self.dataset("validation")
        rows = range(min(count, len(dataset)))
        return self.collate("validation")([dataset[row] for row in rows])

    def examples(self, count: int) -> list[Any]:
        """Return the first validation images, as `read_image` accepts them."""
        images = self.example_batch(count).images
        return list(images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy())

    def centers(self, split: Split) -> Float[Tensor, "n 2"] | None:
        """Return x and y, from -1 to 1, of the object in each image; None if they are unknown."""
        return getattr(self.samples(split), "centers", None)

    def references(self, split: Split) -> Mapping[str, Sequence[str]] | None:
        """Return the reference captions of each photo of a split by its id; None without any."""
        return None

    @property
    def resize(self) -> ResizeSpec:
        """The resizing of an image to the input of the model."""
        if self.input_spec is None:
            raise TypeError(f"{type(self).__name__} needs a task {self.needed_task}")
        return ResizeSpec(self.input_spec.image_size, mode=self.resize_mode)

    def count_targets(self, split: Split) -> tuple[str, Counter[str]] | None:
        """Return what the loss reads of a split, such as `objects`, and how many of each class.

        None if it cannot be counted before it is drawn.
        """
        return None

    def remarks(self) -> Iterator[str]:
        """Yield what contradicts itself in the data, each with the option that cures it."""
        sided = [name for name in self.class_names if says_side(name.replace("_", " "))]
        flips = (v2.RandomHorizontalFlip, v2.RandomRotation)
        random = [*self.train_transforms, *getattr(self, "transforms", ())]
        if sided and any(isinstance(each, flips) for each in _flat(random)):
            yield (
                f"the classes {format_names(sided)} say left or right, but a mirrored photo keeps "
                "its class: remove RandomHorizontalFlip from train_transforms"
            )

    def report(self) -> Iterator[str]:
        """Yield what the splits have, and what contradicts itself, before the first step.

        Raises:
            ValueError: If a split has no targets, classes that training lacks, or photos of it.
        """
        known: Counter[str] = Counter()
        splits: dict[Split, Sequence[Any]] = {
            "train": self.samples("train"),
            "validation": self.samples("validation"),
        }
        yield from getattr(self.source, "notes", ())  # of how it made them
        for split, samples in splits.items():
            if (found := self.count_targets(split) if len(samples) else None) is None:
                yield f"{split}: {len(samples):,} samples"
                continue
            unit, counts = found
            if not counts.total():
                raise ValueError(f"the {split} split has no {unit}")
            known = known or counts
            if unknown := [name for name in counts if name not in known]:
                raise ValueError(
                    f"the {split} split has classes that training lacks: {format_names(unknown)}"
                )
            counts = Counter({name: counts[name] for name in known})
            (most, many), *_, (least, few) = [*counts.most_common(), *counts.most_common()[-1:]]
            spread = f", of {len(counts):,} classes from {least} ({few:,}) to {most} ({many:,})"
            yield f"{split}: {counts.total():,} {unit}{spread if len(counts) > 1 else ''}"
        if shared := self.shared_photos("train", "validation"):
            raise ValueError(
                f"{len(shared):,} photos are in the training and in the validation split: "
                f"{format_names(shared)}; give each photo to one of them"
            )
        yield from self.remarks()

    def shared_photos(self, first: Split, second: Split) -> list[str]:
        """Return the paths of the photos that two splits have in common."""
        return sorted(_names(self.samples(first)).keys() & _names(self.samples(second)).keys())

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move the tensors of a batch to a device."""
        return batch.to(device)


def _flat(transforms: Iterable[Any]) -> Iterator[Any]:
    """Yield transforms, and those inside of them."""
    for each in transforms:
        yield each
        yield from _flat(getattr(each, "transforms", ()))


def _names(samples: Sequence[Any]) -> dict[str, None]:
    """Return the paths of the photos of samples; nothing for those that are drawn or in memory."""
    photos = getattr(samples, "images", None)
    if photos is None:
        photos = map(photo_of, samples) if isinstance(samples, list) else ()
    if isinstance(photos, (Tensor, np.ndarray)):
        return {}
    real = lru_cache(None)(os.path.realpath)  # many photos lie in few folders, some behind a link
    names: dict[str, None] = {}
    for photo in photos:
        if isinstance(photo, (str, os.PathLike)):
            folder, name = os.path.split(os.fspath(photo))
            names[f"{real(folder)}/{name}"] = None
        elif hasattr(photo, "address"):
            names[photo.address] = None
    return names
