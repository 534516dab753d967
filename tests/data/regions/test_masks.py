"""Rasterization of polygons, run lengths and boxes."""

import numpy as np
from hypothesis import given, settings, strategies as st

from visattn.data.regions.masks import (
    boxes_mask,
    polygon_mask,
    rle_mask,
)

SIZE = (11, 13)


def inside(polygon: list[float], y: float, x: float) -> bool:
    """Even-odd rule with a ray to the left."""
    corners = list(zip(polygon[::2], polygon[1::2], strict=True))
    count = 0
    for (x0, y0), (x1, y1) in zip(corners, [*corners[1:], corners[0]], strict=True):
        if (y0 <= y < y1) or (y1 <= y < y0):
            count += x0 + (y - y0) * (x1 - x0) / (y1 - y0) <= x
    return count % 2 == 1


Corner = st.integers(-20, 160).map(lambda number: number / 10 + 0.03)


@given(st.lists(Corner, min_size=6, max_size=14).filter(lambda numbers: len(numbers) % 2 == 0))
@settings(max_examples=40, deadline=None)
def test_polygon_mask_has_pixels_with_centers_inside(polygon: list[float]) -> None:
    expected = [[inside(polygon, y + 0.5, x + 0.5) for x in range(13)] for y in range(11)]
    assert polygon_mask([polygon], SIZE).tolist() == expected


def test_polygons_are_joined_and_full_polygon_fills_the_mask() -> None:
    whole = [0.0, 0.0, 13.0, 0.0, 13.0, 11.0, 0.0, 11.0]
    assert polygon_mask([whole], SIZE).all()
    assert polygon_mask([whole, whole], SIZE).all()
    assert not polygon_mask([], SIZE).any()


def packed(lengths: list[int]) -> str:
    """Return run lengths in COCO's compressed text format."""
    text = ""
    for index, length in enumerate(lengths):
        value = length - lengths[index - 2] if index > 2 else length
        more = True
        while more:
            bits = value & 31
            value >>= 5
            more = value != (-1 if bits & 16 else 0)
            text += chr(48 + (bits | 32 if more else bits))
    return text


@given(st.lists(st.integers(0, 10), min_size=1, max_size=11))
def test_rle_is_column_major(lengths: list[int]) -> None:
    lengths = [*lengths, 143 - sum(lengths)]
    pixels = [index % 2 == 1 for index, count in enumerate(lengths) for _ in range(count)]
    expected = np.array(pixels).reshape(13, 11).T
    assert np.array_equal(rle_mask(lengths, SIZE), expected)
    assert np.array_equal(rle_mask(packed(lengths), SIZE), expected)


def test_box_mask_has_pixels_with_centers_inside() -> None:
    mask = boxes_mask([(1.5, 2.5, 3.4, 4.6), (12.0, 10.0, 99.0, 99.0)], SIZE)
    assert np.argwhere(mask).tolist() == [[2, 1], [2, 2], [3, 1], [3, 2], [4, 1], [4, 2], [10, 12]]
