"""Data modules of captions: drawn scenes, photos with caption files, tables."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import ConcatDataset, Subset

from visattn.data.captions.batch import (
    CaptionBatch,
    Vocabulary,
    collate_captions,
)
from visattn.data.captions.dataset import (
    CaptionDataset,
    CaptionedImages,
    CaptionedPhotos,
)
from visattn.data.captions.files import (
    CaptionEntry,
    SplitFractions,
    SplitPaths,
    check_unique_ids,
    read_caption_splits,
)
from visattn.data.feature_cache import FeatureCache
from visattn.data.loading.loader import OnError
from visattn.data.photo_tables import TableSource, caption_entries, read_tables
from visattn.data.phrases import read_phrases
from visattn.data.scenes.dataset import (
    Scenes,
    SingleCaptionScenes,
)
from visattn.data.scenes.language import grammar_words
from visattn.images.resize import ResizeMode, ResizeSpec
from visattn.models.base import ImageEncoder
from visattn.results.kinds import SPECIAL_TOKENS, CaptionFormat, Split
from visattn.training.data_module import DataModule, DrawnScenesDataModule


class CaptionedImagesDataModule(DataModule):
    """Base class of photos with several captions each.

    With `feature_cache_dir`, the features of the frozen encoder are computed once per photo and
    stored; a batch then has features instead of photos.

    Args:
        vocabulary: Vocabulary of the training split.
        resize_mode: How a photo is resized to the input of the encoder: `crop` takes the center
            crop, `squash` ignores the aspect ratio, `pad` adds margins.
        feature_cache_dir: Folder for the features of a frozen encoder; null computes them in every
            step.
        hflip: Flip every second training photo horizontally, unless its captions say left or right.
        phrases: A file of phrases with boxes, for scores or supervision of the attention.
        on_error: Whether an unreadable training photo is an error (`raise`), or is always replaced
            by the same other photo, with a warning (`substitute`).
        max_words: Longer training captions are truncated.
        batch_size: Photos per training batch and process, each with all of its captions.
        options: Options of `DataModule`.
    """

    group_size = 2
    needs_encoder = True
    needed_task = "that trains a captioner, such as CaptioningTask, whose input_spec has an encoder"
    entries: Mapping[Split, Sequence[CaptionEntry]]
    """The photos of each split with their captions."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        resize_mode: ResizeMode = "crop",
        feature_cache_dir: str | None = None,
        hflip: bool = False,
        phrases: str | None = None,
        on_error: OnError = "raise",
        max_words: int = 30,
        batch_size: int = 26,
        **options: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, **options)
        if max_words < 1:
            raise ValueError(f"max_words must be at least 1, got {max_words}")
        if on_error == "substitute" and feature_cache_dir:
            raise ValueError(
                "with feature_cache_dir every photo is read once before training, so on_error must "
                "be raise; remove the photos that cannot be read, or set feature_cache_dir to null"
            )
        self.vocabulary = vocabulary
        self.phrases = read_phrases(phrases) if phrases else {}
        self.feature_cache_dir = feature_cache_dir
        self.hflip = hflip
        self.max_words = max_words
        self.resize_mode = resize_mode
        self.on_error = on_error

    @abstractmethod
    def open_images(self, split: Split, resize: ResizeSpec) -> CaptionedImages:
        """Return the photos of a split, resized to the input of the encoder."""

    def references(self, split: Split) -> dict[str, Sequence[str]]:
        """Return the captions of each photo of a split by its id."""
        return {entry.id: entry.captions for entry in self.entries[split]}

    @property
    def data_info(self) -> dict[str, Any]:
        """Values for the task: the vocabulary and the kind of annotations."""
        return {"words": list(self.vocabulary.words), "annotations": ["references"]}

    def stage_splits(self, stage: str) -> tuple[Split, ...]:
        """Return the splits of a stage that have photos; training may have no validation.

        Raises:
            ValueError: If none has.
        """
        needed = super().stage_splits(stage)
        splits: tuple[Split, ...] = tuple(split for split in needed if split in self.entries)
        if not splits:
            raise ValueError(f"the data have neither {needed[0]} nor validation photos")
        return splits

    def open_dataset(self, split: Split) -> CaptionDataset:
        """Return the photos of a split, or their features, with captions and phrases."""
        photos = self.open_images(split, self.resize)
        return CaptionDataset(
            photos,
            feature_cache=self._caches[split] if self.feature_cache_dir else None,
            phrases=self.phrases,
            hflip=self.hflip and split == "train",
            seed=self.seed,
            fallback=self.read_fallback(
                split, len(photos), lambda index: photos.entries[index].file
            ),
        )

    def collate_fn(self, split: Split) -> "partial[CaptionBatch]":
        """Return the function that makes a batch of captioned photos."""
        # The validation loss is that of whole captions; in training, long ones would decide the
        # memory.
        most = self.max_words if split == "train" else None
        return partial(collate_captions, vocabulary=self.vocabulary, max_words=most)

    @cached_property
    def _caches(self) -> dict[Split, FeatureCache]:
        """The cached features of each split, after computing those that are missing."""
        resize = self.resize  # refuses a task without an encoder
        encoder: Any = getattr(self.input_spec, "encoder", None)
        device = self.trainer.strategy.root_device if self.trainer else None
        photos = ConcatDataset([self.open_images(split, resize) for split in self.entries])
        numbers: dict[str, int] = {}  # the first of each photo, which several splits may have
        for number, entry in enumerate(chain.from_iterable(self.entries.values())):
            numbers.setdefault(entry.id, number)
        views = ("plain", "mirrored") if self.hflip else ("plain",)
        folder = Path(str(self.feature_cache_dir))
        # This runs in `setup`, before Lightning moves the task to its device.
        with _moved_to(encoder, device):
            FeatureCache.prepare(
                folder,
                encoder,
                Subset(photos, [*numbers.values()]),
                ids=[*numbers],
                resize=resize,
                views=views,
                batch_size=64 if device is not None and device.type == "cuda" else 16,
                log=rank_zero_info,
            )
        return {
            split: FeatureCache(folder, ids=[entry.id for entry in entries], views=views)
            for split, entries in self.entries.items()
        }

    def val_dataloader(self) -> Any:
        """Return the validation photos, each once; an empty list if there are none."""
        return super().val_dataloader() if "validation" in self.entries else []

    def count_targets(self, split: Split) -> tuple[str, Counter[str]] | None:
        """Return the number of captions, how much of them is unknown, and how many have phrases."""
        if split not in self.datasets:
            return None
        texts = [text for entry in self.entries[split] for text in entry.captions]
        unit = f"captions, {self.vocabulary.unknown_fraction(texts):.1%} of their words unknown"
        if self.phrases:
            unit += f", {self.datasets[split].phrase_coverage():.1%} of them with phrases"
        return unit, Counter(captions=len(texts))


