"""Attention maps resized to the image: exact positions, NaN outside of the input."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from random_numbers import uniform
from scipy.ndimage import map_coordinates
from torch import Tensor
from torchvision.transforms import v2

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap


def map_of(values: Tensor, geometry: Geometry) -> AttentionMap:
    return AttentionMap(values, "site", "gate", geometry)


GEOMETRIES = {
    "as it is": Geometry.identity((13, 17)),
    "resized": Geometry.identity((13, 17)).resized((29, 31)),
    "cropped": Geometry.identity((13, 17)).resized((29, 37)).cropped(5, 7, (19, 23)),
    "cropped at centers of pixels": Geometry.identity((13, 17))
    .resized((26, 34))
    .cropped(5, 7, (16, 20)),
    "padded": Geometry.identity((13, 17)).padded(2, 3, (19, 23)),
    "cropped, padded": Geometry.identity((13, 17)).cropped(2, 3, (7, 11)).padded(3, 5, (19, 23)),
    "flipped": Geometry.identity((13, 17)).cropped(2, 3, (7, 11)).flipped(),
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
def test_interpolation_equals_that_of_scipy_at_the_positions_of_pixels(name: str) -> None:
    geometry, values = GEOMETRIES[name], uniform(5, 3)
    y, x = np.mgrid[: geometry.image_size[0], : geometry.image_size[1]] + 0.5
    points = torch.from_numpy(np.stack([x.ravel(), y.ravel()], 1))
    to_x, to_y = geometry.to_input(points).numpy().T.reshape(2, *geometry.image_size)
    height, width = geometry.input_size
    cells = [to_y * 5 / height - 0.5, to_x * 3 / width - 0.5]
    expected = map_coordinates(values.numpy(), cells, order=1, mode="nearest")
    left, top, right, bottom = geometry.region
    expected[(x < left) | (x > right) | (y < top) | (y > bottom)] = np.nan
    np.testing.assert_allclose(map_of(values, geometry).resize_to_image(), expected)


def test_cells_of_a_crop_have_the_right_position() -> None:
    geometry = Geometry.identity((11, 17)).cropped(2, 4, (6, 9))
    values = torch.zeros(2, 3)
    values[1, 2] = 1
    resized = map_of(values, geometry).resize_to_image(smooth=False)
    expected_region = torch.zeros(11, 17, dtype=torch.bool)
    expected_region[5:8, 10:13] = True
    assert torch.equal(resized == 1, expected_region)
    outside = torch.ones(11, 17, dtype=torch.bool)
    outside[2:8, 4:13] = False
    assert torch.equal(resized.isnan(), outside)


def test_a_smaller_size_covers_the_same_region() -> None:
    geometry = Geometry.identity((40, 60)).cropped(0, 12, (40, 36))
    small = map_of(uniform(4, 6), geometry).resize_to_image((10, 15))
    assert small.shape == (10, 15)
    assert small[:, :3].isnan().all()
    assert small[:, 12:].isnan().all()
    assert not small[:, 3:12].isnan().any()


def test_nan_cells_do_not_affect_distant_pixels() -> None:
    values = torch.ones(4, 4)
    values[0, 0] = torch.nan
    resized = map_of(values, Geometry.identity((16, 16))).resize_to_image(smooth=False)
    assert resized.isnan().sum() == 16
    assert map_of(values, Geometry.identity((16, 16))).resize_to_image()[8:].isnan().sum() == 0


def test_indexing_uses_the_first_axis_and_keeps_the_labels() -> None:
    maps = AttentionMap(uniform(3, 5, 7), "attend", "words", labels=("a", "red", "dog"))
    assert len(maps) == 3
    assert maps[1].info.label == "red"
    assert torch.equal(maps[-1].values, maps.values[2])
    assert maps[1:].labels == ("red", "dog")
    assert [item.info.label for item in maps] == ["a", "red", "dog"]
    assert maps[0].labels == ()
    with pytest.raises(IndexError, match="out of (bounds|range)"):
        maps[3]
    with pytest.raises(TypeError, match="a single map"):
        len(maps[0])


CHANNELS = AttentionMap(torch.rand(11), "squeeze", "channel", Geometry.identity((5, 7)))
GATE = AttentionMap(torch.rand(2, 2), "gate", "gate")
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (CHANNELS.resize_to_image, "only spatial maps .* squeeze is a channel gate"),
    (CHANNELS.boxes, "only spatial maps .* squeeze is a channel gate"),
    (GATE.resize_to_image, r"must have a geometry .* call with_geometry\(geometry\)"),
    (GATE.boxes, r"must have a geometry .* call with_geometry\(geometry\)"),
    (lambda: AttentionMap(torch.rand(2, 5, 7), "x", "words", labels=("a",)), "got 1 labels"),
    (lambda: AttentionMap(torch.rand(5, 7), "x", "words", labels=("a",) * 5), "one label for each"),
    (lambda: AttentionMap.from_array(torch.rand(4, 4), v2.Resize(4)), "image_size must be the"),
    (lambda: AttentionMap.from_array(torch.rand(4, 4), v2.RandomCrop(4), (9, 9)), "is random"),
]


@pytest.mark.parametrize(("call", "match"), REFUSED)
def test_maps_that_lie_nowhere_or_are_misnamed_are_refused(
    call: Callable[[], Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        call()


def test_display_range_depends_on_the_kind() -> None:
    peaked = torch.zeros(3, 4, 4)
    peaked[0, 0, 0], peaked[1, 0, 0], peaked[2, 0, 0] = 0.9, 0.5, 0.3
    assert AttentionMap(peaked, "s", "words").display_range() == (0, 0.5)
    assert AttentionMap(peaked, "s", "gate").display_range() == (0, 1)
    assert AttentionMap(peaked / 10, "s", "words").display_range() == (0, 0.25)
    assert AttentionMap(peaked / 10, "s", "gradient").display_range() == (0, pytest.approx(0.05))
    assert AttentionMap(torch.zeros(3, 3), "s", "gradient").display_range() == (0, 1)
    peaks = torch.tensor([0.9, 0.5, 0.6, 0.8, 0.7, 0.4])[:, None, None]
    assert AttentionMap(peaks, "s", "gradient").display_range() == (0, pytest.approx(0.8))
