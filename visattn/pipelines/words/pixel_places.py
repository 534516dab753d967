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

_MAX_PERIODS = 48  # of a wave along a side; a ramp of 256 levels tells periods apart
_PERIOD = 16  # pixels, at least, of the photo and of the input
_SHOWN = 0.5  # an element shows the photo if this share of it does; the rest is padding
_SAMPLES = 1 << 16
_MEDIAN, _MEAN = 3.0, 9.0  # gray levels of 255: rounding, and clipped overshoots of resampling


@dataclass(frozen=True, eq=False)
class PixelPlaces:
    """Places of the elements of a processed photo.

    Args:
        points: x and y of each element in pixels of the photo. NaN where it shows no photo, and
            for the axis that its color channel does not tell.
        shown: Whether the element shows the photo; others are padding.
        wave: The test photo that later photos are mixed with.
        samples: Indices of elements that show the photo.
        processed: Their values in the test photo, as normalized for the model, and without that.
        levels: Values per gray level, for both.
    """

    points: Float[Tensor, "e 2"]
    shown: Bool[Tensor, " e"]
    wave: UInt8[np.ndarray, "y x 3"]
    samples: Int[Tensor, " s"]
    processed: tuple[Float[Tensor, " s"], Float[Tensor, " s"]]
    levels: tuple[float, float]


class _TestPhotos:
    """Processes test photos of one size, and compares the shapes of the results."""

    def __init__(self, process: Process, size: tuple[int, int], shape: torch.Size) -> None:
        self.process, self.size, self.shape = process, size, shape

    def photo(self, red: np.ndarray, green: np.ndarray, blue: np.ndarray) -> np.ndarray:
        """Return a photo of gray levels that are given per channel: a row, a column or a level."""
        channels = [np.broadcast_to(each, self.size) for each in (red, green, blue)]
        return np.ascontiguousarray(np.stack(channels, -1).astype(np.uint8))

    def __call__(self, photo: np.ndarray) -> Float[Tensor, " e"]:
        output = self.process(Image.fromarray(photo))
        if output.shape != self.shape:
            raise ValueError(
                f"the processor must return pixels of one shape for photos of {self.size[0]} x "
                f"{self.size[1]} pixels, got {tuple(self.shape)} and {tuple(output.shape)}; if it "
                "crops photos by their content, turn that off"
            )
        return output.detach().float().flatten()


def find_pixel_places(
    process: Process, normalized: Process, size: tuple[int, int], shape: torch.Size
) -> PixelPlaces:
    """Return the place of each pixel element on the photo, by processing test photos of its size.

    Two photos of one color each tell which elements show the photo, and by which channel. A ramp
    gives their places roughly, and a wave precisely: resampling lowers its contrast but keeps its
    phase. Red and blue vary along x, green along y; processors that mix the channels get gray
    photos for one axis after the other.

    Args:
        process: Returns the pixels of a photo, not normalized.
        normalized: Returns them as the model gets them.
        size: Height and width of the photo.
        shape: Shape of its pixels.

    Raises:
        ValueError: If the shape of the pixels depends on the content of the photo.

    Source:
        Places by phase: Srinivasan et al. 1984, doi:10.1364/AO.23.003105.
    """
    probe = _TestPhotos(process, size, shape)
    none, full = np.zeros((1, 1)), np.full((1, 1), 255)
    low, high = probe(probe.photo(none, full, none)), probe(probe.photo(full, none, full))
    change = high - low
    shown = change.abs() > _SHOWN * max(float(change.abs().max()), 1e-9)
    colored = bool((shown & (change > 0)).any()) and bool((shown & (change < 0)).any())
    points = torch.full((shape.numel(), 2), torch.nan, device=change.device)
    if not colored:
        low, high = probe(probe.photo(none, none, none)), probe(probe.photo(full, full, full))
        change = high - low
        shown = change.abs() > _SHOWN * max(float(change.abs().max()), 1e-9)
    zero = torch.where(change > 0, low, high) if colored else low
    span = torch.where(shown, change.abs() if colored else change, 1.0)
    shown_by_axis = [shown & (change > 0), shown & (change < 0)] if colored else [shown, shown]

    def levels(x: np.ndarray, y: np.ndarray) -> list[Float[Tensor, " _e"]]:
        """Return the level of each element, from 0 to 1, of a photo that varies along x and y."""
        if colored:
            level = (probe(probe.photo(x, y[:, None], x)) - zero) / span
            return [level[each] for each in shown_by_axis]
        photos = [probe.photo(*[each] * 3) for each in (x, y[:, None])]
        return [((probe(photo) - zero) / span)[shown] for photo in photos]

    ramps = levels(*(_ramp(side) for side in size[::-1]))
    periods = [_periods(side, ramp, shape) for side, ramp in zip(size[::-1], ramps, strict=True)]
    waves = [
        levels(*(_wave(side, n, shift) for side, n in zip(size[::-1], periods, strict=True)))
        for shift in (0.0, 0.25)
    ]
    for axis, (ramp, cosine, sine, n) in enumerate(zip(ramps, *waves, periods, strict=True)):
        turn = torch.atan2(2 * sine - 1, 2 * cosine - 1) / (2 * math.pi)
        place = ((n * ramp - turn).round() + turn) / n
        points[shown_by_axis[axis], axis] = place * size[1 - axis]
    x, y = (_wave(side, n, 0.0) for side, n in zip(size[::-1], periods, strict=True))
    wave = probe.photo(x, y[:, None], x)
    return PixelPlaces(points, shown, wave, *_sampled(probe, normalized, wave, shown_by_axis))


