"""Speed of reading photos for training, compared with decoding all pixels first."""

import io
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from benchmarks.transformer_speeds import SpeedFigure
from visattn.data.augment.images import PerImageTransform, RandomResizedCrop
from visattn.images.reader import read_image

PARTS = {"small": ((375, 500), 40, 1.6), "large": ((3000, 4000), 2, 3.0)}
"""Height and width of the photos, crops of a photo per round, and the target of the speedup."""


def loader_figures(parts: Sequence[str], *, rounds: int) -> Iterator[SpeedFigure]:
    """Time random resized crops of JPEG photos at 224 pixels, in CPU seconds of this thread.

    Args:
        parts: Of `PARTS`.
        rounds: Timed rounds.

    Raises:
        AssertionError: If the crops differ where DCT scaling is not used.
    """
    for part in parts:
        size, count, target = PARTS[part]
        photo = synthetic_photo(size)
        uniforms = torch.rand(count, 1, dtype=torch.float64)
        crop, plain = RandomResizedCrop(size=224), PerImageTransform(v2.RandomResizedCrop(224))
        runs = {"plain": partial(plain_crop, plain), "ours": crop.read}
        for uniform in uniforms[:4]:
            assert torch.equal(  # noqa: S101
                crop.read(photo, uniform, dct_scaling=False), plain_crop(plain, photo, uniform)
            )
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(rounds):
            for name in list(runs) if turn % 2 else reversed(runs):
                seconds[name].append(cpu_seconds(runs[name], photo, uniforms))
        ratios = sorted(
            slow / fast for slow, fast in zip(seconds["plain"], seconds["ours"], strict=True)
        )
        amounts = {name: float(np.median(times)) / count for name, times in seconds.items()}
        yield SpeedFigure(
            f"crop of a JPEG of {size[1]} x {size[0]} at 224, CPU seconds per photo; plain / ours",
            amounts, float(np.median(ratios)), ratios[0], ratios[-1],
            f"target: {target:g} or more",
        )  # fmt: skip


def synthetic_photo(size: tuple[int, int]) -> bytes:
    """Return a JPEG with shapes of all sizes and noise, about as long as a photo."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (size[0] // 8, size[1] // 8, 3), dtype=np.uint8)
    smooth = np.asarray(
        Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    )
    noisy = smooth.astype(float) + random.normal(0, 6, smooth.shape)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def plain_crop(crop: PerImageTransform, photo: bytes, uniform: Tensor) -> Tensor:
    """Return the crop of a photo of which all pixels are decoded and copied."""
    pixels = np.ascontiguousarray(read_image(photo).pixels.transpose(2, 0, 1))
    return crop(torch.from_numpy(pixels)[None], uniform[None])[0]


def cpu_seconds(run: Callable[[bytes, Tensor], Tensor], photo: bytes, uniforms: Tensor) -> float:
    """Return the CPU seconds of a crop for each random number."""
    begin = time.thread_time()
    for uniform in uniforms:
        run(photo, uniform)
    return time.thread_time() - begin
