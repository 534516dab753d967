"""Tokens of the grids of published models lie in their cells, on photos of many sizes."""

import functools
from typing import Any

import pytest
import real_grids
import torch
from real_grids import MODELS, Size, expected, tokens_of
from torch import Tensor

from visattn.pipelines.words.placement import Placement

SOME: dict[str, list[Size]] = {
    "siglip_224": [(375, 500), (1200, 600)],
    "siglip_384": [(427, 640), (40, 400)],
    "siglip_448": [(427, 640)],
    "siglip_896": [(375, 500)],
    "qwen2": [(97, 613), (53, 71)],
    "qwen2_5": [(375, 500), (40, 400)],
    "internvl": [(97, 613)],
    "llava_next": [(375, 500), (97, 613)],
    "idefics3": [(97, 613)],
    "gemma3": [(641, 479)],
    "idefics2": [(180, 300)],
}
CASES = [("clip_336", size) for size in real_grids.sizes()] + [
    (name, size) for name, chosen in SOME.items() for size in chosen
]
REST = [(name, size) for name in MODELS for size in real_grids.sizes() if (name, size) not in CASES]
CROSSED = [("llava_next", size) for size in [(200, 500), (97, 613), (40, 400)]]
"""Panoramas: tokens of tiles are narrower, those of the whole photo lower, and cells are both.

So each token covers several cells, and none holds most of it.
"""
TOLERANCE = 0.02  # tokens
IN_PARTS = {"gemma3": 0.03, "idefics2": 0.13}
"""Parts of a photo whose sizes differ by a pixel, for which one grid is fitted."""


@functools.cache
def model(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return MODELS[name]()


def misplaced(boxes: Tensor, truth: Tensor) -> float:
    """Return the largest distance of edges, in tokens."""
    size = torch.cat([truth[:, 2:] - truth[:, :2]] * 2, 1)
    size = size.maximum(0.9 * size.median(0).values)  # padding leaves some tokens a sliver
    return float(((boxes - truth) / size).abs().max())


def finest(placement: Placement) -> Tensor:
    """Return which tokens belong to the lattice of the grid, not to that of a thumbnail."""
    (width, _, _), (_, height, _), _ = placement.geometry.matrix
    size = placement.boxes[:, 2:] - placement.boxes[:, :2]
    return (size <= 1.05 * torch.tensor([width, height])).all(1)


def check_spread(placement: Placement) -> None:
    """Check that tokens lie evenly on the cells that their boxes touch, by the overlap with each.

    Along each axis: the share of a cell is the length of the box in it; outside lies nothing, and
    the mean is that of the box to half a cell.
    """
    (width, _, left), (_, height, top), _ = placement.geometry.matrix
    shares = (placement.cells / placement.visible).T.reshape(-1, *placement.grid_size).double()
    torch.testing.assert_close(shares.sum((1, 2)), torch.ones(len(shares)).double())
    for axis, begin, pitch in ((0, left, width), (1, top, height)):
        low, high = ((placement.boxes[:, axis + end].double() - begin) / pitch for end in (0, 2))
        first = torch.arange(placement.grid_size[1 - axis]).double()
        overlap = torch.minimum(high[:, None], first + 1) - torch.maximum(low[:, None], first)
        expected = overlap.clamp(min=0) / (high - low)[:, None]
        along = shares.sum(1 if axis == 0 else 2)
        torch.testing.assert_close(along, expected, atol=1e-3, rtol=0)
        assert float((along @ (first + 0.5) - (low + high) / 2).abs().max()) <= 0.5


@pytest.mark.parametrize(
    ("name", "size"), [*CASES, *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)],
    ids=str,
)  # fmt: skip
def test_tokens_lie_in_the_cells_of_the_true_grid(name: str, size: Size) -> None:
    placement = tokens_of(*model(name), size).placement
    truth = expected(name, size)
    assert placement.boxes.shape == truth.shape
    assert misplaced(placement.boxes, truth) <= IN_PARTS.get(name, TOLERANCE)
    if name in IN_PARTS:
        return
    share = placement.cells.amax(0) / placement.visible
    cells = finest(placement)
    if (name, size) in CROSSED:
        check_spread(placement)
        return
    assert placement.grid_size == real_grids.grid_of(truth)
    assert int(cells.sum()) == placement.grid_size[0] * placement.grid_size[1]
    assert float(share[cells].min()) >= 0.98
    even = placement.rasterize(cells.float() / placement.visible)
    assert float(even.max() / even.min()) <= 1.001


@pytest.mark.parametrize(
    ("name", "dtype"), [("clip_336", torch.float16), ("qwen2_5", torch.bfloat16)]
)
def test_16_bit_models_have_the_same_grid(name: str, dtype: torch.dtype) -> None:
    own = MODELS[name]()
    wide = tokens_of(*own, (375, 500))
    half = tokens_of(*own, (375, 500), dtype=dtype)
    assert own[0].dtype == dtype
    assert half.placement.grid_size == wide.placement.grid_size
    assert half.notes == wide.notes == ()
    assert half.columns.tolist() == wide.columns.tolist()
    torch.testing.assert_close(half.placement.boxes, wide.placement.boxes, atol=1e-2, rtol=0)


def test_cells_are_as_fine_as_tokens_of_tiles_that_are_not_on_one_grid() -> None:
    """LLaVA-OneVision shows 640 x 427 pixels at 768 x 512; between tiles, tokens are apart."""
    placement = tokens_of(*real_grids.onevision(), (427, 640)).placement
    (width, _, _), (_, height, _), _ = placement.geometry.matrix
    tiles = placement.boxes[729:]
    size = (tiles[:, 2:] - tiles[:, :2]).median(0).values
    torch.testing.assert_close(size, torch.tensor([14.0, 14.0]) * 640 / 768, atol=0.2, rtol=0)
    torch.testing.assert_close(torch.tensor([width, height]), size, atol=0.3, rtol=0)
    check_spread(placement)


def test_a_photo_with_fewer_pixels_than_tokens_is_placed_or_refused() -> None:
    """Below 0.6 pixels, half a pixel at the edge that resampling repeats hides whole tokens."""
    placement = tokens_of(*model("clip_336"), (20, 30)).placement
    assert misplaced(placement.boxes, expected("clip_336", (20, 30))) <= TOLERANCE
    with pytest.raises(ValueError, match=r"photo is too small.* 40 x 12 pixels .*enlarge it"):
        tokens_of(*model("clip_336"), (12, 40))


def test_a_photo_much_larger_than_the_input() -> None:
    size = (1512, 2016)
    placement = tokens_of(*model("clip_336"), size).placement
    assert misplaced(placement.boxes, expected("clip_336", size)) <= TOLERANCE
    assert placement.grid_size == (24, 24)
