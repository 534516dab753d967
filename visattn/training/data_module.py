"""Base class of data modules: loaders, samplers, resizing and a report, for any source."""

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
    getattr(data, _name)  # so that configs can name sources without their module
_EVAL_SEEDS = {"validation": 1, "test": 2, "novel": 3}  # equal augmentation in every run


@dataclass(frozen=True)
class InputSpec:
    """Input that a model expects; `connect` passes it to the data module before `setup`.

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
        prepare(split)  sample, seed -> input: read, augmented, resized
        collate(split)  inputs -> batch

    Sample i of training epoch e has the index i + e · length; its random augmentation depends on
    the seed and this index. Only the test reads the test splits.

    Args:
        source: Returns the samples of a split, `train`, `validation` or `test`: a function, or a
            `Source` with options.
        batch_size: Images per training batch and process.
        num_workers: Worker processes that load batches; 0 loads them in this process. By default
            one less than the number of cores, up to 16; none for fewer than 1,000 images.
        seed: Seed of the order of training images, of their augmentation, and of the source, unless
            that has its own seed. On the command line, by default that of `--seed_everything`,
            unless this is 42, Lightning's default, which keeps 0.
        resize_mode: How a photo is resized to the input of the network: `crop` takes the center
            crop, `pad` adds margins, `squash` ignores the aspect ratio. By default `pad` for masks
            and boxes, `squash` for questions, else `crop`.
        value_range: Values of float and 32-bit images that become black and white; by default they
            must be floats from 0 to 1.
        on_error: Whether an unreadable training photo is an error (`raise`), or is replaced by the
            next one, with a warning (`substitute`).
    """

    eval_batch_size: int | None = 64
    """Images per batch of validation and test; None for `batch_size`."""
    group_size = 1
    """Number of consecutive validation and test images that stay in one batch on one process: with
    2, a control can swap the images of a pair. It divides `eval_batch_size`."""
    pin_memory = False
    """Whether batches consist only of tensors, which are pinned for faster copies to a GPU."""
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
    """Class whose `of` converts what a source returns to a sample."""
    collate_fn: Callable[[Any], Any]
    """Default collate function."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # copies of a task, such as for averaged weights, share its data

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
            source = copy(source)  # data with the same source may have another seed
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
        """Return the function from a sample and a seed to an input; `input_spec` must be set."""

    def collate(self, split: Split) -> Callable[[list[Any]], Any]:
        """Return the function from inputs to a batch."""
        return self.collate_fn

    @property
    def data_info(self) -> dict[str, Any]:
        """Plain values from which a task builds its model; by default the class names."""
        return {"class_names": list(self.class_names)}

    def samples(self, split: Split) -> Sequence[Any]:
        """Return the samples of a split; the source is called once."""
        if split not in self._samples:
            self._samples[split] = self.source(split)
        return self._samples[split]

    def listed(self, split: Split) -> list[Any]:
        """Return the samples of a split as `sample_type`; empty for generated samples."""
        samples = self.samples(split)
        return list(map(self.sample_type.of, samples)) if isinstance(samples, list | tuple) else []

    def random(self, split: Split) -> Sequence[v2.Transform]:
        """Return the random transforms of a split."""
        return self.train_transforms if split == "train" else []

    def dataset(self, split: Split) -> Prepared:
        """Return the dataset of a split, created on first use."""
        if split not in self.datasets:
            samples = self.samples(split)
            seed = self.seed if split == "train" else _EVAL_SEEDS[split]
            # Validation and test never substitute images, which would change the score.
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
        """Return sampling weights of training samples; None for each once per epoch."""
        return None

    def val_dataloader(self) -> Any:
        """Return the validation images, each once; none if the data have none."""
        return self.eval_dataloader("validation") if len(self.dataset("validation")) else []

    def test_dataloader(self) -> list[DataLoader[Any]]:
        """Return the images of each test split, each once."""
        return [self.eval_dataloader(split) for split in self.test_splits]

    def eval_dataloader(self, split: Split) -> DataLoader[Any]:
        """Return the images of a split in order, each once; each process gets its share."""
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
        """Return the unit of targets in a split, such as `objects`, and their number per class.

        None for generated samples, which cannot be counted.
        """
        return None

    def remarks(self) -> Iterator[str]:
        """Yield contradictions in the data, each with the option that solves it."""
        sided = [name for name in self.class_names if says_side(name.replace("_", " "))]
        flips = (v2.RandomHorizontalFlip, v2.RandomRotation)
        random = [*self.train_transforms, *getattr(self, "transforms", ())]
        if sided and any(isinstance(each, flips) for each in _flat(random)):
            yield (
                f"the classes {format_names(sided)} say left or right, but a mirrored photo keeps "
                "its class: remove RandomHorizontalFlip from train_transforms"
            )

    def report(self) -> Iterator[str]:
        """Yield statistics of the splits and contradictions, before the first step.

        Raises:
            ValueError: If a split has no targets, has classes that training lacks, or shares photos
                with it.
        """
        known: Counter[str] = Counter()
        splits: dict[Split, Sequence[Any]] = {
            "train": self.samples("train"),
            "validation": self.samples("validation"),
        }
        yield from getattr(self.source, "notes", ())  # notes of the source
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
                f"{format_names(shared)}; put each photo into one of them"
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
    """Yield transforms, including nested ones."""
    for each in transforms:
        yield each
        yield from _flat(getattr(each, "transforms", ()))


def _names(samples: Sequence[Any]) -> dict[str, None]:
    """Return the photo paths of samples; empty for generated or in-memory samples."""
    photos = getattr(samples, "images", None)
    if photos is None:
        photos = map(photo_of, samples) if isinstance(samples, list) else ()
    if isinstance(photos, (Tensor, np.ndarray)):
        return {}
    real = lru_cache(None)(os.path.realpath)  # of folders: there are few, some of them links
    names: dict[str, None] = {}
    for photo in photos:
        if isinstance(photo, (str, os.PathLike)):
            folder, name = os.path.split(os.fspath(photo))
            names[f"{real(folder)}/{name}"] = None
        elif hasattr(photo, "address"):
            names[photo.address] = None
    return names
