"""Data modules: loaders, samplers and resizing once; a source opens its data sets."""

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from visattn.data.augment.images import AugmentationSpec, build_augmentation
from visattn.data.augment.joint import JointTransforms
from visattn.data.classification.torchvision_sets import TorchvisionSplits
from visattn.data.loading.loader import (
    OnError,
    ReadFallback,
    StatefulDataLoader,
    default_num_workers,
    loader_options,
)
from visattn.data.loading.samplers import (
    DistributedEvalSampler,
    EpochIndexSampler,
    LengthBucketBatchSampler,
)
from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.world import COLORS, SHAPES, TEXTURES, WorldConfig
from visattn.images.resize import ResizeMode, ResizeSpec
from visattn.io.messages import format_names
from visattn.models.base import ImageEncoder
from visattn.results.kinds import Split

_MAX_LISTED = 3  # files that a warning names


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
    """Training, validation and test data; a source adds `open_dataset`.

    A data set may take one index (`collate_fn` then makes a batch) or the list of indices of a
    batch. Indices of training samples exceed its length: sample i of epoch e has the index
    i + e · length, from which its random augmentations follow. If the data set has a method
    `length(index)`, a training batch is sorted by it. Only the test opens the test splits.

    Args:
        batch_size: Images per training batch and process.
        num_workers: Worker processes that load batches; 0 loads them in this process. By default
            as many as there are cores but one, up to 16; none for fewer than 1,000 images.
        seed: Seed of the order of the training images, and of their augmentation.

    Raises:
        ValueError: If the batch size is below 1.

    Example:
        >>> from visattn.data.classification.datasets import LabeledBatch
        >>> class Gray:
        ...     def __init__(self, count):
        ...         self.count = count
        ...     def __len__(self):
        ...         return self.count
        ...     def __getitem__(self, indices):
        ...         rows = torch.tensor(indices) % self.count
        ...         return LabeledBatch(torch.full((len(rows), 3, 8, 8), 128).byte(), rows % 2)
        >>> class GrayDataModule(DataModule):
        ...     class_names = ("even", "odd")
        ...     def open_dataset(self, split):
        ...         return Gray(7 if split == "train" else 3)
        >>> data = GrayDataModule(batch_size=2)
        >>> [len(batch.labels) for batch in data.train_dataloader()]
        [2, 2, 2]
        >>> [batch.labels.tolist() for batch in data.val_dataloader()]
        [[0, 1, 0]]
    """

    test_splits: tuple[Split, ...] = ("test",)
    """The splits that the test reads."""
    eval_batch_size: int | None = 64
    """Images per batch of validation and test; None for `batch_size`."""
    group_size = 1
    """Number of consecutive validation and test images that stay in one batch on one process: with
    2, a control may show a model the image of its partner. It divides `eval_batch_size`."""
    batches_per_pool = 1
    """Number of training batches that are sorted by length together."""
    class_names: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers."""
    input_spec: InputSpec | None = None
    """The input that the model expects; `connect` sets it before `setup`."""
    needs_encoder = False
    """Whether only captioners train on the data, whose `input_spec` has an encoder."""
    needed_task = "whose input_spec has the size of its images"
    """The task that trains on the data, for messages."""
    resize_mode: ResizeMode = "crop"
    """How an image is resized to the input of the model."""
    on_error: OnError = "raise"
    """Whether an unreadable training image is an error, or is replaced (`substitute`)."""
    _fallback: ReadFallback | None = None
    _file_name: Callable[[int], object] = str
    _num_reported = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a copy of a task, such as that of averaged weights, shares its data

    def __init__(
        self, *, batch_size: int = 32, num_workers: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.datasets: dict[Split, Any] = {}

    @property
    def data_info(self) -> dict[str, Any]:
        """Plain values from which a task builds its model; by default the names of the classes."""
        return {"class_names": list(self.class_names)}

    @abstractmethod
    def open_dataset(self, split: Split) -> Any:
        """Return the images of a split, once `input_spec` is known."""

    def get_dataset(self, split: Split) -> Any:
        """Return the images of a split, which is opened on first use."""
        if split not in self.datasets:
            self.datasets[split] = self.open_dataset(split)
        return self.datasets[split]

    def stage_splits(self, stage: str) -> tuple[Split, ...]:
        """Return the splits that a stage of Lightning reads from `get_dataset`."""
        stages: dict[str, tuple[Split, ...]] = {
            "fit": ("train", "validation"),
            "test": self.test_splits,
        }
        return stages.get(stage, ("validation",))

    def setup(self, stage: str) -> None:
        """Open the splits of a stage."""
        for split in self.stage_splits(stage):
            self.get_dataset(split)

    def collate_fn(self, split: Split) -> Callable[[list[Any]], Any] | None:
        """Return the function that makes a batch of samples; None for data sets of batches."""
        return None

    def train_samples(self) -> Any:
        """Return the data set that training batches are read from."""
        return self.get_dataset("train")

    def train_sampler(self, samples: Any) -> EpochIndexSampler:
        """Return the batches of indices of the training samples of this process."""
        return EpochIndexSampler(
            LengthBucketBatchSampler(
                len(samples),
                getattr(samples, "length", lambda _: 0),
                batch_size=self.batch_size,
                batches_per_pool=self.batches_per_pool,
                seed=self.seed,
                rank=self.rank,
                num_replicas=self.world_size,
            )
        )

    def train_dataloader(self) -> Any:
        """Return random batches of training images."""
        samples = self.train_samples()
        return StatefulDataLoader(
            samples,
            self.train_sampler(samples),
            collate_fn=self.collate_fn("train"),
            num_workers=self.num_workers_for(len(samples)),
        )

    def val_dataloader(self) -> Any:
        """Return the validation images, each once."""
        return self.eval_dataloader("validation")

    def test_dataloader(self) -> list[DataLoader[Any]]:
        """Return the images of each test split, each once."""
        return [self.eval_dataloader(split) for split in self.test_splits]

    def eval_dataloader(self, split: Split) -> DataLoader[Any]:
        """Return the images of a split in order, each once, this process its share of them."""
        images = self.get_dataset(split)
        sampler = DistributedEvalSampler(
            len(images), rank=self.rank, num_replicas=self.world_size, group_size=self.group_size
        )
        batches: Any = BatchSampler(
            sampler, self.eval_batch_size or self.batch_size, drop_last=False
        )
        workers = self.num_workers_for(len(images))
        return DataLoader(images, **loader_options(batches, self.collate_fn(split), workers))

    def example_batch(self, count: int) -> Any:
        """Return the first validation images as a batch."""
        dataset = self.get_dataset("validation")
        collate = self.collate_fn("validation")
        indices = list(range(min(count, len(dataset))))
        return collate([dataset[index] for index in indices]) if collate else dataset[indices]

    def examples(self, count: int) -> list[Any]:
        """Return the first validation images, as `read_image` accepts them."""
        images = self.example_batch(count).images
        return list(images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy())

    def centers(self, split: Split) -> Float[Tensor, "n 2"] | None:
        """Return x and y, from -1 to 1, of the object in each image; None if they are unknown."""
        return None

    def references(self, split: Split) -> Mapping[str, Sequence[str]] | None:
        """Return the reference captions of each photo of a split by its id; None without any."""
        return None

    def count_targets(self, split: Split) -> tuple[str, Counter[str]] | None:
        """Return what the loss reads of a split, such as `objects`, and how many of each class.

        Args:
            split: `train` or `validation`, which is open; None if it cannot be counted beforehand.
        """
        labels = getattr(self.datasets.get(split), "labels", None)
        if not isinstance(labels, Tensor) or labels.ndim != 1:
            return None
        counts = labels.bincount(minlength=len(self.class_names)).tolist()
        if len(counts) > len(self.class_names):  # the loss says it
            return None
        return "images", Counter(dict(zip(self.class_names, counts, strict=True)))

    def test_notes(self) -> dict[str, Any]:
        """Return facts about the test images that are written beside the test results."""
        return {}

    @property
    def resize(self) -> ResizeSpec:
        """The resizing of an image to the input of the model; refuses tasks of other models."""
        spec = self.input_spec
        if spec is None or (spec.encoder is not None) != self.needs_encoder:
            raise TypeError(f"{type(self).__name__} needs a task {self.needed_task}")
        return ResizeSpec(spec.image_size, mode=self.resize_mode)

    def check_image_size(self, size: tuple[int, int]) -> None:
        """Refuse images whose size is not that of the model's input, if it is known."""
        if self.input_spec is not None and self.resize.size != size:
            raise ValueError(
                f"the model reads images of {self.resize.size} pixels (height, width), the data "
                f"have {size}: set image_size, or the img_size of the encoder"
            )

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.trainer.global_rank if self.trainer else 0

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.trainer.world_size if self.trainer else 1

    def num_workers_for(self, count: int) -> int:
        """Return the number of worker processes that load a dataset of `count` samples."""
        if self.num_workers is not None:
            return self.num_workers
        shared = getattr(self.trainer, "num_devices", 1)
        return default_num_workers(count, num_processes=shared)

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move the tensors of a batch to a device."""
        return batch.to(device)

    def read_fallback(
        self, split: Split, count: int, file_name: Callable[[int], object]
    ) -> ReadFallback | None:
        """Return the replacement of unreadable images of a split; None if they raise an error.

        The data module warns after the batch of the first unreadable image, whenever their number
        has doubled, and at the end. Validation and test never replace an image, since the score
        would be another one. `count` is the number of images; `file_name` returns the file of one.
        """
        if self.on_error == "raise" or split != "train":
            return None
        self._fallback = ReadFallback(count, seed=self.seed)
        self._file_name = file_name
        self._num_reported = 0
        return self._fallback

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Warn if there are twice as many unreadable images as in the last warning."""
        self._warn(minimum=max(1, 2 * self._num_reported))
        return batch

    def teardown(self, stage: str) -> None:
        """Warn of the unreadable images since the last warning."""
        self._warn(minimum=self._num_reported + 1)

    def _warn(self, minimum: int) -> None:
        """Warn of unreadable images if there are at least `minimum`."""
        unreadable = self._fallback.unreadable if self._fallback else []
        if not unreadable or len(unreadable) < minimum:
            return
        self._num_reported = len(unreadable)
        names = format_names([str(self._file_name(index)) for index in unreadable], _MAX_LISTED)
        warnings.warn(
            f"{len(unreadable):,} training images could not be read so far and were replaced by "
            f"others: {names}",
            UserWarning,
            stacklevel=2,
        )


