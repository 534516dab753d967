"""Glimpses against padding, cropping and averaging pixel by pixel."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from visattn.models.glimpses.retina import (
    crop_glimpses,
    glimpse_boxes,
    glimpse_pyramid,
    sample_glimpses,
)

SIZES = [(7, 11), (13, 5), (1, 1)]
See = Callable[..., Tensor]
EDGES = list(itertools.product([-1.0, -0.3, 0.0, 1.0], repeat=2))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(image: Tensor, place: list[float], glimpse: int, scales: int, around: float) -> Tensor:
    """A glimpse at a location, with loops over pixels."""
    channels, height, width = image.shape
    patches = torch.empty(scales, channels, glimpse, glimpse, dtype=torch.float64)
    for scale in range(scales):
        step = 2**scale
        left = math.floor((place[0] + 1) / 2 * width - glimpse * step / 2 + 0.5)
        top = math.floor((place[1] + 1) / 2 * height - glimpse * step / 2 + 0.5)
        for channel, row, column in itertools.product(range(channels), *[range(glimpse)] * 2):
            total = 0.0
            for y in range(top + row * step, top + (row + 1) * step):
                for x in range(left + column * step, left + (column + 1) * step):
                    inside = 0 <= y < height and 0 <= x < width
                    total += float(image[channel, y, x]) if inside else around
            patches[scale, channel, row, column] = total / step**2
    return patches


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("glimpse", "scales"), [(1, 4), (2, 3), (3, 1), (3, 3), (5, 2), (8, 1)])
def test_glimpse_is_an_average_pooled_crop(
    size: tuple[int, int], glimpse: int, scales: int
) -> None:
    images, around = noise(2, 2, *size), 0.25
    drawn = (noise(5, 2, seed=1) * 2 - 1).tolist()
    places = [list(place) for place in EDGES] + drawn
    which = torch.arange(len(places)) % 2
    pyramid = glimpse_pyramid(images, num_scales=scales, pad_value=around)
    at = torch.tensor(places, dtype=torch.float64)
    patches = crop_glimpses(pyramid, at, glimpse_size=glimpse, image_indices=which)
    for number, place in enumerate(places):
        wanted = plain(images[number % 2], place, glimpse, scales, around)
        assert torch.equal(patches[number, 0], wanted[0])
        torch.testing.assert_close(patches[number], wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("glimpse", [2, 3])
def test_glimpses_match_a_loop_at_every_location(glimpse: int) -> None:
    """Locations are dense enough to cover every integer offset."""
    size = (3, 5)
    image = noise(1, 1, *size)
    grid = [[x / 5, y / 5] for x in range(-5, 6) for y in range(-5, 6)]
    at = torch.tensor(grid, dtype=torch.float64)
    pyramid = glimpse_pyramid(image, num_scales=2)
    nought = torch.zeros(len(grid), dtype=torch.long)
    patches = crop_glimpses(pyramid, at, glimpse_size=glimpse, image_indices=nought)
    for patch, place in zip(patches, grid, strict=True):
        torch.testing.assert_close(patch, plain(image[0], place, glimpse, 2, 0.0))
    starts = glimpse_boxes(at, size, glimpse_size=glimpse, num_scales=2)[..., :2]
    for scale in range(2):
        for axis, side in enumerate(reversed(size)):
            assert len(starts[:, scale, axis].unique()) == side + 1


@settings(deadline=None, max_examples=12)
@given(
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    glimpse=st.integers(1, 7),
    scales=st.integers(1, 4),
    x=st.floats(-1, 1),
    y=st.floats(-1, 1),
)
def test_glimpses_match_a_loop_at_any_image_size(
    height: int, width: int, glimpse: int, scales: int, x: float, y: float
) -> None:
    image = noise(1, 1, height, width)
    pyramid = glimpse_pyramid(image, num_scales=scales)
    at = torch.tensor([[x, y]], dtype=torch.float64)
    patches = crop_glimpses(pyramid, at, glimpse_size=glimpse)[0]
    torch.testing.assert_close(patches, plain(image[0], [x, y], glimpse, scales, 0.0))
    between = sample_glimpses(pyramid, at, glimpse_size=glimpse)
    assert between.isfinite().all()
    assert between.max() <= 1
    assert between.min() >= 0


@pytest.mark.parametrize(("glimpse", "half"), [(2, 0.0), (4, 0.0), (3, 0.5)])
def test_sampling_equals_cropping_at_integer_offsets(glimpse: int, half: float) -> None:
    """For odd windows these are pixel centers, and only the finest window is odd."""
    size = (6, 9)
    scales = 1 if glimpse % 2 else 3
    middles = [[x + half, y + half] for x in range(9) for y in range(6)]
    at = torch.tensor(middles, dtype=torch.float64) / torch.tensor([9, 6]) * 2 - 1
    pyramid = glimpse_pyramid(noise(1, 2, *size), num_scales=scales, pad_value=0.3)
    which = torch.zeros(len(at), dtype=torch.long)
    snapped = crop_glimpses(pyramid, at + 1e-9, glimpse_size=glimpse, image_indices=which)
    between = sample_glimpses(pyramid, at, glimpse_size=glimpse, image_indices=which)
    torch.testing.assert_close(between, snapped, rtol=0, atol=1e-6)


def test_sampling_reads_a_linear_ramp_exactly() -> None:
    """For the image x · y each cell has the value at its center, also between pixels."""
    height, width = 40, 44
    y, x = (torch.arange(side, dtype=torch.float64) + 0.5 for side in (height, width))
    pyramid = glimpse_pyramid((y[:, None] * x).view(1, 1, height, width), num_scales=2)
    at = torch.tensor([[0.144, -0.087]], dtype=torch.float64)
    across, down = (0.144 + 1) / 2 * width, (-0.087 + 1) / 2 * height
    patches = sample_glimpses(pyramid, at, glimpse_size=4)[0, :, 0]
    for scale in range(2):
        cells = 2**scale * (torch.arange(4, dtype=torch.float64) - 1.5)
        torch.testing.assert_close(patches[scale], (down + cells)[:, None] * (across + cells))


def test_location_gradient_matches_finite_differences() -> None:
    size = (7, 11)
    pyramid = glimpse_pyramid(noise(2, 2, *size), num_scales=3, pad_value=0.4)
    at = torch.tensor([[0.113, -0.427], [-0.931, 0.877]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda places: sample_glimpses(pyramid, places, glimpse_size=3), at, eps=1e-6, atol=1e-5
    )


def test_cropping_has_no_location_gradient() -> None:
    image = noise(1, 1, 5, 5).requires_grad_()
    at = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    pyramid = glimpse_pyramid(image, num_scales=1)
    crop_glimpses(pyramid, at, glimpse_size=2).sum().backward()
    assert at.grad is None
    assert image.grad is not None
    assert image.grad.sum() == 4


@pytest.mark.parametrize("see", [crop_glimpses, sample_glimpses])
def test_image_indices_select_the_image(see: See) -> None:
    images, at = noise(3, 1, 5, 7), noise(5, 2, seed=4) * 2 - 1
    which = torch.tensor([2, 0, 2, 1, 0])
    pyramid = glimpse_pyramid(images, num_scales=2)
    patches = see(pyramid, at, glimpse_size=3, image_indices=which)
    for number, of in enumerate(which.tolist()):
        own = glimpse_pyramid(images[of : of + 1], num_scales=2)
        assert torch.equal(patches[number], see(own, at[number, None], glimpse_size=3)[0])


def test_pyramid_has_box_averages_of_every_scale() -> None:
    image = noise(1, 1, 5, 3)
    levels = glimpse_pyramid(image, num_scales=3).levels
    assert [tuple(level.shape[2:]) for level in levels] == [(13, 11), (12, 10), (10, 8)]
    assert all(float(level.sum()) == pytest.approx(float(image.sum())) for level in levels)


@pytest.mark.parametrize(
    ("scales", "shape"), [(0, (1, 1, 3, 3)), (1, (1, 1, 0, 3)), (1, (1, 0, 3, 3))]
)
def test_pyramid_without_scales_is_refused(scales: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="needs at least 1 scale, and images with pixels; got"):
        glimpse_pyramid(torch.zeros(shape), num_scales=scales)


@pytest.mark.parametrize("see", [crop_glimpses, sample_glimpses])
def test_glimpse_size_must_be_positive(see: See) -> None:
    pyramid = glimpse_pyramid(torch.zeros(1, 1, 3, 3), num_scales=1)
    with pytest.raises(ValueError, match="needs at least 1 cell along a side, got 0"):
        see(pyramid, torch.zeros(1, 2), glimpse_size=0)


@pytest.mark.parametrize("see", [crop_glimpses, sample_glimpses])
def test_locations_without_an_image_are_refused(see: See) -> None:
    pyramid = glimpse_pyramid(torch.zeros(2, 1, 3, 3), num_scales=1)
    with pytest.raises(ValueError, match=r"pass image_indices.*got 3 locations for 2 images"):
        see(pyramid, torch.zeros(3, 2), glimpse_size=2)


@pytest.mark.compile
@pytest.mark.parametrize("see", [crop_glimpses, sample_glimpses])
def test_compiled_function_matches(see: See) -> None:
    images, at = noise(3, 1, 7, 5), noise(3, 2, seed=1) * 2 - 1

    def whole(images: Tensor, places: Tensor) -> Tensor:
        pyramid = glimpse_pyramid(images, num_scales=2)
        return see(pyramid, places, glimpse_size=3)

    compiled = torch.compile(whole, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images, at), whole(images, at))
