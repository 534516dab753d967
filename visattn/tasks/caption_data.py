"""Photos with captions as data for training: any of five formats, features computed once."""

from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch.utils.data import DataLoader

from visattn.data.batches import CaptionSample, caption_batch
from visattn.data.caption_files import (
    CaptionEntry,
    check_disjoint,
    in_split,
    of_split,
    read_captions,
    read_split,
)
from visattn.data.caption_formats import Format
from visattn.data.captioned_photos import CaptionedPhotos
from visattn.data.feature_caches import FeatureCache
from visattn.data.framings import Framing
from visattn.data.phrases import read_phrases
from visattn.data.samplers import EachOnce, LengthBuckets
from visattn.data.told_photos import ToldPhotos
from visattn.data.vocabularies import Vocabulary
from visattn.models.captioners import Captioner
from visattn.models.encoders import ImageEncoder
from visattn.tasks.bases import Data, Task

Loader = DataLoader[CaptionSample]
Split = Literal["train", "validation", "test"]
Fit = Literal["crop", "squash", "pad"]
_SCORED: dict[str, Split] = {"validate": "validation", "test": "test"}


class CaptionData(Data):
    """Photos with several captions each, read from the files that people have.

    The vocabulary is counted on the training split alone. With `cache`, what the frozen encoder
    finds in each photo is computed once and kept; a batch then holds features, each photo's once
    for all of its captions.

    Args:
        captions: A Flickr token file, an `image,caption` table, a Karpathy or COCO JSON file, or
            JSON lines.
        photos: Folder of the photos.
        train: A list of the training photos, one name per line; or, where the captions' file says
            itself which split a photo belongs to, the name of the split.
        validation: The same for validation.
        test: The same for the test; the validation photos if left out.
        format: Of the captions' file; recognised if left out.
        fit: How a photo comes into the shape that the encoder takes: its middle (`crop`), all of
            it out of shape (`squash`), or all of it with margins (`pad`).
        cache: Folder for the features of a frozen encoder; none computes them anew each time.
        mirror: Show every second training photo mirrored, its captions' left and right swapped.
        phrases: A file of phrases with their boxes, to score attention by, or to guide it.
        min_count: Words that training captions hold more rarely become unknown.
        max_words: Training captions are cut after so many words.
        batch: Photos per training batch and process; all captions of a photo come with it.
        workers: Processes that read ahead; 0 reads in between.
        seed: Of the order in which photos come.
    """

    def __init__(
        self,
        captions: str,
        photos: str,
        *,
        train: str = "train",
        validation: str = "val",
        test: str | None = None,
        format: Format | None = None,  # noqa: A002 (the name people look for on the command line)
        fit: Fit = "crop",
        cache: str | None = None,
        mirror: bool = False,
        phrases: str | None = None,
        min_count: int = 5,
        max_words: int = 30,
        batch: int = 26,
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(min_count, max_words, batch) < 1:
            raise ValueError(
                "min_count, max_words and batch must be at least 1, "
                f"got {min_count}, {max_words} and {batch}"
            )
        entries = read_captions(captions, format=format)
        names: dict[Split, str] = {
            "train": train,
            "validation": validation,
            "test": test or validation,
        }
        self.entries: dict[Split, list[CaptionEntry]] = {
            split: _split(entries, name) for split, name in names.items()
        }
        for split in _SCORED.values():
            check_disjoint({part: self.entries[part] for part in ("train", split)})
        told = (caption for entry in self.entries["train"] for caption in entry.captions)
        self.vocabulary = Vocabulary.of(told, min_count=min_count)
        self.phrases = read_phrases(phrases) if phrases else {}
        self.folder, self.cache = Path(photos), cache
        self.fit: Fit = fit
        self.mirror, self.max_words, self.batch = mirror, max_words, batch
        self.workers, self.seed = workers, seed
        self.told: dict[Split, ToldPhotos] = {}

    @property
    def data_info(self) -> dict[str, Any]:
        """The vocabulary of the training captions."""
        return {"words": list(self.vocabulary.words)}

    def setup(self, stage: str) -> None:
        """Find the photos, and keep the features of the encoder that is to see them."""
        if self.told:
            return
        task = self.trainer.lightning_module if self.trainer else None
        if not isinstance(task, Task) or not isinstance(task.model, Captioner):
            raise TypeError("photos with captions are for a task that trains a captioner")
        encoder = task.model.encoder
        framing = Framing(encoder.size, fit=self.fit)
        splits: tuple[Split, ...] = ("train", "validation") if stage == "fit" else (_SCORED[stage],)
        shown = [CaptionedPhotos(self.entries[split], self.folder, framing) for split in splits]
        rank_zero_info(self._told_of_words())
        device = self.trainer.strategy.root_device if self.trainer else None
        caches = self._caches(encoder, framing, device) if self.cache else {}
        for split, photos in zip(splits, shown, strict=True):
            self.told[split] = ToldPhotos(
                photos,
                cache=caches.get(split),
                phrases=self.phrases,
                mirror=self.mirror and split == "train",
            )

    def _told_of_words(self) -> str:
        """Return how many words there are, and how many of the validation's are not among them."""
        vocabulary, held_out = self.vocabulary, self.entries["validation"]
        unknown = vocabulary.unknown_share(c for entry in held_out for c in entry.captions)
        return (
            f"vocabulary {vocabulary.hash}: {len(vocabulary):,} words of "
            f"{len(self.entries['train']):,} training photos; {unknown:.1%} of the words that "
            "validation captions hold are unknown"
        )

    def _caches(
        self, encoder: ImageEncoder, framing: Framing, device: torch.device | None
    ) -> dict[Split, FeatureCache]:
        """Return the kept features of each split, after computing those that are missing."""
        everything = [entry for entries in self.entries.values() for entry in entries]
        every = list({entry.id: entry for entry in everything}.values())
        views = ("plain", "mirrored") if self.mirror else ("plain",)
        folder = Path(str(self.cache))
        FeatureCache.prepare(
            folder,
            encoder,
            CaptionedPhotos(every, self.folder, framing),
            ids=[entry.id for entry in every],
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
        order = LengthBuckets(
            len(photos),
            lambda _: 0,
            batch=self.batch,
            pool=1,
            seed=self.seed,
            rank=self.rank,
            world=self.world,
        )
        return DataLoader(
            photos,
            batch_sampler=order,
            collate_fn=partial(caption_batch, vocabulary=self.vocabulary, max_words=self.max_words),
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
        )

    def val_dataloader(self) -> Loader:
        """Return the validation photos, each once."""
        return self._evaluation("validation")

    def test_dataloader(self) -> Loader:
        """Return the test photos, each once."""
        return self._evaluation("test")

    def examples(self, count: int) -> list[Path]:
        """Return the files of the first validation photos."""
        return [self.folder / entry.file for entry in self.entries["validation"][:count]]

    def _evaluation(self, split: Split) -> Loader:
        photos = self.told[split]
        each_once = EachOnce(len(photos), rank=self.rank, world=self.world)
        collate = partial(caption_batch, vocabulary=self.vocabulary)
        return DataLoader(photos, batch_size=64, sampler=each_once, collate_fn=collate)


def _split(entries: list[CaptionEntry], name: str) -> list[CaptionEntry]:
    """Return the entries of a split that is named in the captions' file, or listed in another."""
    if any(entry.split == name for entry in entries):
        return in_split(entries, name)
    if Path(name).is_file():
        return of_split(entries, read_split(name))
    named = sorted({entry.split for entry in entries if entry.split})
    known = f"the captions' file names {', '.join(named)}" if named else "it names no split"
    raise ValueError(
        f"{name} is neither a split that the captions' file names nor a list of photos; {known}"
    )