class DenseDataModule(DataModule):
    """Images with masks or boxes in splits.

    Args:
        transforms: Random transforms of training images with their masks and boxes; None for none.
        options: Options of `DataModule`.
    """

    eval_batch_size = None
    resize_mode = "pad"
    needed_task = (
        "that trains a dense model, such as SegmentationTask or DetectionTask, whose input_spec "
        "has the size of its images"
    )

    def __init__(self, transforms: JointTransforms | None, **options: Any) -> None:
        super().__init__(**options)
        self.train_transforms = transforms

    def transforms_of(self, split: Split) -> JointTransforms | None:
        """Return the random transforms of a split; None for all but the training split."""
        return self.train_transforms if split == "train" else None


class DrawnScenesDataModule(DataModule):
    """Rendered scenes of colored, textured shapes; no files are needed.

    Args:
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of scenes of each test split.
        image_size: Height and width in pixels.
        colors: Colors of the objects.
        shapes: Shapes of the objects.
        textures: Textures of the objects.
        min_objects: Minimum number of objects in a scene.
        max_objects: Maximum number of objects in a scene.
        num_workers: Worker processes that render scenes; 0 renders them in this process.
        options: Further options of the data module.

    Raises:
        ValueError: If a number is out of range, or a color, shape or texture is unknown.
    """

    def __init__(
        self,
        *,
        train: int,
        val: int,
        test: int,
        image_size: int = 64,
        colors: list[str] = list(COLORS),  # noqa: B006 (the command line shows it)
        shapes: list[str] = list(SHAPES),  # noqa: B006
        textures: list[str] = list(TEXTURES),  # noqa: B006
        min_objects: int = 2,
        max_objects: int = 4,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(num_workers=num_workers, **options)
        if val < 1:
            raise ValueError(
                f"val must be at least 1, got {val}; to train without validation, use "
                "--trainer.limit_val_batches 0"
            )
        self.counts: dict[Split, int] = {
            "train": train,
            "validation": val,
            "test": test,
            "novel": test,
        }
        self.image_size = image_size
        num_objects = (min_objects, max_objects)
        self.config = WorldConfig(tuple(colors), tuple(shapes), tuple(textures), num_objects)
        for split in self.counts:
            self.scenes(split)  # refuses numbers out of range now

    def scenes(self, split: Split) -> Scenes:
        """Return the scenes of a split; `novel` has held-out pairs of color and shape."""
        count = self.counts[split]
        size = self.image_size
        return Scenes(count, size=size, split=split, seed=self.seed, config=self.config)


class CanvasDataModule(DataModule):
    """MNIST digits on canvases, which are drawn when they are read.

    Training canvases are new in each epoch; validation and test canvases are always the same. The
    distractors of all splits are cut from training digits. The test results have the SHA-256 of
    the test canvases, so that one can check whether two scores belong to the same images.

    Args:
        spec: What is drawn.
        root: The folder of the files, as torchvision expects it.
        download: Download the files if they are missing.
        val: Number of training digits that are used for validation.
        train_transforms: Augmentations in the training, in this order, each with its options if it
            has any, as in `ClassificationDataModule`.
        batch_size: Canvases per training batch and process.
        num_workers: Worker processes that draw canvases; 0 draws them in this process.
        split_seed: Seed of the choice of validation digits, and of the canvases of validation and
            test.
        seed: Seed of the order and of the training canvases; at least 0.
    """

    eval_batch_size = 256

    def __init__(
        self,
        spec: Any,
        *,
        root: str,
        download: bool = False,
        val: int = 5000,
        train_transforms: list[AugmentationSpec] | None = None,
        batch_size: int = 128,
        num_workers: int = 0,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        self.spec = spec
        self.split_seed = split_seed
        self.splits = TorchvisionSplits(
            "MNIST", root, val=val, split_seed=split_seed, download=download
        )
        self.class_names = self.splits.class_names
        self.train_transforms = tuple(map(build_augmentation, train_transforms or []))
        self.open_dataset("train")  # checks the sizes now

    @staticmethod
    @abstractmethod
    def draw(*arguments: Any, **options: Any) -> Any:
        """Return the data set of canvases; a subclass names its class."""

    def open_dataset(self, split: Split) -> Any:
        """Return the canvases of a split."""
        train_digits, train_labels = self.splits.images("train")
        if split == "train":
            return self.draw(
                train_digits,
                train_labels,
                self.spec,
                seed=3 * self.seed,
                augmentations=self.train_transforms,
            )
        # Training, validation and test have the residues 0, 1 and 2 modulo 3: no two of them share
        # a seed, whatever `seed` and `split_seed` are.
        seed = 3 * self.split_seed + (1 if split == "validation" else 2)
        return self.draw(
            *self.splits.images(split), self.spec, seed=seed, distractor_source=train_digits
        )

    def test_notes(self) -> dict[str, Any]:
        """Return the SHA-256 of the test canvases."""
        dataset = self.datasets.get("test")
        return {"test_canvases": f"sha256 {dataset.digest()}"} if dataset else {}
