"""Speed of `visattn overlay` over a folder of photos, with threads and with one."""

import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import visattn
from benchmarks.loader_speeds import synthetic_photo
from benchmarks.transformer_speeds import Figure
from visattn.cli import main
from visattn.commands.options import images
from visattn.models.resnet.attention_resnet import AttentionResNet

SIZE = (375, 500)


def bulk_figures(*, rounds: int, photos: int) -> Iterator[Figure]:
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
        yield Figure(
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
