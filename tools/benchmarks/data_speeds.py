"""Throughput of photos with captions: from loose files, from shards, as cached features."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.clocks import in_turn
from benchmarks.data_memories import INDEX, RESIZE, SOURCES, data_memory, open_photos
from benchmarks.transformer_speeds import SpeedFigure
from visattn.data.captions.batch import Vocabulary, collate_captions
from visattn.data.captions.dataset import CaptionedPhotos
from visattn.data.captions.files import read_captions
from visattn.data.feature_cache import FeatureCache
from visattn.data.loading.loader import StatefulDataLoader
from visattn.data.loading.samplers import EpochIndexSampler, LengthBucketBatchSampler
from visattn.data.shards.format import (
    ROW,
    ShardInfo,
    ShardMetadata,
    SplitMetadata,
    file_sha256,
    index_name,
    shard_name,
)
from visattn.data.shards.reader import ShardSamples
from visattn.data.shards.sources import caption_plan
from visattn.data.shards.writer import write_shards
from visattn.images.reader import find_images
from visattn.models.backbones.timm_encoder import TimmEncoder

PARTS = ("reading", "memory", "opening")
WORKERS = (0, 1, 2)
BATCH = 32
MILLION, TARS = 1_000_000, 1000
CAPTION = "A dog runs over the grass behind a red ball ."


def data_figures(
    parts: Sequence[str], *, rounds: int, samples: int, photos: Path | None
) -> Iterator[SpeedFigure]:
    """Measure one part after the other.

    Args:
        parts: Of `PARTS`.
        rounds: Timed epochs, for each source and number of workers.
        samples: Photos per epoch.
        photos: Folder of photos; synthetic photos if None.

    Raises:
        AssertionError: If two sources give different photos.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if {"reading", "memory"} & set(parts):
            prepare(folder, samples, photos)
        if "reading" in parts:
            yield from measure_reading(folder, rounds)
        if "memory" in parts:
            memory = {source: data_memory(source, folder) for source in SOURCES}
            measured = {source: amount for source, amount in memory.items() if amount is not None}
            if len(measured) == len(SOURCES):
                ratio = measured["loose"] / measured["shards"]
                title = f"{samples} photos, MB that an epoch adds at most; loose / shards"
                yield SpeedFigure(title, measured, ratio, ratio, ratio, "no floor")
    if "opening" in parts:
        with tempfile.TemporaryDirectory() as name:
            yield from measure_opening(Path(name), rounds)


def prepare(folder: Path, samples: int, photos: Path | None) -> None:
    """Write the same photos for all three sources."""
    (folder / "photos").mkdir()
    random = np.random.default_rng(0)
    paths = find_images(photos)[:samples] if photos else [None] * samples
    for number, path in enumerate(paths):
        target = folder / "photos" / f"{number}.jpg"
        if path is None:
            pixels = random.integers(0, 256, (28, 35, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((500, 375)).save(target, quality=90)
        else:
            target.write_bytes(path.read_bytes())
    names = [f"{number}.jpg" for number in range(len(paths))]
    lines = (json.dumps({"file": name, "captions": [CAPTION] * 5}) for name in names)
    (folder / "captions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    entries = read_captions(folder / "captions.jsonl")
    write_shards(folder / "shards", caption_plan({"train": entries}, folder / "photos"))
    FeatureCache.prepare(
        folder / "features",
        TimmEncoder("test_resnet", img_size=RESIZE.size, stage=[4]),
        CaptionedPhotos(entries, folder / "photos", RESIZE),
        ids=names,
        resize=RESIZE,
    )


def measure_reading(folder: Path, rounds: int) -> Iterator[SpeedFigure]:
    """Time epochs of training batches, in turn, with none, one and two workers."""
    for workers in WORKERS:
        loaders = {source: build_loader(source, folder, workers) for source in SOURCES}
        for ours, loose in zip(loaders["shards"], loaders["loose"], strict=True):
            torch.testing.assert_close(ours.images, loose.images, rtol=0, atol=0)
        count = len(loaders["shards"]) * BATCH
        runs: dict[str, Callable[[], object]] = {
            {"shards": "ours"}.get(source, source): partial(iterate, loader)
            for source, loader in loaders.items()
        }
        timings = in_turn(runs, rounds)
        speeds = {source: count / timing.seconds for source, timing in timings.items()}
        title = f"{count} photos, {workers} workers, photos/s; loose / ours in seconds"
        yield SpeedFigure(title, speeds, *timings["loose"][1:], "target: at least 1")


def build_loader(source: str, folder: Path, workers: int) -> StatefulDataLoader:
    """Return the batches of an epoch, loaded as by the data modules."""
    photos = open_photos(source, folder)
    order = LengthBucketBatchSampler(len(photos), lambda _: 0, batch_size=BATCH, batches_per_pool=1)
    collate = partial(collate_captions, vocabulary=Vocabulary.from_captions([CAPTION]))
    sampler = EpochIndexSampler(order)
    return StatefulDataLoader(photos, sampler, collate_fn=collate, num_workers=workers)


def iterate(batches: StatefulDataLoader) -> None:
    """Load all batches of an epoch."""
    for _ in batches:
        pass


def measure_opening(folder: Path, rounds: int) -> Iterator[SpeedFigure]:
    """Time opening an index of a million samples, in sparse tar files of a terabyte."""
    make_index(folder)
    seconds = in_turn({"ours": lambda: ShardSamples(folder, "train").labels}, rounds)[
        "ours"
    ].seconds
    title = f"{MILLION:,} samples in {TARS:,} tars opened"
    yield SpeedFigure(
        f"{title}, s", {"ours": seconds}, seconds, seconds, seconds, "target: seconds"
    )
    memory = data_memory(INDEX, folder)
    if memory is not None:
        size = (folder / index_name("train")).stat().st_size / 2**20
        ratio = memory / size
        amounts = {"ours": memory, "index": size}
        target = "independent of the size of the images"
        yield SpeedFigure(
            f"{title}, MB; to the index on disk", amounts, ratio, ratio, ratio, target
        )


def make_index(folder: Path) -> None:
    """Write the index of a large data set, and sparse tar files of its size."""
    rows = np.zeros(MILLION, ROW)
    rows["shard"] = np.arange(MILLION) // (MILLION // TARS)
    np.save(folder / index_name("train"), rows)
    for number in range(TARS):
        with (folder / shard_name("train", number)).open("wb") as file:
            file.truncate(2**30)
    shards = tuple(ShardMetadata(MILLION // TARS, 2**30, "") for _ in range(TARS))
    split = SplitMetadata(MILLION, file_sha256(folder / index_name("train")), shards)
    ShardInfo("classes", "", {"train": split}, ("one",)).write(folder)
