"""Places on the photo of the pixels that a processor returns, found by processing test photos."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from PIL import Image
from torch import Tensor

Process = Callable[[Sequence[Image.Image]], Tensor]
"""Returns the pixels of a prompt with these images."""

_MAX_PERIODS = 48  # of a wave along a side; a ramp of 256 levels tells periods apart
_PERIOD = 16  # pixels, at least, of the photo and of the input
_SHOWN = 0.5  # an element shows the photo if this share of it does; the rest is padding
_SAMPLES = 1 << 16
_MEDIAN = 3.0  # gray levels of 255: rounding
_MEAN = 9.0  # and clipped overshoots of resampling
_BIT = 0.25  # largest distance of a level from black or white, which tell images apart

_Pattern = Callable[[int], np.ndarray]
"""Gray levels of the image with this number, along x, along y, or of all its pixels."""


@dataclass(frozen=True, eq=False)
class PixelPlaces:
    """Places of the elements of processed images: one photo, several, or the frames of a video.

    Args:
        points: x and y of each element in pixels of its image. NaN where it shows none, and for
            the axis that its color channel does not tell.
        shown: Whether the element shows an image; others are padding.
        numbers: Number of the image that each element shows; -1 for padding.
        waves: The test images that later ones are mixed with.
        samples: Indices of elements that show an image.
        processed: Their values in the test images, as normalized for the model, and without that.
        levels: Values per gray level, for both.
    """

    points: Float[Tensor, "e 2"]
    shown: Bool[Tensor, " e"]
    numbers: Int[Tensor, " e"]
    waves: tuple[UInt8[np.ndarray, "_y _x 3"], ...]
    samples: Int[Tensor, " s"]
    processed: tuple[Float[Tensor, " s"], Float[Tensor, " s"]]
    levels: tuple[float, float]


class _TestPhotos:
    """Processes test images of the sizes of a prompt, and compares the shapes of the results."""

    def __init__(
        self, process: Process, sizes: Sequence[tuple[int, int]], shape: torch.Size
    ) -> None:
        self.process = process
        self.sizes = sizes
        self.shape = shape

    def photos(self, red: _Pattern, green: _Pattern, blue: _Pattern) -> list[np.ndarray]:
        """Return images of gray levels that are given per channel: rows, columns or levels."""
        photos: list[np.ndarray] = []
        for number, size in enumerate(self.sizes):
            channels = [np.broadcast_to(levels(number), size) for levels in (red, green, blue)]
            photos.append(np.ascontiguousarray(np.stack(channels, -1).astype(np.uint8)))
        return photos

    def __call__(self, photos: Sequence[np.ndarray]) -> Float[Tensor, " e"]:
        output = self.process([Image.fromarray(photo) for photo in photos])
        if output.shape != self.shape:
            sizes = ", ".join(f"{height} x {width}" for height, width in dict.fromkeys(self.sizes))
            raise ValueError(
                f"the processor must return pixels of one shape for photos of {sizes} pixels, got "
                f"{tuple(self.shape)} and {tuple(output.shape)}; if it crops photos by their "
                "content, turn that off"
            )
        return output.detach().float().flatten()


def find_pixel_places(
    process: Process,
    normalized: Process,
    sizes: Sequence[tuple[int, int]],
    shape: torch.Size,
) -> PixelPlaces:
    """Return the place of each pixel element on the images, by processing test images.

    Two photos of one color each tell which elements show the photo, and by which channel. A ramp
    gives their places roughly, and a wave precisely: resampling lowers its contrast but keeps its
    phase. Red and blue vary along x, green along y; processors that mix the channels get gray
    photos for one axis after the other. Of several images, all are test images at once; black
    and white ones spell the number of each in binary digits. `normalized` returns the pixels as the
    model gets them, `process` without that.

    Raises:
        ValueError: If the shape of the pixels depends on the content of the images, or an element
            shows several of them.

    Source:
        Places by phase: Srinivasan et al. 1984, doi:10.1364/AO.23.003105.
    """
    probe = _TestPhotos(process, sizes, shape)

    def none(_: int) -> np.ndarray:
        return np.zeros((1, 1))

    def full(_: int) -> np.ndarray:
        return np.full((1, 1), 255)

    low, high, shown = _contrast(probe, (none, full, none), (full, none, full))
    change = high - low
    colored = bool((shown & (change > 0)).any()) and bool((shown & (change < 0)).any())
    points = torch.full((2, shape.numel()), torch.nan, device=change.device)
    if not colored:
        low, high, shown = _contrast(probe, (none,) * 3, (full,) * 3)
        change = high - low
    # Green elements read zero of the magenta photo, red and blue ones of the green photo.
    zero = torch.where(change > 0, low, high) if colored else low
    span = torch.where(shown, change.abs() if colored else change, 1.0)
    numbers = _numbers(probe, zero, span, shown)
    axes = (
        [(change < 0).long()] if colored else [torch.zeros_like(numbers), torch.ones_like(numbers)]
    )

    def levels(x: _Pattern, y: _Pattern) -> list[Float[Tensor, " e"]]:
        """Return the level of each element, from 0 to 1, of photos that vary along x and y."""
        channels = [(x, y, x)] if colored else [(x, x, x), (y, y, y)]
        return [(probe(probe.photos(*rgb)) - zero).div_(span) for rgb in channels]

    ramps = levels(*_along([[_ramp(side) for side in size[::-1]] for size in sizes]))
    periods = _all_periods(probe, ramps, axes, numbers)

    def waves(shift: float) -> tuple[_Pattern, _Pattern]:
        return _along([
            [_wave(side, n, shift) for side, n in zip(size[::-1], counts, strict=True)]
            for size, counts in zip(sizes, periods.view(-1, 2).tolist(), strict=True)
        ])  # fmt: skip

    sides = torch.tensor([float(side) for size in sizes for side in size[::-1]])
    cosines = levels(*waves(0.0))
    sines = levels(*waves(0.25))
    for axis, ramp, cosine, sine in zip(axes, ramps, cosines, sines, strict=True):
        # A side of 640 pixels with 4 periods: a ramp of 0.41 says about 262 pixels, give or take a
        # few gray levels of 2.5 pixels each. The phase says 0.65 of a period, of any. In periods:
        # round(4 x 0.41 - 0.65) + 0.65 = 1.65, which is pixel 264.0.
        turn = torch.atan2(2 * sine - 1, 2 * cosine - 1).div_(2 * math.pi)
        group = axis if len(sizes) == 1 else 2 * numbers.clamp(min=0) + axis
        n, length = (values.to(turn)[group] for values in (periods, sides / periods))
        place = (n * ramp - turn).round_().add_(turn).mul_(length)
        for index in (0, 1):
            torch.where(shown & (axis == index), place, points[index], out=points[index])
    x, y = waves(0.0)
    wave = probe.photos(x, y, x)
    shown_by_axis = [shown & (axis == index) for index, axis in enumerate(axes * (3 - len(axes)))]
    known = cosines[0].mul_(span).add_(zero) if colored else None
    sampled = _sampled(probe, normalized, wave, shown_by_axis, known)
    return PixelPlaces(points.T, shown, numbers, tuple(wave), *sampled)


def _contrast(
    probe: _TestPhotos, low: Sequence[_Pattern], high: Sequence[_Pattern]
) -> tuple[Float[Tensor, " e"], Float[Tensor, " e"], Bool[Tensor, " e"]]:
    """Return the elements of two photos, and which of them show the photos."""
    first, second = (probe(probe.photos(*channels)) for channels in (low, high))
    change = (second - first).abs()
    return first, second, change > _SHOWN * max(float(change.max()), 1e-9)


def _all_periods(
    probe: _TestPhotos, ramps: list[Tensor], axes: list[Tensor], numbers: Int[Tensor, " e"]
) -> Float[Tensor, " i2"]:
    """Return how many periods of a wave fit along both sides of each image, x before y."""
    groups = 2 * len(probe.sizes)
    low, high = torch.full((2, groups + 1), torch.nan, device=numbers.device)
    count = torch.zeros(groups + 1, device=numbers.device)
    for ramp, axis in zip(ramps, axes, strict=True):
        group = torch.where(numbers >= 0, 2 * numbers + axis, groups)
        low.scatter_reduce_(0, group, ramp.to(low), "amin", include_self=False)
        high.scatter_reduce_(0, group, ramp.to(high), "amax", include_self=False)
        count += torch.bincount(group, minlength=groups + 1)
    shares = (count[:-1].view(-1, 2) / count[:-1].view(-1, 2).sum(0).clamp(min=1)).flatten()
    covered = (high - low)[:-1].nan_to_num(1.0).clamp(min=1e-3).tolist()
    sides = [side for size in probe.sizes for side in size[::-1]]
    elements = (shares * probe.shape.numel()).tolist()
    return torch.tensor([_periods(*side) for side in zip(sides, covered, elements, strict=True)])


def _along(lines: Sequence[Sequence[np.ndarray]]) -> tuple[_Pattern, _Pattern]:
    """Return the lines of each image along x and along y as patterns."""
    return lambda number: lines[number][0], lambda number: lines[number][1][:, None]


def _numbers(
    probe: _TestPhotos, zero: Tensor, span: Tensor, shown: Bool[Tensor, " e"]
) -> Int[Tensor, " e"]:
    """Return the number of the image that each element shows, -1 for padding."""
    count = len(probe.sizes)
    if count == 1:
        return shown.long() - 1
    # Image 5 of 8 is white, black, white in three runs: 5 = 4 + 1. So 64 photos take six runs.
    numbers = torch.zeros_like(zero)
    for digit in range((count - 1).bit_length()):

        def spelled(number: int, digit: int = digit) -> np.ndarray:
            return np.full((1, 1), 255 * (number >> digit & 1))

        level = (probe(probe.photos(spelled, spelled, spelled)) - zero).div_(span)
        bit = level.round().clamp_(0, 1)
        if bool((level.sub_(bit).abs_().gt_(_BIT).mul_(shown)).any()):
            raise ValueError(
                "each pixel of the model must show one image, but the processor mixes several: "
                "such prompts are not supported; pass one photo"
            )
        numbers.add_(bit, alpha=2**digit)
    numbers = torch.where(shown, numbers, -1).long()
    if int(numbers.max()) >= count:
        raise ValueError("the processor must keep the order of the images of a prompt")
    return numbers


def _sampled(
    probe: _TestPhotos,
    normalized: Process,
    wave: Sequence[np.ndarray],
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
    photos = [Image.fromarray(photo) for photo in wave]
    plain = probe.process(photos).detach().float().flatten() if known is None else known
    both = [v.cpu()[samples] for v in (normalized(photos).detach().float().flatten(), plain)]
    scales = [max(float(v.max() - v.min()), 1e-9) / 255 if len(v) else 1.0 for v in both]
    return samples, (both[0], both[1]), (scales[0], scales[1])


def _ramp(side: int) -> UInt8[np.ndarray, " n"]:
    return np.rint(255 * (np.arange(side) + 0.5) / side).astype(np.uint8)


def _wave(side: int, periods: float, shift: float) -> UInt8[np.ndarray, " n"]:
    """Return gray levels of a cosine along a side, shifted by a share of its period."""
    turns = periods * (np.arange(side) + 0.5) / side - shift
    return np.rint(127.5 + 127.5 * np.cos(2 * np.pi * turns)).astype(np.uint8)


def _periods(side: int, covered: float, elements: float) -> float:
    """Return how many periods of a wave fit along a side, so that no pixel blurs them."""
    pixels = math.sqrt(elements / 3) / covered  # of the input, if it showed the whole side
    return max(1.0, min(_MAX_PERIODS, side / _PERIOD, pixels / _PERIOD, 16 / covered))


def check_places(
    places: PixelPlaces,
    photos: Sequence[UInt8[np.ndarray, "_y _x 3"]],
    pixels: Float[Tensor, " *shape"],
    *,
    process: Process,
    normalized: Process,
) -> None:
    """Refuse images whose pixels lie elsewhere than those of the test images.

    A processor that treats every pixel by its place alone is linear: the mean of photo and wave
    must give the mean of both results. If it crops or moves photos by their content, the wave
    arrives elsewhere.

    Raises:
        ValueError: If the places depend on the content of the images.
    """
    if not len(places.samples):
        return
    mixed = [
        Image.fromarray(((photo.astype(np.uint16) + wave + 1) // 2).astype(np.uint8))
        for photo, wave in zip(photos, places.waves, strict=True)
    ]

    def agrees(index: int, single: Tensor, both: Tensor) -> bool:
        if single.shape != both.shape:
            return False
        expected = (single.flatten()[places.samples] + places.processed[index]) / 2
        error = (both.flatten()[places.samples] - expected).abs() / places.levels[index]
        halves = error.chunk(2)  # green varies along y, the others along x
        return all(float(e.median()) <= _MEDIAN and float(e.mean()) <= _MEAN for e in halves)

    if agrees(0, pixels.detach().float().cpu(), normalized(mixed).detach().float().cpu()):
        return
    originals = [Image.fromarray(photo) for photo in photos]
    single = process(originals).detach().float().cpu()  # normalized by photo, maybe
    if not agrees(1, single, process(mixed).detach().float().cpu()):
        raise ValueError(
            "the processor places photos by their content, for example because it crops margins, "
            "so that the pixels of this photo lie elsewhere than those of the test photos of its "
            "size; turn that off in the image processor (do_crop_margin=False in Nougat), or crop "
            "the photo yourself"
        )
