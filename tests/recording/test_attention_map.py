"""Maps on their images: each cell where it lies, and nothing where nothing was seen."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.geometry.affine import Geometry
from visattn.recording.attention_map import AttentionMap

GRIDS = st.tuples(st.integers(1, 11), st.integers(1, 11))
SIZES = st.tuples(st.integers(1, 61), st.integers(1, 61))


def drawn(shape: tuple[int, ...], seed: int = 7) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def placed(values: Tensor, geometry: Geometry) -> AttentionMap:
    return AttentionMap(values, "site", "gate", geometry)


def plainly(values: Tensor, geometry: Geometry, y: int, x: int) -> float:
    """Return one pixel of a smooth map, the slow way: four cells around a point."""
    point = torch.tensor([[x + 0.5, y + 0.5]], dtype=torch.float64)
    to_x, to_y = geometry.to_input(point)[0].tolist()
    left, top, right, bottom = geometry.seen()
    if not (left <= x + 0.5 <= right and top <= y + 0.5 <= bottom):
        return math.nan
    rows, columns = values.shape
    at_y = to_y * rows / geometry.input_size[0] - 0.5
    at_x = to_x * columns / geometry.input_size[1] - 0.5
    total = 0.0
    for cell_y in (math.floor(at_y), math.floor(at_y) + 1):
        for cell_x in (math.floor(at_x), math.floor(at_x) + 1):
            weight = (1 - abs(at_y - cell_y)) * (1 - abs(at_x - cell_x))
            near_y, near_x = min(max(cell_y, 0), rows - 1), min(max(cell_x, 0), columns - 1)
            total += weight * values[near_y, near_x].item()
    return total


GEOMETRIES = {
    "as it is": Geometry.identity((13, 17)),
    "resized": Geometry.identity((13, 17)).resized((29, 31)),
    "cropped": Geometry.identity((13, 17)).resized((29, 37)).cropped(5, 7, (19, 23)),
    "padded": Geometry.identity((13, 17)).padded(2, 3, (19, 23)),
    "cropped, padded": Geometry.identity((13, 17)).cropped(2, 3, (7, 11)).padded(3, 5, (19, 23)),
    "flipped": Geometry.identity((13, 17)).cropped(2, 3, (7, 11)).flipped(),
    **{
        f"as stored, {code}": Geometry.identity((13, 17), code).cropped(2, 3, (7, 11)).to_stored()
        for code in range(2, 9)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
def test_smooth_equals_the_four_cells_around_each_pixel(name: str) -> None:
    geometry, values = GEOMETRIES[name], drawn((5, 3))
    height, width = geometry.image_size
    expected = [[plainly(values, geometry, y, x) for x in range(width)] for y in range(height)]
    torch.testing.assert_close(
        placed(values, geometry).on_image(),
        torch.tensor(expected, dtype=torch.float64),
        equal_nan=True,
    )


@given(grid=GRIDS, size=SIZES)
def test_smooth_equals_torch_where_all_is_seen(
    grid: tuple[int, int], size: tuple[int, int]
) -> None:
    values = drawn((2, *grid))
    expected = interpolate(values[None], size, mode="bilinear", align_corners=False)[0]
    geometry = Geometry.identity(size).resized((224, 224))
    torch.testing.assert_close(placed(values, geometry).on_image(), expected)


@given(grid=GRIDS, size=SIZES, smooth=st.booleans())
def test_no_value_leaves_the_range_of_the_cells(
    grid: tuple[int, int], size: tuple[int, int], *, smooth: bool
) -> None:
    values = drawn(grid).float() * 3 - 1
    seen = placed(values, Geometry.identity(size)).on_image(smooth=smooth)
    assert seen.min() >= values.min()
    assert seen.max() <= values.max()


def test_a_cell_keeps_its_center() -> None:
    values = torch.zeros(14, 14, dtype=torch.float64)
    values[3, 10] = 1
    for smooth in (True, False):
        seen = placed(values, Geometry.identity((224, 224))).on_image(smooth=smooth)
        mass, middle = seen / seen.sum(), torch.arange(224) + 0.5
        assert (mass.sum(1) * middle).sum().item() == pytest.approx(56, abs=0.01)  # 55.5 from 0
        assert (mass.sum(0) * middle).sum().item() == pytest.approx(168, abs=0.01)


def test_cells_lie_where_they_lie() -> None:
    geometry = Geometry.identity((11, 17)).cropped(2, 4, (6, 9))
    values = torch.zeros(2, 3)
    values[1, 2] = 1
    seen = placed(values, geometry).on_image(smooth=False)
    hot = torch.zeros(11, 17, dtype=torch.bool)
    hot[5:8, 10:13] = True
    assert torch.equal(seen == 1, hot)
    blind = torch.ones(11, 17, dtype=torch.bool)
    blind[2:8, 4:13] = False
    assert torch.equal(seen.isnan(), blind)


def test_a_turned_file_shows_the_turned_map() -> None:
    upright = Geometry.identity((13, 17), orientation=6).resized((20, 30)).cropped(3, 4, (15, 19))
    maps = drawn((2, 3, 5))
    on_upright = placed(maps, upright).on_image()
    on_file = placed(maps, upright.to_stored()).on_image()
    torch.testing.assert_close(on_file, on_upright.rot90(1, (-2, -1)), equal_nan=True)


def test_a_smaller_size_shows_the_same_image() -> None:
    geometry = Geometry.identity((40, 60)).cropped(0, 12, (40, 36))
    small = placed(drawn((4, 6)), geometry).on_image((10, 15))
    assert small.shape == (10, 15)
    assert small[:, :3].isnan().all()
    assert small[:, 12:].isnan().all()
    assert not small[:, 3:12].isnan().any()


def test_an_unknown_cell_spoils_no_other() -> None:
    values = torch.ones(4, 4)
    values[0, 0] = torch.nan
    seen = placed(values, Geometry.identity((16, 16))).on_image(smooth=False)
    assert seen.isnan().sum() == 16
    assert placed(values, Geometry.identity((16, 16))).on_image()[8:].isnan().sum() == 0


def test_indexing_goes_over_the_first_axis_and_keeps_the_labels() -> None:
    maps = AttentionMap(drawn((3, 5, 7)), "attend", "words", labels=("a", "red", "dog"))
    assert len(maps) == 3
    assert maps[1].made["label"] == "red"
    assert torch.equal(maps[-1].values, maps.values[2])
    assert maps[1:].labels == ("red", "dog")
    assert [one.made["label"] for one in maps] == ["a", "red", "dog"]
    assert maps[0].labels == ()
    with pytest.raises(IndexError, match="there are 3 maps, got index 3"):
        maps[3]
    with pytest.raises(TypeError, match="a single map"):
        len(maps[0])


def test_what_has_no_place_is_refused() -> None:
    channels = AttentionMap(torch.rand(11), "squeeze", "channel", Geometry.identity((5, 7)))
    with pytest.raises(ValueError, match="squeeze is a gate per channel: it has no place"):
        channels.on_image()
    with pytest.raises(ValueError, match=r"does not know its image; call placed\(geometry\)"):
        AttentionMap(torch.rand(2, 2), "gate", "gate").on_image()


@pytest.mark.parametrize(
    ("shape", "rest", "reason"),
    [
        ((5, 7), {"kind": "heat"}, "got 'heat'|Expected type: .*Literal"),
        ((5,), {"kind": "gate"}, r"of kind gate must be \[..., y, x\], got shape \(5,\)"),
        ((2, 5, 7), {"kind": "words", "labels": ("a",)}, "one each, got 1 labels for"),
        ((5, 7), {"kind": "words", "labels": ("a",) * 5}, "labels must name the maps"),
    ],
)
def test_a_map_that_cannot_be_is_refused(
    shape: tuple[int, ...], rest: dict[str, Any], reason: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=reason):  # the shape checks speak first
        AttentionMap(torch.rand(shape), "site", **rest)


def test_scales_suit_the_kind() -> None:
    peaked = torch.zeros(3, 4, 4)
    peaked[0, 0, 0], peaked[1, 0, 0], peaked[2, 0, 0] = 0.9, 0.5, 0.3
    assert AttentionMap(peaked, "s", "words").scale() == (0, 0.5)
    assert AttentionMap(peaked, "s", "gate").scale() == (0, 1)
    assert AttentionMap(peaked / 10, "s", "words").scale() == (0, 0.25)
    assert AttentionMap(peaked / 10, "s", "gradient").scale() == (0, pytest.approx(0.05))
    assert AttentionMap(torch.zeros(3, 3), "s", "gradient").scale() == (0, 1)
