"""How fast photos with captions come: from loose files, from shards, as kept features."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.clocks import in_turn
from benchmarks.data_memories import FRAMING, INDEX, WAYS, data_memory, told_photos
from benchmarks.transformer_speeds import Figure
from visattn.data.captions.batch import caption_batch
from visattn.data.captions.files import read_captions
from visattn.data.captions.images import CaptionedPhotos
from visattn.data.captions.vocabulary import Vocabulary
from visattn.data.feature_cache.cache import FeatureCache
from visattn.data.images.reader import find_images
from visattn.data.loading.samplers import EpochIndexSampler, LengthBucketBatchSampler
from visattn.data.loading.stateful_loader import StatefulDataLoader
from visattn.data.shards.format import (
    ROW,
    ShardFacts,
    ShardInfo,
    SplitFacts,
    hash_of,
    index_name,
    shard_name,
)
from visattn.data.shards.reader import ShardSamples
from visattn.data.shards.sources import caption_plan
from visattn.data.shards.writer import write_shards
from visattn.models.backbones.timm_encoder import TimmEncoder

PARTS = ("reading", "memory", "opening")
WORKERS = (0, 1, 2)
BATCH = 32
MILLION, TARS = 1_000_000, 1000
CAPTION = "A dog runs over the grass behind a red ball ."


def data_figures(
    parts: Sequence[str], *, rounds: int, samples: int, photos: Path | None
) -> Iterator[Figure]:
    """Measure one part after the other.

    Args:
        parts: Of `PARTS`.
        rounds: Epochs that are timed, for each way and number of workers.
        samples: Photos of an epoch.
        photos: Folder from which they are taken; drawn if left out.

    Raises:
        AssertionError: If two ways do not give the same.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if {"reading", "memory"} & set(parts):
            prepare(folder, samples, photos)
        if "reading" in parts:
            yield from readings(folder, rounds)
        if "memory" in parts:
            held = {way: data_memory(way, folder) for way in WAYS}
            known = {way: amount for way, amount in held.items() if amount is not None}
            if len(known) == len(WAYS):
                ratio = known["loose"] / known["shards"]
                title = f"{samples} photos, MB that an epoch adds at most; loose / shards"
                yield Figure(title, known, ratio, ratio, ratio, "no floor")
    if "opening" in parts:
        with tempfile.TemporaryDirectory() as name:
            yield from openings(Path(name), rounds)


def prepare(folder: Path, samples: int, photos: Path | None) -> None:
    """Lay out the same photos in all three ways."""
    (folder / "photos").mkdir()
    random = np.random.default_rng(0)
    found = find_images(photos)[:samples] if photos else [None] * samples
    for number, path in enumerate(found):
        target = folder / "photos" / f"{number}.jpg"
        if path is None:
            rough = random.integers(0, 256, (28, 35, 3), dtype=np.uint8)
            Image.fromarray(rough).resize((500, 375)).save(target, quality=90)
        else:
            target.write_bytes(path.read_bytes())
    names = [f"{number}.jpg" for number in range(len(found))]
    told = (json.dumps({"file": name, "captions": [CAPTION] * 5}) for name in names)
    (folder / "captions.jsonl").write_text("\n".join(told), encoding="utf-8")
    entries = read_captions(folder / "captions.jsonl")
    write_shards(folder / "shards", caption_plan({"train": entries}, folder / "photos"))
    FeatureCache.prepare(
        folder / "features",
        TimmEncoder("test_resnet", size=FRAMING.size, stage=[4]),
        CaptionedPhotos(entries, folder / "photos", FRAMING),
        ids=names,
        framing=FRAMING,
    )


def readings(folder: Path, rounds: int) -> Iterator[Figure]:
    """Time epochs of training batches, in turn, with none, one and two workers."""
    for workers in WORKERS:
        loaders = {way: loader(way, folder, workers) for way in WAYS}
        for ours, loose in zip(loaders["shards"], loaders["loose"], strict=True):
            torch.testing.assert_close(ours.images, loose.images, rtol=0, atol=0)
        count = len(loaders["shards"]) * BATCH
        ways: dict[str, Callable[[], object]] = {
            {"shards": "ours"}.get(way, way): partial(spend, one) for way, one in loaders.items()
        }
        timings = in_turn(ways, rounds)
        speeds = {way: count / timing.seconds for way, timing in timings.items()}
        title = f"{count} photos, {workers} workers, photos/s; loose / ours in seconds"
        yield Figure(title, speeds, *timings["loose"][1:], "at least 1 is meant")


def loader(way: str, folder: Path, workers: int) -> StatefulDataLoader:
    """Return the batches of an epoch, as the data modules give them."""
    photos = told_photos(way, folder)
    order = LengthBucketBatchSampler(len(photos), lambda _: 0, batch=BATCH, pool=1)
    collate = partial(caption_batch, vocabulary=Vocabulary.of([CAPTION]))
    return StatefulDataLoader(photos, EpochIndexSampler(order), collate=collate, workers=workers)


def spend(batches: StatefulDataLoader) -> None:
    """Take all batches of an epoch."""
    for _ in batches:
        pass


def openings(folder: Path, rounds: int) -> Iterator[Figure]:
    """Time opening an index of a million samples, in tars of a terabyte that hold nothing."""
    make_index(folder)
    opened = in_turn({"ours": lambda: ShardSamples(folder, "train").labels}, rounds)["ours"].seconds
    title = f"{MILLION:,} samples in {TARS:,} tars opened"
    yield Figure(f"{title}, s", {"ours": opened}, opened, opened, opened, "seconds are meant")
    held = data_memory(INDEX, folder)
    if held is not None:
        size = (folder / index_name("train")).stat().st_size / 2**20
        ratio = held / size
        amounts = {"ours": held, "index": size}
        meant = "does not grow with the images"
        yield Figure(f"{title}, MB; to the index on disk", amounts, ratio, ratio, ratio, meant)


def make_index(folder: Path) -> None:
    """Write the index of a large set, and tars that are as long but hold no byte."""
    rows = np.zeros(MILLION, ROW)
    rows["shard"] = np.arange(MILLION) // (MILLION // TARS)
    np.save(folder / index_name("train"), rows)
    for number in range(TARS):
        with (folder / shard_name("train", number)).open("wb") as file:
            file.truncate(2**30)
    facts = tuple(ShardFacts(MILLION // TARS, 2**30, "") for _ in range(TARS))
    split = SplitFacts(MILLION, hash_of(folder / index_name("train")), facts)
    ShardInfo("classes", "", {"train": split}, ("one",)).write(folder)
