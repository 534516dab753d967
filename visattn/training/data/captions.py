"""Photos with captions as data for training: any of five formats, features computed once."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import ConcatDataset, DataLoader

from visattn.data.captions.batch import CaptionSample, caption_batch
from visattn.data.captions.dataset import CaptionDataset
from visattn.data.captions.files import CaptionEntry, PerSplit, Split, check_ids, per_split
from visattn.data.captions.formats import Format
from visattn.data.captions.images import CaptionedImages, CaptionedPhotos
from visattn.data.captions.vocabulary import Vocabulary
from visattn.data.feature_cache.cache import FeatureCache
from visattn.data.feature_cache.request import Photos
from visattn.data.images.resize import ResizeSpec
from visattn.data.loading.fallback import OnError, ReadFallback
from visattn.data.loading.samplers import EpochIndexSampler, PairsOnce
from visattn.data.loading.stateful_loader import StatefulDataLoader
from visattn.data.phrases.phrases import read_phrases
from visattn.models.captioner import Captioner
from visattn.models.encoder import ImageEncoder
from visattn.training.base import Task
from visattn.training.data.fallback import ReadFallbackDataModule

Loader = DataLoader[CaptionSample]
Fit = Literal["crop", "squash", "pad"]
_SCORED: dict[str, Split] = {"validate": "validation", "test": "test"}


class CaptionedImagesDataModule(ReadFallbackDataModule):
    """Photos with several captions each, wherever they lie.

    Args:
        vocabulary: Counted on the training split alone.
        fit: How a photo comes into the shape that the encoder takes.
        cache: Folder for the features of a frozen encoder; none computes them anew each time.
        mirror: Show every second training photo mirrored, its captions' left and right swapped.
        phrases: A file of phrases with their boxes, to score attention by, or to guide it.
        max_words: Training captions are cut after so many words.
        batch: Photos per training batch and process; all captions of a photo come with it.
        workers: Processes that read ahead; 0 reads in between.
        seed: Of the order in which photos come, and of which are mirrored.
        on_error: A training photo that cannot be read stops the run (`raise`), or another one
            stands in for it (`substitute`).
    """

    entries: Mapping[Split, Sequence[CaptionEntry]]
    """What is said of the photos of each split."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        fit: Fit,
        cache: str | None,
        mirror: bool,
        phrases: str | None,
        max_words: int,
        batch: int,
        workers: int,
        seed: int,
        on_error: OnError = "raise",
    ) -> None:
        super().__init__()
        if min(max_words, batch) < 1:
            raise ValueError(f"max_words and batch must be at least 1, got {max_words} and {batch}")
        if on_error == "substitute" and cache:
            raise ValueError(
                "with a cache every photo is read once, before training: on_error must be raise; "
                "take out the photos that cannot be read, or leave out the cache"
            )
        self.on_error: OnError = on_error
        self.vocabulary = vocabulary
        self.phrases = read_phrases(phrases) if phrases else {}
        self.cache, self.mirror, self.max_words = cache, mirror, max_words
        self.fit: Fit = fit
        self.batch, self.workers, self.seed = batch, workers, seed
        self.told: dict[Split, CaptionDataset] = {}

    @abstractmethod
    def shown(self, split: Split, framing: ResizeSpec) -> CaptionedImages:
        """Return the photos of a split, as an encoder is to see them."""

    @abstractmethod
    def everything(self, framing: ResizeSpec) -> tuple[list[str], Photos]:
        """Return the photos of all splits, each once, and the name of each."""

    @abstractmethod
    def unknown_share(self) -> float:
        """Return which share of the words of validation captions is unknown."""

    def training_photos(self) -> int:
        """Return how many photos there are to train on."""
        return len(self.entries["train"])

    @property
    def data_info(self) -> dict[str, Any]:
        """The vocabulary of the training captions; and that there are captions to compare with."""
        return {"words": list(self.vocabulary.words), "known": ["references"]}

    @property
    def encoder(self) -> ImageEncoder:
        """What is to see the photos.

        Raises:
            TypeError: If no captioner is trained.
        """
        task = self.trainer.lightning_module if self.trainer else None
        if not isinstance(task, Task) or not isinstance(task.model, Captioner):
            raise TypeError("photos with captions are for a task that trains a captioner")
        return task.model.encoder

    def setup(self, stage: str) -> None:
        """Find the photos, and keep the features of the encoder that is to see them."""
        if self.told:
            return
        encoder = self.encoder
        framing = ResizeSpec(encoder.size, fit=self.fit)
        needed: tuple[Split, ...] = ("train", "validation") if stage == "fit" else (_SCORED[stage],)
        splits: list[Split] = [split for split in needed if split in self.entries]
        if not splits:
            raise ValueError(f"the data name no {needed[0]} photos, and none for validation")
        shown = [self.shown(split, framing) for split in splits]
        rank_zero_info(self._told_of_words())
        device = self.trainer.strategy.root_device if self.trainer else None
        caches = self._caches(encoder, framing, device) if self.cache else {}
        for split, photos in zip(splits, shown, strict=True):
            self.told[split] = CaptionDataset(
                photos,
                cache=caches.get(split),
                phrases=self.phrases,
                mirror=self.mirror and split == "train",
                seed=self.seed,
                substitutes=self._stand_ins(photos) if split == "train" else None,
            )

    def _stand_ins(self, photos: CaptionedImages) -> ReadFallback | None:
        return self.stand_ins(len(photos), lambda number: photos.entries[number].file)

    def _told_of_words(self) -> str:
        """Return how many words there are, and how many of the validation's are not among them."""
        words = f"vocabulary {self.vocabulary.hash}: {len(self.vocabulary):,} words"
        counted = f"{words} of {self.training_photos():,} training photos"
        if "validation" not in self.entries:
            return f"{counted}; there are no validation photos"
        share = f"{self.unknown_share():.1%}"
        return f"{counted}; {share} of the words that validation captions hold are unknown"

    def _caches(
        self, encoder: ImageEncoder, framing: ResizeSpec, device: torch.device | None
    ) -> dict[Split, FeatureCache]:
        """Return the kept features of each split, after computing those that are missing."""
        ids, photos = self.everything(framing)
        views = ("plain", "mirrored") if self.mirror else ("plain",)
        folder = Path(str(self.cache))
        FeatureCache.prepare(
            folder,
            encoder,
            photos,
            ids=ids,
            framing=framing,
            views=views,
            device=device,
            told=rank_zero_info,
        )
        caches: dict[Split, FeatureCache] = {}
        for split, entries in self.entries.items():
            ids = [entry.id for entry in entries]
            caches[split] = FeatureCache(folder, ids=ids, views=views)
        return caches

    def train_dataloader(self) -> Loader:
        """Return random training photos, each with all of its captions."""
        photos = self.told["train"]
        return StatefulDataLoader(
            photos,
            EpochIndexSampler(self.order(len(photos))),
            collate=partial(caption_batch, vocabulary=self.vocabulary, max_words=self.max_words),
            workers=self.workers,
        )

    def val_dataloader(self) -> Loader | list[Loader]:
        """Return the validation photos, each once; nothing if there are none."""
        return self._evaluation("validation") if "validation" in self.told else []

    def test_dataloader(self) -> Loader:
        """Return the test photos, each once."""
        return self._evaluation("test")

    def _evaluation(self, split: Split) -> Loader:
        photos = self.told[split]
        pairs = PairsOnce(len(photos), rank=self.rank, world=self.world)
        collate = partial(caption_batch, vocabulary=self.vocabulary)
        return DataLoader(photos, batch_size=64, sampler=pairs, collate_fn=collate)


