"""Places on the photo of the pixels that a processor returns, found by processing test photos."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image
from torch import Tensor

Process = Callable[[Image.Image], Tensor]
"""Returns the pixels of a prompt with this photo."""

_MAX_PERIODS = 48  # of a wave along a side; a ramp of 256 levels tells periods apart
_PERIOD = 16  # pixels, at least, of the photo and of the input
_SHOWN = 0.5  # an element shows the photo if this share of it does; the rest is padding
_SAMPLES = 1 << 16
_MEDIAN = 3.0  # gray levels of 255: rounding
_MEAN = 9.0  # and clipped overshoots of resampling
_NONE, _FULL = np.zeros((1, 1)), np.full((1, 1), 255)


@dataclass(frozen=True, eq=False)
class PixelPlaces:
    """Places of the elements of a processed photo.

    Args:
        points: x and y of each element in pixels of the photo. NaN where it shows none, and for
            the axis that its color channel does not tell.
        shown: Whether the element shows the photo; others are padding.
        wave: The test photo that later ones are mixed with.
        samples: Indices of elements that show the photo.
        processed: Their values in the test photo, as normalized for the model, and without that.
        levels: Values per gray level, for both.
    """

    points: Float[Tensor, "e 2"]
    shown: Bool[Tensor, " e"]
    wave: UInt8[np.ndarray, "_y _x 3"]
    samples: Int[Tensor, " s"]
    processed: tuple[Float[Tensor, " s"], Float[Tensor, " s"]]
    levels: tuple[float, float]


class _TestPhotos:
    """Processes test photos of one size, and compares the shapes of the results."""

    def __init__(self, process: Process, size: tuple[int, int], shape: torch.Size) -> None:
        self.process = process
        self.size = size
        self.shape = shape

    def photo(self, *channels: np.ndarray) -> UInt8[np.ndarray, "y x 3"]:
        """Return a photo whose red, green and blue are rows, columns or single gray levels."""
        levels = [np.broadcast_to(channel, self.size) for channel in channels]
        return np.ascontiguousarray(np.stack(levels, -1).astype(np.uint8))

    def __call__(self, *channels: np.ndarray) -> Float[Tensor, " e"]:
        output = self.process(Image.fromarray(self.photo(*channels)))
        if output.shape != self.shape:
            raise ValueError(
                "the processor must return pixels of one shape for photos of "
                f"{self.size[0]} x {self.size[1]} pixels, got {tuple(self.shape)} and "
                f"{tuple(output.shape)}; if it crops photos by their content, turn that off"
            )
        return output.detach().float().flatten()


def find_pixel_places(
    process: Process, normalized: Process, size: tuple[int, int], shape: torch.Size
) -> PixelPlaces:
    """Return the place of each pixel element on a photo, by processing test photos of its size.

    Two photos of one color each tell which elements show the photo, and by which channel. A ramp
    gives their places roughly, and a wave precisely: resampling lowers its contrast but keeps its
    phase. Red and blue vary along x, green along y; processors that mix the channels get gray
    photos for one axis after the other. `normalized` returns the pixels as the model gets them,
    `process` without that.

    Raises:
        ValueError: If the shape of the pixels depends on the content of the photo.

    Source:
        Places by phase: Srinivasan et al. 1984, doi:10.1364/AO.23.003105.
    """
    probe = _TestPhotos(process, size, shape)
    low, high, shown = _contrast(probe, (_NONE, _FULL, _NONE), (_FULL, _NONE, _FULL))
    change = high - low
    colored = bool((shown & (change > 0)).any()) and bool((shown & (change < 0)).any())
    points = torch.full((2, shape.numel()), torch.nan, device=change.device)
    if not colored:
        low, high, shown = _contrast(probe, (_NONE,) * 3, (_FULL,) * 3)
        change = high - low
    # Green elements read zero of the magenta photo, red and blue ones of the green photo.
    zero = torch.where(change > 0, low, high) if colored else low
    span = torch.where(shown, change.abs() if colored else change, 1.0)
    both = torch.zeros_like(shown, dtype=torch.long)
    axes = [(change < 0).long()] if colored else [both, both + 1]

    def levels(x: np.ndarray, y: np.ndarray) -> list[Float[Tensor, " e"]]:
        """Return the level of each element, from 0 to 1, of photos that vary along x and y."""
        channels = [(x, y, x)] if colored else [(x, x, x), (y, y, y)]
        return [(probe(*rgb) - zero).div_(span) for rgb in channels]

    height, width = size
    ramps = levels(_ramp(width), _ramp(height)[:, None])
    periods = _all_periods(probe, ramps, axes, shown)

    def waves(shift: float) -> tuple[np.ndarray, np.ndarray]:
        x, y = periods.tolist()
        return _wave(width, x, shift), _wave(height, y, shift)[:, None]

    sides = torch.tensor([float(width), float(height)])
    cosines = levels(*waves(0.0))
    sines = levels(*waves(0.25))
    for axis, ramp, cosine, sine in zip(axes, ramps, cosines, sines, strict=True):
        # A side of 640 pixels with 4 periods: a ramp of 0.41 says about 262 pixels, give or take a
        # few gray levels of 2.5 pixels each. The phase says 0.65 of a period, of any. In periods:
        # round(4 x 0.41 - 0.65) + 0.65 = 1.65, which is pixel 264.0.
        turn = torch.atan2(2 * sine - 1, 2 * cosine - 1).div_(2 * math.pi)
        n, length = (values.to(turn)[axis] for values in (periods, sides / periods))
        place = (n * ramp - turn).round_().add_(turn).mul_(length)
        for index in (0, 1):
            torch.where(shown & (axis == index), place, points[index], out=points[index])
    x, y = waves(0.0)
    wave = probe.photo(x, y, x)
    shown_by_axis = [shown & (axis == index) for index, axis in enumerate(axes * (3 - len(axes)))]
    known = cosines[0].mul_(span).add_(zero) if colored else None
    sampled = _sampled(probe, normalized, wave, shown_by_axis, known)
    return PixelPlaces(points.T, shown, wave, *sampled)


def _contrast(
    probe: _TestPhotos, low: tuple[np.ndarray, ...], high: tuple[np.ndarray, ...]
) -> tuple[Float[Tensor, " e"], Float[Tensor, " e"], Bool[Tensor, " e"]]:
    """Return the elements of two photos, and which of them show the photos."""
    first, second = probe(*low), probe(*high)
    change = (second - first).abs()
    return first, second, change > _SHOWN * max(float(change.max()), 1e-9)


def _all_periods(
    probe: _TestPhotos, ramps: list[Tensor], axes: list[Tensor], shown: Bool[Tensor, " e"]
) -> Float[Tensor, "2"]:
    """Return how many periods of a wave fit along both sides of the photo, x before y."""
    low, high = torch.full((2, 3), torch.nan, device=shown.device)
    for ramp, axis in zip(ramps, axes, strict=True):
        group = torch.where(shown, axis, 2)
        low.scatter_reduce_(0, group, ramp.to(low), "amin", include_self=False)
        high.scatter_reduce_(0, group, ramp.to(high), "amax", include_self=False)
    covered = (high - low)[:2].nan_to_num(1.0).clamp(min=1e-3).tolist()
    pairs = zip(probe.size[::-1], covered, strict=True)
    return torch.tensor([_periods(*pair, probe.shape.numel()) for pair in pairs])


def _sampled(
    probe: _TestPhotos,
    normalized: Process,
    wave: np.ndarray,
    shown_by_axis: list[Tensor],
    known: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[float, float]]:
    """Return elements of both axes with their values in the wave, and values per gray level.

    Those that are not normalized may be known.
    """
    generator = torch.Generator().manual_seed(0)
    count = min(_SAMPLES // 2, *(int(shown.count_nonzero()) for shown in shown_by_axis))
    kept: list[Tensor] = []
    for shown in shown_by_axis:
        indices = shown.nonzero()[:, 0].cpu()
        kept.append(indices[torch.randint(max(len(indices), 1), (count,), generator=generator)])
    samples = torch.cat(kept)
    photo = Image.fromarray(wave)
    plain = probe.process(photo).detach().float().flatten() if known is None else known
    both = [v.cpu()[samples] for v in (normalized(photo).detach().float().flatten(), plain)]
    scales = [max(float(v.max() - v.min()), 1e-9) / 255 if len(v) else 1.0 for v in both]
    return samples, (both[0], both[1]), (scales[0], scales[1])


def _ramp(side: int) -> UInt8[np.ndarray, " n"]:
    return np.rint(255 * (np.arange(side) + 0.5) / side).astype(np.uint8)


def _wave(side: int, periods: float, shift: float) -> UInt8[np.ndarray, " n"]:
    """Return gray levels of a cosine along a side, shifted by a share of its period."""
    turns = periods * (np.arange(side) + 0.5) / side - shift
    return np.rint(127.5 + 127.5 * np.cos(2 * np.pi * turns)).astype(np.uint8)


def _periods(side: int, covered: float, elements: int) -> float:
    """Return how many periods of a wave fit along a side, so that no pixel blurs them."""
    pixels = math.sqrt(elements / 3) / covered  # of the input, if it showed the whole side
    return max(1.0, min(_MAX_PERIODS, side / _PERIOD, pixels / _PERIOD, 16 / covered))


def check_places(
    places: PixelPlaces,
    photo: UInt8[np.ndarray, "_y _x 3"],
    pixels: Float[Tensor, " *shape"],
    *,
    process: Process,
    normalized: Process,
) -> None:
    """Refuse a photo whose pixels lie elsewhere than those of the test photos.

    A processor that treats every pixel by its place alone is linear: the mean of photo and wave
    must give the mean of both results. If it crops or moves photos by their content, the wave
    arrives elsewhere.

    Raises:
        ValueError: If the places depend on the content of the photo.
    """
    if not len(places.samples):
        return
    mixed = Image.fromarray(((photo.astype(np.uint16) + places.wave + 1) // 2).astype(np.uint8))

    def agrees(index: int, single: Tensor, both: Tensor) -> bool:
        if single.shape != both.shape:
            return False
        expected = (single.flatten()[places.samples] + places.processed[index]) / 2
        error = (both.flatten()[places.samples] - expected).abs() / places.levels[index]
        halves = error.chunk(2)  # green varies along y, the others along x
        return all(float(e.median()) <= _MEDIAN and float(e.mean()) <= _MEAN for e in halves)

    if agrees(0, pixels.detach().float().cpu(), normalized(mixed).detach().float().cpu()):
        return
    single = process(Image.fromarray(photo)).detach().float().cpu()  # normalized by photo, maybe
    if not agrees(1, single, process(mixed).detach().float().cpu()):
        raise ValueError(
            "the processor places photos by their content, for example because it crops margins, "
            "so that the pixels of this photo lie elsewhere than those of the test photos of its "
            "size; turn that off in the image processor (do_crop_margin=False in Nougat), or crop "
            "the photo yourself"
        )
