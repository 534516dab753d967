"""Scenes: what is sampled, how it is drawn, and that both follow from seed, split and index."""

import math
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from visattn.data.scenes.dataset import (
    SINGLE_OBJECT,
    Scenes,
    SingleCaptionScenes,
    single_object_scenes,
    single_object_world,
)
from visattn.data.scenes.language import describe_world
from visattn.data.scenes.world import (
    COLORS,
    HELD_OUT,
    RADII,
    SHAPES,
    SIGNED_DISTANCES,
    TEXTURES,
    SceneObject,
    World,
    WorldConfig,
    draw_world,
    object_boxes,
    object_masks,
    sample_world,
)

GRAY = ((120.0, 120.0, 120.0), (120.0, 120.0, 120.0))


def sampled(seed: int, config: WorldConfig | None = None, **options: Any) -> World:
    return sample_world(config or WorldConfig(), np.random.default_rng(seed), **options)


def thing(
    shape: str, x: float, y: float, *, texture: str = "plain", color: str = "red"
) -> SceneObject:
    return SceneObject(shape, color, texture, "medium", x, y, 0.15, 0.1, COLORS[color])


# ---------------------------------------------------------------- sampling


@given(seed=st.integers(0, 10**9), novel=st.booleans(), count=st.integers(2, 5))
def test_objects_are_disjoint_inside_the_image_and_sorted_by_size(
    seed: int, *, novel: bool, count: int
) -> None:
    things = sampled(seed, WorldConfig(num_objects=(count, count)), novel=novel).objects
    assert len(things) == count
    radii = [thing.radius for thing in things]
    assert radii == sorted(radii, reverse=True)
    for i, item in enumerate(things):
        assert RADII[item.size][0] <= item.radius <= RADII[item.size][1]
        assert item.radius < min(item.x, item.y, 1 - item.x, 1 - item.y)
        for other in things[:i]:
            assert math.dist((item.x, item.y), (other.x, other.y)) > item.radius + other.radius