class CaptionDataModule(CaptionedImagesDataModule):
    """Photos with several captions each, read from the files that people have.

    The vocabulary is counted on the training split alone. With `cache`, what the frozen encoder
    finds in each photo is computed once and kept; a batch then holds features, each photo's once
    for all of its captions.

    Args:
        captions: A Flickr token file, an `image,caption` table, a Karpathy or COCO JSON file, or
            JSON lines. Or one for each split, as COCO comes: `{train: captions_train2017.json,
            validation: captions_val2017.json}`, and `test` if there is one.
        photos: Folder of the photos. Or one for each split: `{train: train2017, validation:
            val2017}`.
        train: A list of the training photos, one name per line; or, where the captions' file says
            itself which split a photo belongs to, the name of the split. Not needed where each
            split has a file of its own.
        validation: The same for validation; none trains without validation.
        test: The same for the test; the validation photos if left out.
        format: Of the captions' files; recognized if left out.
        fit: How a photo comes into the shape that the encoder takes: its middle (`crop`), all of
            it out of shape (`squash`), or all of it with margins (`pad`).
        cache: Folder for the features of a frozen encoder; none computes them anew each time.
        mirror: Show every second training photo mirrored, its captions' left and right swapped.
        phrases: A file of phrases with their boxes, to score attention by, or to guide it.
        on_error: A training photo that cannot be read stops the run (`raise`), or another one
            stands in for it, always the same, which is counted and said (`substitute`).
        min_count: Words that training captions hold more rarely become unknown.
        max_words: Training captions are cut after so many words.
        batch: Photos per training batch and process; all captions of a photo come with it.
        workers: Processes that read ahead; 0 reads in between.
        seed: Of the order in which photos come, and of which are mirrored.
    """

    def __init__(
        self,
        captions: PerSplit,
        photos: PerSplit,
        *,
        train: str = "train",
        validation: str | None = "val",
        test: str | None = None,
        format: Format | None = None,  # noqa: A002 (the name people look for on the command line)
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
        self.splits = per_split(captions, photos, (train, validation, test), format=format)
        if cache:
            check_ids(self.splits)
        told = (caption for entry in self.splits["train"].entries for caption in entry.captions)
        super().__init__(
            Vocabulary.of(told, min_count=min_count),
            fit=fit,
            cache=cache,
            mirror=mirror,
            phrases=phrases,
            max_words=max_words,
            batch=batch,
            workers=workers,
            seed=seed,
            on_error=on_error,
        )
        self.entries = {split: found.entries for split, found in self.splits.items()}

    def shown(self, split: Split, framing: ResizeSpec) -> CaptionedPhotos:
        """Return the photos of a split, as an encoder is to see them."""
        return CaptionedPhotos(*self.splits[split], framing)

    def everything(self, framing: ResizeSpec) -> tuple[list[str], Photos]:
        """Return the photos of all splits, each once, and the name of each."""
        names: dict[str, None] = {}
        parts: list[CaptionedPhotos] = []
        for entries, folder in self.splits.values():
            new = [entry for entry in entries if entry.id not in names]
            names |= dict.fromkeys(entry.id for entry in new)
            parts += [CaptionedPhotos(new, folder, framing)] if new else []
        return list(names), ConcatDataset(parts)

    def unknown_share(self) -> float:
        """Return which share of the words of validation captions is unknown."""
        held_out = self.entries["validation"]
        return self.vocabulary.unknown_share(c for entry in held_out for c in entry.captions)

    def examples(self, count: int) -> list[Path]:
        """Return the files of the first validation photos, or of training where there are none."""
        entries, folder = self.splits.get("validation", self.splits["train"])
        return [folder / entry.file for entry in entries[:count]]
