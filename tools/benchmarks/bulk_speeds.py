"""Speed of `visattn overlay` over a folder of photos, with threads and with one."""

import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import visattn
from benchmarks.loader_speeds import synthetic_photo
from benchmarks.transformer_speeds import SpeedFigure
from visattn.cli import main
from visattn.commands import files as images
from visattn.commands.index import FolderIndex, card_image
from visattn.commands.records import Origin, Part, ResultFolder
from visattn.models.resnet import AttentionResNet
from visattn.results.cards import Card

PARTS = ("overlays", "index")
SIZE = (375, 500)


def bulk_figures(parts: Sequence[str], *, rounds: int, photos: int) -> Iterator[SpeedFigure]:
    """Measure one part after the other.

    Args:
        parts: Any of `PARTS`.
        rounds: Timed rounds.
        photos: Number of photos.
    """
    if "overlays" in parts:
        yield overlay_figure(rounds=rounds, photos=photos)
    if "index" in parts:
        yield index_figure(photos=photos)


def index_figure(*, photos: int) -> SpeedFigure:
    """Measure the index of a folder, written once, and its largest page."""
    photo = Image.open(io.BytesIO(synthetic_photo(SIZE))).convert("RGB")
    thumbnail = card_image(np.asarray(photo))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ResultFolder(folder) as results:
            for number in range(photos):
                stem = f"{number:06}"
                card = Card(stem, f"{stem}.jpg", f"photo {number}", thumbnail)
                part = Part(stem, {}, {f"{stem}.jpg": b""}, card)
                results.write(part, Origin("overlay", f"{stem}.jpg", {}, {}))
        begin = time.process_time()
        FolderIndex(folder, "Attention", "overlay", {}.get).write([])
        seconds = time.process_time() - begin
        sizes = [page.stat().st_size for page in folder.glob("*.html")]
    amounts = {"CPU seconds": seconds, "pages": len(sizes), "largest, MB": max(sizes) / 1e6}
    return SpeedFigure(f"index of {photos} photos", amounts, 0, 0, 0, "target: pages under 5 MB")


def overlay_figure(*, rounds: int, photos: int) -> SpeedFigure:
    """Time Grad-CAM overlays of photos with one thread for images and with one per core.

    Args:
        rounds: Timed rounds.
        photos: Number of photos.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        for index in range(photos):
            (folder / "in" / f"{index:05}.jpg").write_bytes(synthetic_photo(SIZE))
        torch.manual_seed(0)
        # A small network: the time is that of reading, drawing and writing.
        model = AttentionResNet(("ant", "bee"), depth=8, stem_width=4, img_size=(64, 64))
        visattn.save(model, folder / "model.safetensors")
        counts = {"one thread": 1, "threads": images.thread_count()}
        seconds: dict[str, list[float]] = {name: [] for name in counts}
        for turn in range(rounds):
            for title in list(counts) if turn % 2 else reversed(counts):
                seconds[title].append(
                    time_overlay(folder, folder / f"{title}{turn}", counts[title])
                )
        ratios = sorted(a / b for a, b in zip(*seconds.values(), strict=True))
        amounts = {title: statistics.median(times) for title, times in seconds.items()}
        return SpeedFigure(
            f"overlay of {photos} photos of {SIZE[1]} x {SIZE[0]}, seconds; one thread / threads",
            amounts, statistics.median(ratios), ratios[0], ratios[-1], "target: 1.7 on two cores",
        )  # fmt: skip


def time_overlay(folder: Path, out: Path, num_threads: int) -> float:
    """Return the seconds of a run with a number of threads for images."""
    command = ["overlay", str(folder / "in"), "--model", str(folder / "model.safetensors")]
    count, images.thread_count = images.thread_count, lambda: num_threads
    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main([*command, "--out", str(out), "--method", "gradcam"])
    images.thread_count = count
    return time.perf_counter() - begin
