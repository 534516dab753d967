"""Sampling of scenes: disjoint objects, balanced attributes, held-out pairs."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.world import (
    COLORS,
    HELD_OUT,
    RADII,
    SHAPES,
    TEXTURES,
    WorldConfig,
    sample_world,
)
from visattn.results.kinds import Split


@given(seed=st.integers(0, 10**9), novel=st.booleans(), count=st.integers(2, 5))
def test_objects_are_disjoint_inside_the_image_and_sorted_by_size(
    seed: int, *, novel: bool, count: int
) -> None:
    things = sample_world(
        WorldConfig(num_objects=(count, count)), np.random.default_rng(seed), novel=novel
    ).objects
    assert len(things) == count
    radii = [thing.radius for thing in things]
    assert radii == sorted(radii, reverse=True)
    for i, item in enumerate(things):
        assert RADII[item.size][0] <= item.radius <= RADII[item.size][1]
        assert item.radius < min(item.x, item.y, 1 - item.x, 1 - item.y)
        for other in things[:i]:
            assert math.dist((item.x, item.y), (other.x, other.y)) > item.radius + other.radius


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_held_out_pairs_are_absent_from_training_scenes(split: Split) -> None:
    scenes = Scenes(300, split=split)
    pairs = {(t.color, t.shape) for i in range(300) for t in scenes.world(i).objects}
    assert not pairs & set(HELD_OUT)
    assert len(pairs) == len(COLORS) * len(SHAPES) - len(HELD_OUT)


def test_novel_scenes_have_a_held_out_pair() -> None:
    scenes, shown = Scenes(300, split="novel"), set()
    for index in range(300):
        first, *others = scenes.world(index).objects
        pair = (first.color, first.shape)
        assert pair in HELD_OUT
        assert not {(thing.color, thing.shape) for thing in others} & set(HELD_OUT)
        assert all(f"{pair[0]} {pair[1]}" in content.text for content in scenes.captions(index))
        shown.add(pair)
    assert shown == set(HELD_OUT)


def test_attributes_are_balanced() -> None:
    worlds = [sample_world(WorldConfig(), np.random.default_rng(i)) for i in range(600)]
    things = [thing for world in worlds for thing in world.objects]
    pairs = WorldConfig().color_shape_pairs(novel=False)
    textures = [thing.texture for thing in things]
    counts: list[tuple[Counter[Any], Sequence[Any]]] = [
        (Counter((thing.color, thing.shape) for thing in things), pairs),
        (Counter(textures), TEXTURES),
    ]
    for result, known in counts:
        assert set(result) == set(known)
        even = 1 / len(known)
        for word in known:  # four standard errors around an even share
            share = result[word] / len(things)
            assert abs(share - even) < 4 * math.sqrt(even * (1 - even) / len(things)), word
    assert {len(world.objects) for world in worlds} == {2, 3, 4}
    sizes = Counter(thing.size for thing in things)
    assert min(sizes[size] for size in RADII) > 0.2 * len(things)


def test_only_configured_attributes_appear() -> None:
    kinds = WorldConfig(("red", "blue"), ("ring", "star"), ("dotted",), (3, 3))
    for seed in range(50):
        for thing in sample_world(kinds, np.random.default_rng(seed)).objects:
            assert thing.color in kinds.colors
            assert thing.shape in kinds.shapes
            assert thing.texture == "dotted"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"colors": ("red", "mauve")}, "colors must be chosen from red, green"),
        ({"shapes": ()}, "shapes must be chosen from circle"),
        ({"textures": ("furry",)}, "textures must be chosen from plain, striped, dotted, got"),
        ({"num_objects": (1, 3)}, "2 <= minimum <= maximum <= 5"),
        ({"num_objects": (4, 3)}, "minimum <= maximum"),
        ({"num_objects": (2, 6)}, "maximum <= 5"),
    ],
)
def test_unknown_attributes_are_refused(arguments: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        WorldConfig(**arguments)


def test_world_requires_color_shape_pairs() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="have no held-out pair; allow more"):
        sample_world(WorldConfig(colors=("cyan", "pink")), rng, novel=True)
    with pytest.raises(ValueError, match="have only held-out pairs; allow more"):
        sample_world(WorldConfig(colors=("red",), shapes=("square",)), rng)
