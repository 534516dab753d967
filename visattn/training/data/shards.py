"""Data modules of tar shards, with the same batches as from loose files."""

from itertools import chain
from pathlib import Path
from typing import Any

from torch.utils.data import ConcatDataset

from visattn.data.captions.batch import Vocabulary
from visattn.data.classification.datasets import LabeledImages
from visattn.data.feature_cache import Photos
from visattn.data.loading.loader import OnError
from visattn.data.shards.format import MAX_INFO_BYTES, WORD_COUNTS, ShardInfo, ShardKind
from visattn.data.shards.reader import (
    ShardedPhotos,
    ShardedTensors,
    ShardEntries,
    ShardImages,
    ShardSamples,
)
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeMode, ResizeSpec
from visattn.io.safe_text import read_json_object
from visattn.results.kinds import Split
from visattn.training.data.captions import CaptionedImagesDataModule
from visattn.training.data.classification import ClassificationDataModule
from visattn.training.data.folder import FolderDataModule
from visattn.training.data.torchvision import TorchvisionDataModule


class ShardCaptionDataModule(CaptionedImagesDataModule):
    """Photos with several captions each, from shards; otherwise as `CaptionDataModule`.

    `visattn data shards` writes the shards and counts the words of the captions, so that nothing
    is scanned here. Photos are read by index, in any order and by any number of processes.

    Args:
        shards: Folder of the shards. Without a test split the validation photos are tested.
        min_word_freq: Words with fewer occurrences in training captions become unknown words.
        options: Options of `CaptionedImagesDataModule`.
    """

    opens_train_split = True
    max_counted = 1000  # each is read from a shard

    def __init__(
        self,
        shards: str,
        *,
        min_word_freq: int = 5,
        **options: Any,
    ) -> None:
        self.samples = open_shards(shards, "captions", training=self.opens_train_split)
        self.word_counts = read_word_counts(shards)
        vocabulary = Vocabulary.from_counts(self.word_counts["train"], min_word_freq=min_word_freq)
        super().__init__(vocabulary, **options)
        self.entries = {split: ShardEntries(samples) for split, samples in self.samples.items()}

    def open_images(self, split: Split, resize: ResizeSpec) -> ShardedPhotos:
        """Return the photos of a split, resized to the input of the encoder."""
        return ShardedPhotos(self.samples[split], resize)

    def all_images(self, resize: ResizeSpec) -> tuple[list[str], Photos]:
        """Return the ids and the photos of all splits, each photo once."""
        splits = {samples.split: samples for samples in self.samples.values()}
        images = [ShardedPhotos(samples, resize) for samples in splits.values()]
        ids = [entry.id for entry in chain.from_iterable(photos.entries for photos in images)]
        return ids, ConcatDataset(images)

    def unknown_word_fraction(self) -> float:
        """Return the fraction of validation words that are not in the vocabulary."""
        counts, known = self.word_counts["validation"], set(self.vocabulary.words)
        unknown = sum(count for word, count in counts.items() if word not in known)
        return unknown / max(1, sum(counts.values()))

    def examples(self, count: int) -> list[LoadedImage]:
        """Return the first validation photos."""
        return ShardImages(self.samples["validation"])[:count]


class ShardClassificationDataModule(ClassificationDataModule):
    """Images with classes from shards; otherwise as `FolderDataModule`.

    Args:
        shards: Folder that `visattn data shards` wrote. Without a test split the validation images
            are tested.
        resize_mode: How a photo is resized to the input of the network: `crop` takes the center
            crop, `squash` ignores the aspect ratio, `pad` adds margins. Images of torchvision's
            datasets are not resized.
        on_error: Whether an unreadable training photo is an error (`raise`), or is always replaced
            by the same other photo, with a warning (`substitute`).
        options: Options of `ClassificationDataModule`.
    """

    eval_batch_size = FolderDataModule.eval_batch_size
    opens_train_split = True

    def __init__(
        self,
        shards: str,
        *,
        resize_mode: ResizeMode = "crop",
        on_error: OnError = "raise",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.samples = open_shards(shards, "classes", training=self.opens_train_split)
        self.info = self.samples["validation"].info
        self.class_names = tuple(self.info.classes)
        self.resize_mode, self.on_error = resize_mode, on_error
        if self.info.size and on_error == "substitute":
            raise ValueError(
                f"on_error must be raise for {shards}, which holds arrays and no image files"
            )
        if self.info.size:
            self.num_workers = self.num_workers or 0  # arrays in memory
            self.eval_batch_size = TorchvisionDataModule.eval_batch_size

    def open_dataset(self, split: Split) -> LabeledImages:
        """Return the images of a split, resized to the input of the network."""
        samples = self.samples[split]
        if self.info.size:
            transforms = self.train_transforms if split == "train" else ()
            return ShardedTensors(samples, transforms, seed=self.seed)
        images = ShardImages(samples)
        return self.resized_dataset(images, samples.labels, split, samples.location)


def open_shards(
    folder: str, kind: ShardKind, *, training: bool = True
) -> dict[Split, ShardSamples]:
    """Return the samples of each split of shards; without a test split, validation replaces it.

    Args:
        folder: Folder that `visattn data shards` wrote.
        kind: Annotation that the images must have.
        training: Open the training split too.

    Raises:
        FileNotFoundError: If there are no shards, they are incomplete, or one is missing.
        ValueError: If they are of another kind or damaged, or have no training or validation
            images.
    """
    info = ShardInfo.read(folder)
    if info.kind != kind:
        other = {"captions": "ShardCaptionDataModule", "classes": "ShardClassificationDataModule"}[
            info.kind
        ]
        raise ValueError(f"{folder} holds images with {info.kind}; use {other}")
    samples: dict[Split, ShardSamples] = {"validation": ShardSamples(folder, "validation")}
    if training:
        samples["train"] = ShardSamples(folder, "train")
    has_test = "test" in info.splits
    samples["test"] = ShardSamples(folder, "test") if has_test else samples["validation"]
    return samples


def read_word_counts(folder: str) -> dict[str, dict[str, int]]:
    """Return how often each word occurs in the captions of the training and validation split.

    Raises:
        ValueError: If the file is missing or damaged.
    """
    path = Path(folder, WORD_COUNTS)
    try:
        counts = read_json_object(path, MAX_INFO_BYTES)
        return {
            split: {str(word): int(count) for word, count in counts[split].items()}
            for split in ("train", "validation")
        }
    except (OSError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is missing or damaged ({type(error).__name__}: {error}); write them again"
        ) from error