class CaptionDataModule(CaptionedImagesDataModule):
    """Photos with several captions each, from caption files of any supported format.

    The vocabulary is that of the training split. Photos are divided into splits by the captions
    file, such as a table with a column `split`; by lists of photos; or at random, by photo, with
    `val_fraction`.

    Args:
        captions: A Flickr token file, an `image,caption` table, a Karpathy or COCO JSON file, or
            JSON lines. Or one file per split, as in COCO: `{train: captions_train2017.json,
            val: captions_val2017.json}`, and `test` if there is one.
        photos: Folder of the photos. Or one per split: `{train: train2017, val: val2017}`.
        train: A list of the training photos, one name per line; or the name of the split, if the
            caption file has splits. Not needed if each split has its own file.
        val: The same for validation; null trains without validation.
        test: The same for the test; by default the validation photos.
        val_fraction: The fraction of the photos that is chosen at random for validation, if the
            captions file assigns no splits and there are no lists.
        test_fraction: The same for the test; by default the validation photos.
        split_seed: Seed of the choice. It depends on the names of the files, not on their order.
        format: Format of the caption files; detected by default.
        min_word_freq: Words with fewer occurrences in training captions become unknown words.
        options: Options of `CaptionedImagesDataModule`.
    """

    def __init__(
        self,
        captions: SplitPaths,
        photos: SplitPaths,
        *,
        train: str = "train",
        val: str | None = "val",
        test: str | None = None,
        val_fraction: float | None = None,
        test_fraction: float | None = None,
        split_seed: int = 0,
        format: CaptionFormat | None = None,  # noqa: A002 (the name of the command-line option)
        min_word_freq: int = 5,
        **options: Any,
    ) -> None:
        at_random = val_fraction is not None or test_fraction is not None
        self.splits = read_caption_splits(
            captions,
            photos,
            (train, val, test),
            format=format,
            fractions=SplitFractions(val_fraction or 0.0, test_fraction or 0.0, split_seed)
            if at_random
            else None,
        )
        texts = [text for entry in self.splits["train"].entries for text in entry.captions]
        vocabulary = Vocabulary.from_captions(texts, min_word_freq=min_word_freq)
        super().__init__(vocabulary, **options)
        if self.feature_cache_dir:
            check_unique_ids(self.splits)
        self.entries = {name: split.entries for name, split in self.splits.items()}

    def open_images(self, split: Split, resize: ResizeSpec) -> CaptionedImages:
        """Return the photos of a split, resized to the input of the encoder."""
        return CaptionedPhotos(*self.splits[split], resize)

    def examples(self, count: int) -> list[Path]:
        """Return the files of the first validation photos, or of training if there are none."""
        entries, folder = self.splits.get("validation", self.splits["train"])
        return [folder / entry.file for entry in entries[:count]]


