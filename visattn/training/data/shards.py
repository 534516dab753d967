"""Shards as data for training: batch for batch what the loose files give."""

from itertools import chain
from pathlib import Path
from typing import Any

from torch.utils.data import ConcatDataset

from visattn.data.captions.vocabulary import Vocabulary
from visattn.data.classification.datasets import LabeledImages
from visattn.data.feature_cache.request import Photos
from visattn.data.images.reader import LoadedImage
from visattn.data.images.resize import ResizeSpec
from visattn.data.loading.fallback import OnError
from visattn.data.shards.datasets import (
    ShardedPhotos,
    ShardedRasters,
    ShardEntries,
    ShardImages,
)
from visattn.data.shards.format import WORDS, Kind, ShardInfo, read_json
from visattn.data.shards.reader import ShardSamples
from visattn.training.data.captions import CaptionedImagesDataModule, Fit, Split
from visattn.training.data.classification import ClassificationDataModule, Specs
from visattn.training.data.folder import FolderDataModule
from visattn.training.data.torchvision import TorchvisionDataModule


class ShardCaptionDataModule(CaptionedImagesDataModule):
    """Photos with several captions each, from shards; else as `CaptionDataModule` gives them.

    `visattn data shards` writes them and counts the words of the training captions, so that
    nothing is scanned here. Photos are read by number: in any order, on any number of processes.

    Args:
        shards: Folder of the shards. Without a test split in it the validation photos are tested.
        fit: How a photo comes into the shape that the encoder takes: its middle (`crop`), all of
            it out of shape (`squash`), or all of it with margins (`pad`).
        cache: Folder for the features of a frozen encoder; none computes them anew each time.
        mirror: Show every second training photo mirrored, its captions' left and right swapped.
        phrases: A file of phrases with their boxes, to score attention by, or to guide it.
        on_error: A training image that cannot be read stops the run (`raise`), or another one
            stands in for it, always the same, which is counted and said (`substitute`).
        min_count: Words that training captions hold more rarely become unknown.
        max_words: Training captions are cut after so many words.
        batch: Photos per training batch and process; all captions of a photo come with it.
        workers: Processes that read ahead; 0 reads in between.
        seed: Of the order in which photos come, and of which are mirrored.
    """

    reads_training = True

    def __init__(
        self,
        shards: str,
        *,
        fit: Fit = "crop",
        cache: str | None = None,
        mirror: bool = False,
        phrases: str | None = None,
        on_error: OnError = "raise",
        min_count: int = 5,
        max_words: int = 30,
        batch: int = 26,
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        self.samples = opened(shards, "captions", training=self.reads_training)
        self.words = counted_words(shards)
        super().__init__(
            Vocabulary.counted(self.words["train"], min_count=min_count),
            fit=fit,
            cache=cache,
            mirror=mirror,
            phrases=phrases,
            on_error=on_error,
            max_words=max_words,
            batch=batch,
            workers=workers,
            seed=seed,
        )
        self.entries = {split: ShardEntries(samples) for split, samples in self.samples.items()}

    def shown(self, split: Split, framing: ResizeSpec) -> ShardedPhotos:
        """Return the photos of a split, as an encoder is to see them."""
        return ShardedPhotos(self.samples[split], framing)

    def everything(self, framing: ResizeSpec) -> tuple[list[str], Photos]:
        """Return the photos of all splits, each once, and the name of each."""
        every = {samples.split: samples for samples in self.samples.values()}
        shown = [ShardedPhotos(samples, framing) for samples in every.values()]
        ids = [entry.id for entry in chain.from_iterable(photos.entries for photos in shown)]
        return ids, ConcatDataset(shown)

    def unknown_share(self) -> float:
        """Return which share of the words of validation captions is unknown."""
        counts, known = self.words["validation"], set(self.vocabulary.words)
        unknown = sum(count for word, count in counts.items() if word not in known)
        return unknown / max(1, sum(counts.values()))

    def examples(self, count: int) -> list[LoadedImage]:
        """Return the first validation photos."""
        return ShardImages(self.samples["validation"])[:count]


class ShardClassificationDataModule(ClassificationDataModule):
    """Images with classes from shards; otherwise as `FolderDataModule`.

    Args:
        shards: Folder that `visattn data shards` wrote. Without a test split in it the validation
            images are tested.
        fit: How a photo comes into the shape that the network takes: its middle (`crop`), all of
            it out of shape (`squash`), or all of it with margins (`pad`). Images of torchvision's
            collections are shown as they are.
        augment: What happens to training images, as `FolderDataModule` and `TorchvisionDataModule`
            take it.
        on_error: A training image that cannot be read stops the run (`raise`), or another one
            stands in for it, always the same, which is counted and said (`substitute`).
        batch: Images per training batch and process.
        workers: Processes that read ahead; 0 reads in between.
        seed: Of the order in which images come, and of how they are changed.
    """

    evaluated_at_once = FolderDataModule.evaluated_at_once
    reads_training = True

    def __init__(
        self,
        shards: str,
        *,
        fit: Fit = "crop",
        augment: Specs | None = None,
        on_error: OnError = "raise",
        batch: int = 32,
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(augment, batch=batch, workers=workers, seed=seed)
        self.on_error: OnError = on_error
        self.samples = opened(shards, "classes", training=self.reads_training)
        self.info = self.samples["validation"].info
        self.fit: Fit = fit
        if self.info.size and on_error == "substitute":
            raise ValueError(f"{shards} holds small images, all readable: leave on_error out")
        if self.info.size:
            self.evaluated_at_once = TorchvisionDataModule.evaluated_at_once

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"classes": list(self.info.classes)}

    def part(self, split: Split) -> LabeledImages:
        """Return the images of a split, as the network that is trained or scored takes them."""
        samples = self.samples[split]
        if self.info.size:
            augmentations = self.augmentations if split == "train" else ()
            return ShardedRasters(samples, augmentations, seed=self.seed)
        return self.framed(ShardImages(samples), samples.labels, split, samples.place)


def opened(folder: str, kind: Kind, *, training: bool = True) -> dict[Split, ShardSamples]:
    """Return the samples of each split of shards; where there is no test split, validation's.

    Args:
        folder: That which `visattn data shards` wrote.
        kind: What the images must have.
        training: Open what is trained on, too.

    Raises:
        FileNotFoundError: If there are no shards, they are unfinished, or one is missing.
        ValueError: If they are of another kind, or damaged, or have nothing to train on or to
            validate.
    """
    info = ShardInfo.read(folder)
    if info.kind != kind:
        other = {"captions": "ShardCaptionDataModule", "classes": "ShardClassificationDataModule"}[
            info.kind
        ]
        raise ValueError(f"{folder} holds images with {info.kind}; {other} reads them")
    found: dict[Split, ShardSamples] = {"validation": ShardSamples(folder, "validation")}
    if training:
        found["train"] = ShardSamples(folder, "train")
    tested = "test" in info.splits
    found["test"] = ShardSamples(folder, "test") if tested else found["validation"]
    return found


def counted_words(folder: str) -> dict[str, dict[str, int]]:
    """Return how often each word stands in the captions of each split of shards.

    Raises:
        ValueError: If the file is missing or damaged.
    """
    path = Path(folder, WORDS)
    try:
        found = read_json(path)
        return {
            split: {str(word): int(count) for word, count in found[split].items()}
            for split in ("train", "validation")
        }
    except (OSError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is missing or damaged ({type(error).__name__}: {error}); write the shards anew"
        ) from error
