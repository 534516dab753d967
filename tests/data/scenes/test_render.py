"""Rendering of scenes: masks, colors, sizes, and golden images."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.world import (
    COLORS,
    SHAPES,
    SIGNED_DISTANCES,
    TEXTURES,
    SceneObject,
    World,
    draw_world,
    object_boxes,
    object_masks,
)

GRAY = ((120.0, 120.0, 120.0), (120.0, 120.0, 120.0))


def thing(
    shape: str, x: float, y: float, *, texture: str = "plain", color: str = "red"
) -> SceneObject:
    return SceneObject(shape, color, texture, "medium", x, y, 0.15, 0.1, COLORS[color])


def inside(mask: np.ndarray) -> np.ndarray:
    """The pixels of a mask without its edge."""
    kept = mask.copy()
    for axis, step in ((0, 1), (0, -1), (1, 1), (1, -1)):
        kept &= np.roll(mask, step, axis)
    return kept


def test_every_shape_has_an_outline() -> None:
    assert tuple(SIGNED_DISTANCES) == SHAPES


@given(index=st.integers(0, 10**6), size=st.sampled_from([16, 31, 64, 97]))
def test_masks_are_disjoint_and_inside_their_circles(index: int, size: int) -> None:
    world = Scenes(10**6 + 1).world(index)
    covered = object_masks(world, size)
    assert covered.shape == (len(world.objects), size, size)
    assert covered.sum(0).max() == 1
    for mask, item in zip(covered, world.objects, strict=True):
        y, x = mask.nonzero()
        assert len(y) > 0
        distance = np.hypot(x + 0.5 - item.x * size, y + 0.5 - item.y * size)
        assert distance.max() <= item.radius * size + 1e-3


@given(index=st.integers(0, 10**6), size=st.sampled_from([16, 31, 97]))
def test_boxes_touch_the_pixels_of_their_object_on_all_sides(index: int, size: int) -> None:
    world = Scenes(10**6 + 1).world(index)
    pairs = zip(object_boxes(world, size), object_masks(world, size), strict=True)
    for (left, top, right, bottom), mask in pairs:
        y, x = mask.nonzero()
        assert (left, top) == (x.min(), y.min())
        assert (right, bottom) == (x.max() + 1, y.max() + 1)


def test_box_of_a_triangle_is_smaller_than_its_circle() -> None:
    [(left, top, right, bottom)] = object_boxes(World((thing("triangle", 0.5, 0.5),), GRAY, 0), 997)
    assert (right - left) * (bottom - top) < 0.8 * (2 * 0.15 * 997) ** 2
    assert bottom < (0.5 + 0.15) * 997 - 50  # an empty fifth of the circle is below its base


@given(index=st.integers(0, 10**6))
def test_pixels_of_a_plain_object_have_its_color(index: int) -> None:
    world = Scenes(10**6 + 1).world(index)
    image = draw_world(world, 97).astype(int)
    for mask, item in zip(object_masks(world, 97), world.objects, strict=True):
        pixels = image[inside(mask)]
        own = (np.abs(pixels - item.rgb) <= 1).all(1)
        dark = pixels.sum(1) < 0.5 * sum(item.rgb)
        if item.texture == "plain":
            assert own.mean() > 0.8  # the others border on the background
        else:
            assert own.mean() > 0.2
            assert dark.mean() > 0.05


@pytest.mark.parametrize("shape", SHAPES)
def test_mask_covers_the_changed_pixels(shape: str) -> None:
    with_it = World((thing(shape, 0.4, 0.6),), GRAY, 7)
    changed = (draw_world(with_it, 89) != draw_world(World((), GRAY, 7), 89)).any(-1)
    (mask,) = object_masks(with_it, 89)
    assert not (mask & ~changed).any()
    assert (changed & ~mask).sum() < 0.6 * mask.sum()  # the smoothed edge


@pytest.mark.parametrize(
    ("shape", "share"),
    # of a box of side 2: pi/4, 1.4²/4, an equilateral triangle, two bars, a ring, ten thin ones
    [
        ("circle", 0.7854),
        ("square", 0.49),
        ("triangle", 0.3248),
        ("cross", 0.45),
        ("ring", 0.6046),
        ("star", 0.3306),
    ],
)
def test_mask_areas_match_the_shapes(shape: str, share: float) -> None:
    (mask,) = object_masks(World((thing(shape, 0.5, 0.5),), GRAY, 0), 997)
    assert mask.sum() / (0.3 * 997) ** 2 == pytest.approx(share, rel=0.01)


def test_triangle_points_up_and_ring_has_a_hole() -> None:
    (mask,) = object_masks(World((thing("triangle", 0.5, 0.5),), GRAY, 0), 101)
    widths = mask.sum(1)[mask.any(1)]
    assert widths[-3:].mean() > 3 * widths[:3].mean()
    (mask,) = object_masks(World((thing("ring", 0.5, 0.5),), GRAY, 0), 101)
    assert not mask[50, 50]


def test_rendering_is_consistent_across_sizes() -> None:
    world = Scenes(5).world(2)
    small, large = draw_world(world, 48), draw_world(world, 96)
    halved = large.reshape(48, 2, 48, 2, 3).mean((1, 3))
    assert np.abs(halved - small).mean() < 5


def test_background_is_a_vertical_gradient() -> None:
    world = World((), ((10.0, 20.0, 30.0), (200.0, 180.0, 160.0)), 0)
    image = draw_world(world, 97).astype(float)
    assert np.abs(image[0].mean(0) - (10, 20, 30)).max() < 3
    assert np.abs(image[-1].mean(0) - (200, 180, 160)).max() < 3
    assert 3 < (image[48] - image[48].mean(0)).std() < 7  # grain


def test_golden_image_of_shapes_and_textures(golden: Callable[[str, np.ndarray], None]) -> None:
    colors = list(COLORS)
    things = tuple(
        thing(
            shape,
            (column % 3 + 0.5) / 3,
            (column // 3 + 0.5) / 3 + 0.08,
            texture=TEXTURES[column % 3],
            color=colors[column],
        )
        for column, shape in enumerate(SHAPES)
    )
    golden("scene_shapes", draw_world(World(things, GRAY, 3), 96))


def test_golden_image_of_a_scene(golden: Callable[[str, np.ndarray], None]) -> None:
    image = Scenes(2, size=96, split="test").image(1)
    golden("scene_sampled", image.permute(1, 2, 0).numpy())
