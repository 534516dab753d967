"""Training from tars at an address, as they come; validation and test from shards on the disk."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from visattn.data.captions.batch import CaptionSample, caption_batch
from visattn.data.captions.dataset import mirrored_words
from visattn.data.classification.datasets import FramedPhotos, LabeledBatch
from visattn.data.images.augment import Augmentation
from visattn.data.images.resize import ResizeSpec, frame
from visattn.data.loading.sample_seed import mixed, numbered_uniforms
from visattn.data.shards.datasets import caption_entry
from visattn.data.shards.format import ShardInfo, shard_name
from visattn.data.shards.reader import decoded
from visattn.data.shards.webdataset import SampleStream, StreamedSample, StreamLoader, check_address
from visattn.training.data.captions import Fit
from visattn.training.data.classification import Specs
from visattn.training.data.shards import ShardCaptionDataModule, ShardClassificationDataModule


class WebDatasetCaptionDataModule(ShardCaptionDataModule):
    """Photos with captions: for training out of tars at an address, one after the other.

    For stores that are far away, or sets beyond 10^8 photos; elsewhere `ShardCaptionDataModule`
    gives each photo once in an epoch, in a truly random order, and goes on exactly where a run
    stopped. This gives nearly each, mixed in a buffer, and an epoch that was broken off begins
    anew.

    Args:
        stream: Address of the folder of the training tars, such as https://store/flickr8k.
        shards: Folder with the rest of what `visattn data shards` wrote: all but the training
            tars and their index.
        fit: How a photo comes into the shape that the encoder takes.
        mirror: Show every second training photo mirrored, its captions' left and right swapped.
        min_count: Words that training captions hold more rarely become unknown.
        max_words: Training captions are cut after so many words.
        buffer: Photos among which the next is drawn.
        batch: Photos per training batch and process; all captions of a photo come with it.
        workers: Processes that read ahead; 0 reads in between. Each needs tars of its own.
        seed: Of the order in which photos come, and of which are mirrored.
    """

    reads_training = False

    def __init__(
        self,
        stream: str,
        shards: str,
        *,
        fit: Fit = "crop",
        mirror: bool = False,
        min_count: int = 5,
        max_words: int = 30,
        buffer: int = 1000,
        batch: int = 26,
        workers: int = 2,
        seed: int = 0,
    ) -> None:
        check_address(stream)
        self.stream, self.buffer = stream, buffer
        super().__init__(
            shards,
            fit=fit,
            mirror=mirror,
            min_count=min_count,
            max_words=max_words,
            batch=batch,
            workers=workers,
            seed=seed,
        )

    def training_photos(self) -> int:
        """Return how many photos there are to train on."""
        return self.samples["validation"].info.splits["train"].samples

    def setup(self, stage: str) -> None:
        """Find the photos on the disk; those to train on are found when they come."""
        super().setup("validate" if stage == "fit" else stage)

    def train_dataloader(self) -> StreamLoader:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return training photos as they come, each with all of its captions."""
        framing = ResizeSpec(self.encoder.size, fit=self.fit)
        made = partial(told_sample, framing=framing, mirror=self.mirror, seed=self.seed)
        collate = partial(caption_batch, vocabulary=self.vocabulary, max_words=self.max_words)
        return loader(self, self.samples["validation"].info, made, collate)


class WebDatasetClassificationDataModule(ShardClassificationDataModule):
    """Images with classes: for training out of tars at an address, one after the other.

    See `WebDatasetCaptionDataModule` for what that costs.

    Args:
        stream: Address of the folder of the training tars, such as https://store/flowers.
        shards: Folder with the rest of what `visattn data shards` wrote: all but the training
            tars and their index.
        fit: How a photo comes into the shape that the network takes.
        augment: What happens to training images, as `FolderDataModule` takes it.
        buffer: Images among which the next is drawn.
        batch: Images per training batch and process.
        workers: Processes that read ahead; 0 reads in between. Each needs tars of its own.
        seed: Of the order in which images come, and of how they are changed.
    """

    reads_training = False

    def __init__(
        self,
        stream: str,
        shards: str,
        *,
        fit: Fit = "crop",
        augment: Specs | None = None,
        buffer: int = 1000,
        batch: int = 32,
        workers: int = 2,
        seed: int = 0,
    ) -> None:
        check_address(stream)
        self.stream, self.buffer = stream, buffer
        super().__init__(shards, fit=fit, augment=augment, batch=batch, workers=workers, seed=seed)
        if self.info.size:
            raise ValueError(
                f"{shards} holds small images; ShardClassificationDataModule reads them, exactly"
            )

    def setup(self, stage: str) -> None:
        """Open what lies on the disk."""
        super().setup("validate" if stage == "fit" else stage)

    def train_dataloader(self) -> StreamLoader:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return training images as they come."""
        made = partial(
            labeled_sample,
            framing=self.framing(),
            augmentations=self.augmentations,
            seed=self.seed,
            classes=len(self.info.classes),
        )
        return loader(self, self.info, made, joined)


def loader(
    data: WebDatasetCaptionDataModule | WebDatasetClassificationDataModule,
    info: ShardInfo,
    made: Callable[[StreamedSample, int], Any],
    collate: Callable[[list[Any]], Any],
) -> StreamLoader:
    """Return the training batches of a process."""
    facts = info.splits["train"]
    address = data.stream.rstrip("/")
    stream = SampleStream(
        [f"{address}/{shard_name('train', number)}" for number in range(len(facts.shards))],
        facts.samples,
        made,
        batch=data.batch,
        buffer=data.buffer,
        seed=data.seed,
        rank=data.rank,
        world=data.world,
        workers=data.workers,
    )
    trainer = data.trainer
    epoch = (lambda: trainer.current_epoch) if trainer else (lambda: 0)
    return StreamLoader(stream, collate, epoch=epoch, workers=data.workers)


def told_sample(
    sample: StreamedSample, number: int, *, framing: ResizeSpec, mirror: bool, seed: int
) -> CaptionSample:
    """Return a photo with its captions, as `CaptionDataset` gives it."""
    entry = caption_entry(sample.record, sample.place, "train")
    pixels, _ = frame(decoded(sample.image, sample.place), framing)
    told = CaptionSample(entry.id, pixels, entry.captions, references=entry.captions)
    if not mirror or bool(numbered_uniforms(mixed(seed), [number], 1) >= 0.5):
        return told
    return mirrored_words(told._replace(image=pixels.flip(-1)))


def labeled_sample(
    sample: StreamedSample,
    number: int,
    *,
    framing: ResizeSpec,
    augmentations: tuple[Augmentation, ...],
    seed: int,
    classes: int,
) -> LabeledBatch:
    """Return an image with its class, as `FramedPhotos` gives it, as a batch of one.

    Raises:
        ValueError: If it has no class, or one that is not named.
    """
    if not 0 <= sample.label < classes:
        raise ValueError(f"{sample.place}: the class must be one of {classes}, got {sample.label}")
    image = decoded(sample.image, sample.place)
    label = torch.tensor([sample.label])
    return FramedPhotos([image], label, framing, augmentations, seed=seed)[[number]]


def joined(batches: list[LabeledBatch]) -> LabeledBatch:
    """Return batches as one.

    Example:
        >>> one = LabeledBatch(torch.zeros(1, 1, 2, 3, dtype=torch.uint8), torch.tensor([7]))
        >>> joined([one, one]).labels
        tensor([7, 7])
    """
    return LabeledBatch(*map(torch.cat, zip(*batches, strict=True)))