@contextmanager
def _moved_to(encoder: ImageEncoder, device: torch.device | str | None) -> Iterator[None]:
    """Run an encoder on a device, by default its own, and return it afterwards."""
    original = encoder.shift.device
    encoder.to(device or original)
    try:
        yield
    finally:
        encoder.to(original)


class ScenesDataModule(DrawnScenesDataModule):
    """Images of colored, textured shapes with captions that a grammar can verify.

    Captions describe the two largest objects, the others are distractors. The test also reads
    scenes with color-shape pairs that are held out of training (`novel`).

    Args:
        train: Number of training scenes; each epoch uses each of the five captions of a scene.
        val: Number of validation scenes.
        test: Number of test scenes, and of test scenes with held-out color-shape pairs.
        batches_per_pool: Number of training batches that are sorted by caption length together.
            More than 1 saves some padding, but batch norm then depends on the length of the
            captions in a batch, which harms evaluation.
        num_workers: Worker processes that render scenes; 0 renders them in this process.
        options: Options of `DrawnScenesDataModule`.
    """

    test_splits = ("test", "novel")
    group_size = 2

    def __init__(
        self,
        *,
        train: int = 200_000,
        val: int = 500,
        test: int = 1000,
        batches_per_pool: int = 1,
        num_workers: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(train=train, val=val, test=test, num_workers=num_workers, **options)
        self.batches_per_pool = batches_per_pool
        self.vocabulary = Vocabulary((*SPECIAL_TOKENS, *grammar_words(self.config)))

    @property
    def data_info(self) -> dict[str, Any]:
        """The vocabulary, all words of the grammar; and that captions can be verified."""
        return {"words": list(self.vocabulary.words), "annotations": ["scenes"]}

    def open_dataset(self, split: Split) -> Scenes | SingleCaptionScenes:
        """Return the scenes of a split; those of the training once with each caption."""
        scenes = self.scenes(split)
        return SingleCaptionScenes(scenes) if split == "train" else scenes

    def collate_fn(self, split: Split) -> partial[CaptionBatch]:
        """Return the function that makes a batch of captioned scenes."""
        return partial(collate_captions, vocabulary=self.vocabulary)


class HubCaptionDataModule(CaptionedImagesDataModule):
    """Photos with captions in tables of Hugging Face; otherwise as `CaptionDataModule`.

    A row is a photo with all of its captions: a text, or a list of texts. Photos are read as files
    are, so that a model gets the same input to the bit.

    Args:
        table: The data set; its columns are `image`, `captions` and, if there is one, `id`.
        min_word_freq: Words with fewer occurrences in training captions become unknown words.
        options: Options of `CaptionedImagesDataModule`.
    """

    def __init__(self, table: TableSource, *, min_word_freq: int = 5, **options: Any) -> None:
        self.tables = table.open("captions", "id")
        self.entries = read_tables(self.tables, caption_entries)
        texts = (text for entry in self.entries["train"] for text in entry.captions)
        vocabulary = Vocabulary.from_captions(texts, min_word_freq=min_word_freq)
        super().__init__(vocabulary, **options)
        ids = [
            entry.id
            for table in dict.fromkeys(self.tables.values())
            for entry in caption_entries(table)
        ]
        if self.feature_cache_dir and len(set(ids)) < len(ids):
            raise ValueError("photos of several splits have the same id: name another column as id")

    def open_images(self, split: Split, resize: ResizeSpec) -> CaptionedImages:
        """Return the photos of a split, resized to the input of the encoder."""
        return CaptionedImages(self.entries[split], self.tables[split], resize)

    def examples(self, count: int) -> list[Any]:
        """Return the first validation photos, or of training if there are none."""
        return self.tables.get("validation", self.tables["train"])[:count]
