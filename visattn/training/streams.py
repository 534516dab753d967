"""Data modules that stream training shards from a URL, with validation and test shards on disk."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from visattn.data.augment.images import Augmentation, AugmentationSpec
from visattn.data.captions.batch import CaptionSample
from visattn.data.captions.dataset import hflip_sample
from visattn.data.classification.datasets import ImageFiles, LabeledBatch
from visattn.data.loading.samplers import mix_seed, per_sample_uniforms
from visattn.data.shards.format import shard_name
from visattn.data.shards.reader import ShardSamples, caption_entry, decode_image
from visattn.data.shards.streams import SampleStream, StreamedSample, StreamLoader, check_url
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.results.kinds import Split
from visattn.training.captioning.data import ShardCaptionDataModule
from visattn.training.classification.data import ShardClassificationDataModule
from visattn.training.data_module import DataModule


class StreamedTrainingDataModule(DataModule):
    """Base class of data modules whose training shards are streamed from a URL.

    For the options see `WebDatasetCaptionDataModule`; others are those of the data module of the
    shards.
    """

    opens_train_split = False
    samples: dict[Split, ShardSamples]
    """The samples of the splits on disk."""

    def __init__(
        self,
        train_url: str,
        shards: str,
        *,
        shuffle_buffer: int = 1000,
        num_workers: int = 2,
        **options: Any,
    ) -> None:
        check_url(train_url)
        super().__init__(shards, num_workers=num_workers, **options)  # pyright: ignore[reportCallIssue] (of the shards)
        self.train_url = train_url.rstrip("/")
        self.shuffle_buffer = shuffle_buffer

    @abstractmethod
    def transform(self) -> Callable[[StreamedSample, int], Any]:
        """Return the function that makes a training sample of a streamed sample and its number."""

    def stage_splits(self, stage: str) -> tuple[Split, ...]:
        """Return the splits of a stage on disk; the training images are read from the stream."""
        return tuple(split for split in super().stage_splits(stage) if split in self.samples)

    def train_dataloader(self) -> StreamLoader:
        """Return batches of streamed training samples."""
        # The info beside any split describes all of them; the training tars are not on this disk.
        split = self.samples["validation"].info.splits["train"]
        workers = self.num_workers or 0
        names = (shard_name("train", number) for number in range(len(split.shards)))
        stream = SampleStream(
            [f"{self.train_url}/{name}" for name in names],
            split.samples,
            self.transform(),
            batch_size=self.batch_size,
            buffer_size=self.shuffle_buffer,
            seed=self.seed,
            rank=self.rank,
            num_replicas=self.world_size,
            num_workers=workers,
        )
        trainer = self.trainer
        epoch = (lambda: trainer.current_epoch) if trainer else (lambda: 0)
        collate = self.collate_fn("train") or concatenate_batches
        return StreamLoader(stream, collate, epoch=epoch, num_workers=workers)


class WebDatasetCaptionDataModule(StreamedTrainingDataModule, ShardCaptionDataModule):
    """Photos with captions; training shards are streamed from a URL, one after the other.

    Use it for remote storage or for more than 10^8 photos. Otherwise `ShardCaptionDataModule` is
    better: it gives each photo exactly once per epoch in a uniformly random order, and resumes a
    run exactly. A stream gives nearly each photo once, shuffled in a buffer, and restarts an
    interrupted epoch.

    Args:
        train_url: URL of the folder of the training tars, such as https://store/flickr8k.
        shards: Folder with the other files that `visattn data shards` wrote: all but the training
            tars and their index.
        resize_mode: How a photo is resized to the input of the encoder.
        hflip: Flip every second training photo horizontally, and swap left and right in its
            captions.
        min_word_freq: Words with fewer occurrences in training captions become unknown words.
        max_words: Longer training captions are truncated.
        shuffle_buffer: Photos among which the next one is drawn.
        batch_size: Photos per training batch and process, each with all of its captions.
        num_workers: Worker processes, each of which reads its own tars; 0 reads in this process.
        seed: Seed of the order of the photos and of the flips.
    """

    def __init__(
        self,
        train_url: str,
        shards: str,
        *,
        resize_mode: ResizeMode = "crop",
        hflip: bool = False,
        min_word_freq: int = 5,
        max_words: int = 30,
        shuffle_buffer: int = 1000,
        batch_size: int = 26,
        num_workers: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__(
            train_url,
            shards,
            resize_mode=resize_mode,
            hflip=hflip,
            min_word_freq=min_word_freq,
            max_words=max_words,
            shuffle_buffer=shuffle_buffer,
            batch_size=batch_size,
            num_workers=num_workers,
            seed=seed,
        )

    @property
    def num_train_images(self) -> int:
        """The number of training photos."""
        return self.samples["validation"].info.splits["train"].samples

    def transform(self) -> Callable[[StreamedSample, int], CaptionSample]:
        """Return the function that resizes and flips a photo."""
        return partial(to_caption_sample, resize=self.resize, hflip=self.hflip, seed=self.seed)


class WebDatasetClassificationDataModule(StreamedTrainingDataModule, ShardClassificationDataModule):
    """Images with classes; training shards are streamed from a URL, one after the other.

    `WebDatasetCaptionDataModule` explains when to use it.

    Args:
        train_url: URL of the folder of the training tars, such as https://store/flowers.
        shards: Folder with the other files that `visattn data shards` wrote: all but the training
            tars and their index.
        resize_mode: How a photo is resized to the input of the network.
        train_transforms: Augmentations of training images, as in `FolderDataModule`.
        shuffle_buffer: Images among which the next one is drawn.
        batch_size: Images per training batch and process.
        num_workers: Worker processes, each of which reads its own tars; 0 reads in this process.
        seed: Seed of the order of the images and of their augmentation.
    """

    def __init__(
        self,
        train_url: str,
        shards: str,
        *,
        resize_mode: ResizeMode = "crop",
        train_transforms: list[AugmentationSpec] | None = None,
        shuffle_buffer: int = 1000,
        batch_size: int = 32,
        num_workers: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__(
            train_url,
            shards,
            resize_mode=resize_mode,
            train_transforms=train_transforms,
            shuffle_buffer=shuffle_buffer,
            batch_size=batch_size,
            num_workers=num_workers,
            seed=seed,
        )
        if self.info.size:
            raise ValueError(
                f"{shards} holds arrays and no image files; use ShardClassificationDataModule"
            )

    def transform(self) -> Callable[[StreamedSample, int], LabeledBatch]:
        """Return the function that augments and resizes an image."""
        return partial(
            to_labeled_batch,
            resize=self.resize,
            transforms=self.train_transforms,
            seed=self.seed,
            num_classes=len(self.class_names),
        )


def to_caption_sample(
    sample: StreamedSample, number: int, *, resize: ResizeSpec, hflip: bool, seed: int
) -> CaptionSample:
    """Return a photo with its captions, as `CaptionDataset` does; its number decides the flip."""
    entry = caption_entry(sample.record, sample.location, "train")
    pixels, _ = resize_to_input(decode_image(sample.image, sample.location), resize)
    result = CaptionSample(entry.id, pixels, entry.captions, references=entry.captions)
    if not hflip or bool(per_sample_uniforms(mix_seed(seed), [number], 1) >= 0.5):
        return result
    return hflip_sample(result._replace(image=pixels.flip(-1)))


def to_labeled_batch(
    sample: StreamedSample,
    number: int,
    *,
    resize: ResizeSpec,
    transforms: tuple[Augmentation, ...],
    seed: int,
    num_classes: int,
) -> LabeledBatch:
    """Return an image with its class as a batch of one, as `ImageFiles` does."""
    if not 0 <= sample.label < num_classes:
        raise ValueError(
            f"{sample.location}: the class must be at least 0 and below {num_classes}, got "
            f"{sample.label}"
        )
    image = decode_image(sample.image, sample.location)
    label = torch.tensor([sample.label])
    # The number exceeds the length of the list, 1: its remainder selects the image, the number
    # itself the random numbers of the augmentation.
    return ImageFiles([image], label, resize, transforms, seed=seed)[[number]]


def concatenate_batches(batches: list[LabeledBatch]) -> LabeledBatch:
    """Return several batches as one.

    Example:
        >>> batch = LabeledBatch(torch.zeros(1, 1, 2, 3, dtype=torch.uint8), torch.tensor([7]))
        >>> concatenate_batches([batch, batch]).labels
        tensor([7, 7])
    """
    return LabeledBatch(*map(torch.cat, zip(*batches, strict=True)))
