"""How an image and its glimpses fill a room."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from visattn.viz.maps.legend import TRACK
from visattn.viz.scanpaths.view import scan_view

INSIDE = np.array([[[2.0, 2, 6, 6]]])


@given(
    height=st.integers(1, 700),
    width=st.integers(1, 700),
    x=st.floats(-900, 900),
    y=st.floats(-900, 900),
    reach=st.sampled_from([0.0, 0.15]),
)
def test_everything_stays_in_the_room(
    height: int, width: int, x: float, y: float, reach: float
) -> None:
    box = np.array([[[x, y, x + 12, y + 12]]])
    view = scan_view((height, width), box, (300, 400), reach=reach)
    assert view.size[0] <= 303
    assert view.size[1] <= 403
    left, top, right, bottom = view.area
    assert 0 <= left < right <= view.size[1]
    assert 0 <= top < bottom <= view.size[0]


def test_a_image_that_holds_its_boxes_has_no_margin() -> None:
    view = scan_view((28, 21), INSIDE, (400, 400))
    assert view.size == view.drawn == (28 * 14, 21 * 14)  # whole squares
    assert view.corner == (0, 0)


def test_large_images_are_made_smaller_in_proportion() -> None:
    view = scan_view((480, 640), INSIDE, (400, 400))
    assert view.size == (300, 400)
    assert view.scale == (0.625, 0.625)


def test_the_margin_follows_the_finest_window_and_no_further_than_its_reach() -> None:
    out = np.array([[[-2.0, 8, 6, 16], [-6, 4, 10, 20]], [[15.0, 39, 23, 47], [0, 0, 99, 99]]])
    view = scan_view((40, 20), out, (400, 400))
    assert view.corner == (2 * view.scale[0], 0)
    assert view.size == ((40 + 6) * view.scale[1], (20 + 2 + 3) * view.scale[0])


def test_boxes_go_where_their_pixels_go() -> None:
    image = np.zeros((20, 30, 3), np.uint8)
    image[4:9, 21:29] = 255
    box = np.array([[[21.0, 4, 29, 9]], [[-3.0, 0, 5, 8]]])
    view = scan_view((20, 30), box, (200, 200))
    canvas = view.canvas(image)
    left, top, right, bottom = view.boxes(box)[0, 0].astype(int)
    white = np.argwhere((canvas == 255).all(2))
    assert [*white.min(0), *(white.max(0) + 1)] == [top, left, bottom, right]
    assert (canvas[:, : view.corner[0]] == TRACK).all()
    np.testing.assert_allclose(
        view.boxes(box) - view.boxes_on_image(box), np.tile([view.corner * 2], (2, 1, 1))
    )


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1)])
def test_thin_images_have_at_least_a_pixel(size: tuple[int, int]) -> None:
    assert min(scan_view(size, INSIDE, (200, 200), reach=0).drawn) >= 1