def test_held_out_pairs_are_in_novel_scenes_only() -> None:
    for split in ("train", "validation", "test"):
        scenes = Scenes(250, split=split)  # pyright: ignore[reportArgumentType]
        pairs = {(t.color, t.shape) for i in range(250) for t in scenes.world(i).objects}
        assert not pairs & set(HELD_OUT)
        assert len(pairs) == len(COLORS) * len(SHAPES) - len(HELD_OUT)
    scenes, shown = Scenes(120, split="novel"), set()
    for index in range(120):
        first, *others = scenes.world(index).objects
        shown.add((first.color, first.shape))
        assert not {(thing.color, thing.shape) for thing in others} & set(HELD_OUT)
        said = f"{first.color} {first.shape}"
        assert all(said in content.text for content in describe_world(scenes.world(index)))
    assert shown == set(HELD_OUT)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: WorldConfig(colors=("red", "mauve")), "choose from red, green"),
    (lambda: WorldConfig(shapes=()), "choose from circle"),
    (lambda: WorldConfig(num_objects=(1, 3)), "2 <= minimum <= maximum <= 5"),
    (lambda: WorldConfig(num_objects=(4, 3)), "minimum <= maximum"),
    (lambda: sampled(0, WorldConfig(colors=("cyan", "pink")), novel=True), "have no held-out pair"),
    (lambda: sampled(0, WorldConfig(("red",), ("square",))), "have only held-out pairs"),
    (lambda: Scenes(3)[3], r"index must be in \[0, 3\), got 3"),
    (lambda: Scenes(3)[-1], r"index must be in \[0, 3\), got -1"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_sampled_is_refused(number: int) -> None:
    call, message = REFUSED[number]
    with pytest.raises((ValueError, IndexError), match=message):
        call()


@given(index=st.integers(0, 10), order=st.permutations(range(5)), more=st.integers(11, 10**6))
def test_scene_depends_on_seed_split_and_index_only(
    index: int, order: list[int], more: int
) -> None:
    fresh = Scenes(11, size=31, seed=3)[index]
    used = Scenes(more, size=31, seed=3)
    for other in order:
        used.world(other)
    assert torch.equal(used[index].image, fresh.image)
    assert used[index].captions == fresh.captions
    assert used[index].id == fresh.id == f"train-{index}"
    assert used.world(index) == Scenes(11, size=89, seed=3).world(index)


def test_scenes_differ_between_seeds_and_splits_and_are_pickled() -> None:
    worlds = [Scenes(3, seed=seed).world(1) for seed in range(5)]
    worlds += [Scenes(3, split=split).world(1) for split in ("validation", "test", "novel")]
    worlds += [Scenes(3).world(2)]
    assert len(set(worlds)) == len(worlds)
    config = WorldConfig(colors=("red", "cyan"))
    scenes = Scenes(3, size=16, config=config)
    again = pickle.loads(pickle.dumps(SingleCaptionScenes(3, size=16, config=config)))
    assert torch.equal(again[4].image, scenes[0].image)
    assert [again[i].captions for i in range(15)] == [
        (caption,) for i in range(3) for caption in scenes[i].captions
    ]


# ---------------------------------------------------------------- drawing


@given(index=st.integers(0, 10**6), size=st.sampled_from([16, 31, 97]))
def test_masks_lie_in_their_circles_and_boxes_touch_them_on_all_sides(
    index: int, size: int
) -> None:
    world = Scenes(10**6 + 1).world(index)
    covered = object_masks(world, size)
    assert covered.sum(0).max() == 1
    for mask, box, item in zip(covered, object_boxes(world, size), world.objects, strict=True):
        y, x = mask.nonzero()
        distance = np.hypot(x + 0.5 - item.x * size, y + 0.5 - item.y * size)
        assert distance.max() <= item.radius * size + 1e-3
        assert box.tolist() == [x.min(), y.min(), x.max() + 1, y.max() + 1]


# Of a box of side 2: pi/4, 1.4²/4, an equilateral triangle, two bars, a ring, ten thin triangles.
AREAS = {"circle": 0.7854, "square": 0.49, "triangle": 0.3248, "cross": 0.45, "ring": 0.6046,
         "star": 0.3306}  # fmt: skip


@pytest.mark.parametrize("shape", SIGNED_DISTANCES)
def test_mask_covers_the_changed_pixels_and_has_the_area_of_the_shape(shape: str) -> None:
    with_it = World((thing(shape, 0.4, 0.6),), GRAY, 7)
    changed = (draw_world(with_it, 89) != draw_world(World((), GRAY, 7), 89)).any(-1)
    (mask,) = object_masks(with_it, 89)
    assert not (mask & ~changed).any()
    assert (changed & ~mask).sum() < 0.6 * mask.sum()  # the smoothed edge
    (large,) = object_masks(World((thing(shape, 0.5, 0.5),), GRAY, 0), 997)
    assert large.sum() / (0.3 * 997) ** 2 == pytest.approx(AREAS[shape], rel=0.01)


def test_rendering_is_consistent_across_sizes() -> None:
    world = Scenes(5).world(2)
    small, large = draw_world(world, 48), draw_world(world, 96)
    halved = large.reshape(48, 2, 48, 2, 3).mean((1, 3))
    assert np.abs(halved - small).mean() < 5


def test_golden_images(golden: Callable[[str, np.ndarray], None]) -> None:
    colors = list(COLORS)
    things = tuple(
        thing(shape, (column % 3 + 0.5) / 3, (column // 3 + 0.5) / 3 + 0.08,
              texture=TEXTURES[column % 3], color=colors[column])
        for column, shape in enumerate(SHAPES)
    )  # fmt: skip
    golden("scene_shapes", draw_world(World(things, GRAY, 3), 96))
    image = Scenes(2, size=96, split="test")[1].image
    golden("scene_sampled", image.permute(1, 2, 0).numpy())


# ---------------------------------------------------------------- single objects

SINGLE = Scenes(97, size=37, seed=3, config=SINGLE_OBJECT)


def test_single_objects_are_of_their_scene_and_alone_at_their_center() -> None:
    left = [single_object_world(SINGLE, index).objects for index in range(97)]
    ranks = [SINGLE.world(index).objects.index(thing) for index, (thing,) in enumerate(left)]
    assert 30 < sum(ranks) < 67  # the larger one about as often as the smaller one
    shapes = Counter(item.shape for (item,) in left)
    assert set(shapes) == set(SHAPES)
    assert min(shapes.values()) > 7
    things = single_object_scenes(SINGLE)
    assert things.centers is not None
    for index in range(0, 97, 7):
        world = single_object_world(SINGLE, index)
        [item], [box] = world.objects, object_boxes(world, 37).astype(int)
        assert SHAPES[int(things.labels[index])] == item.shape
        (mask,) = torch.from_numpy(object_masks(world, 37))
        empty = torch.from_numpy(draw_world(replace(world, objects=()), 37)).permute(2, 0, 1)
        changed = (things.images[index] != empty).any(0)
        assert (changed & mask).any()
        left_edge, top, right, bottom = box
        changed[max(0, top - 2) : bottom + 2, max(0, left_edge - 2) : right + 2] = False
        assert not changed.any()
        x, y = (37 * (things.centers[index] + 1) / 2).tolist()
        assert (x, y) == pytest.approx((37 * item.x, 37 * item.y), abs=1e-4)