def _sampled(
    probe: _TestPhotos, normalized: Process, wave: np.ndarray, shown_by_axis: list[Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[float, float]]:
    """Return elements of both axes with their values in the wave, and values per gray level."""
    generator = torch.Generator().manual_seed(0)
    count = min(_SAMPLES // 2, *(int(each.sum()) for each in shown_by_axis))
    kept: list[Tensor] = []
    for each in shown_by_axis:
        indices = each.nonzero()[:, 0].cpu()
        kept.append(indices[torch.randint(max(len(indices), 1), (count,), generator=generator)])
    samples = torch.cat(kept).to(shown_by_axis[0].device)
    both = [
        process(Image.fromarray(wave)).detach().float().flatten()[samples]
        for process in (normalized, probe.process)
    ]
    scales = [max(float(each.max() - each.min()), 1e-9) / 255 if len(each) else 1.0
              for each in both]  # fmt: skip
    return samples, (both[0], both[1]), (scales[0], scales[1])


def _ramp(side: int) -> UInt8[np.ndarray, " n"]:
    return np.rint(255 * (np.arange(side) + 0.5) / side).astype(np.uint8)


def _wave(side: int, periods: float, shift: float) -> UInt8[np.ndarray, " n"]:
    """Return gray levels of a cosine along a side, shifted by a share of its period."""
    turns = periods * (np.arange(side) + 0.5) / side - shift
    return np.rint(127.5 + 127.5 * np.cos(2 * np.pi * turns)).astype(np.uint8)


def _periods(side: int, ramp: Float[Tensor, " e"], shape: torch.Size) -> float:
    """Return how many periods of a wave fit along a side, so that no pixel blurs them."""
    covered = max(float(ramp.max() - ramp.min()), 1e-3) if len(ramp) else 1.0
    pixels = math.sqrt(shape.numel() / 3) / covered  # of the input, if it showed the whole side
    return max(1.0, min(_MAX_PERIODS, side / _PERIOD, pixels / _PERIOD, 16 / covered))


def check_places(
    places: PixelPlaces,
    photo: UInt8[np.ndarray, "y x 3"],
    pixels: Float[Tensor, " *shape"],
    *,
    process: Process,
    normalized: Process,
) -> None:
    """Refuse a photo whose pixels lie elsewhere than those of the test photos.

    A processor that treats every pixel by its place alone is linear: the mean of photo and wave
    must give the mean of both results. If it crops or moves photos by their content, the wave
    arrives elsewhere.

    Args:
        places: Places found with test photos of this size.
        photo: The photo.
        pixels: Its pixels, as normalized for the model.
        process: Returns the pixels of a photo, not normalized.
        normalized: Returns them as the model gets them.

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

    if agrees(0, pixels.detach().float(), normalized(mixed).detach().float()):
        return
    single = process(Image.fromarray(photo)).detach().float()  # normalized by photo, maybe
    if not agrees(1, single, process(mixed).detach().float()):
        raise ValueError(
            "the processor places photos by their content, for example because it crops margins, "
            "so that the pixels of this photo lie elsewhere than those of the test photos of its "
            "size; turn that off in the image processor (do_crop_margin=False in Nougat), or crop "
            "the photo yourself"
        )
