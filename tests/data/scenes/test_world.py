"""What a scene holds: things apart from each other, held-out pairs where they belong."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from visattn.data.scenes.dataset import Scenes, Split
from visattn.data.scenes.world import (
    COLORS,
    HELD_OUT,
    RADII,
    SHAPES,
    TEXTURES,
    Kinds,
    sample_world,
)


@given(seed=st.integers(0, 10**9), novel=st.booleans(), count=st.integers(2, 5))
def test_things_lie_apart_inside_the_image_largest_first(
    seed: int, *, novel: bool, count: int
) -> None:
    things = sample_world(
        Kinds(count=(count, count)), np.random.default_rng(seed), novel=novel
    ).things
    assert len(things) == count
    radii = [thing.radius for thing in things]
    assert radii == sorted(radii, reverse=True)
    for i, one in enumerate(things):
        assert RADII[one.size][0] <= one.radius <= RADII[one.size][1]
        left, top, right, bottom = one.box
        assert 0 < left < right < 1
        assert 0 < top < bottom < 1
        assert right - left == pytest.approx(2 * one.radius)
        for other in things[:i]:
            assert math.dist((one.x, one.y), (other.x, other.y)) > one.radius + other.radius


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_held_out_pairs_never_stand_where_training_looks(split: Split) -> None:
    scenes = Scenes(300, split=split)
    pairs = {(t.color, t.shape) for i in range(300) for t in scenes.world(i).things}
    assert not pairs & set(HELD_OUT)
    assert len(pairs) == len(COLORS) * len(SHAPES) - len(HELD_OUT)


def test_a_novel_scene_tells_of_a_held_out_pair() -> None:
    scenes, shown = Scenes(300, split="novel"), set()
    for index in range(300):
        first, *others = scenes.world(index).things
        pair = (first.color, first.shape)
        assert pair in HELD_OUT
        assert not {(thing.color, thing.shape) for thing in others} & set(HELD_OUT)
        assert all(f"{pair[0]} {pair[1]}" in told.text for told in scenes.tellings(index))
        shown.add(pair)
    assert shown == set(HELD_OUT)


def test_every_kind_is_about_as_common() -> None:
    worlds = [sample_world(Kinds(), np.random.default_rng(i)) for i in range(600)]
    things = [thing for world in worlds for thing in world.things]
    pairs = Kinds().pairs(novel=False)
    textures = [thing.texture for thing in things]
    counts: list[tuple[Counter[Any], Sequence[Any]]] = [
        (Counter((thing.color, thing.shape) for thing in things), pairs),
        (Counter(textures), TEXTURES),
    ]
    for found, known in counts:
        assert set(found) == set(known)
        even = 1 / len(known)
        for word in known:  # four standard errors around an even share
            share = found[word] / len(things)
            assert abs(share - even) < 4 * math.sqrt(even * (1 - even) / len(things)), word
    assert {len(world.things) for world in worlds} == {2, 3, 4}
    sizes = Counter(thing.size for thing in things)
    assert min(sizes[size] for size in RADII) > 0.2 * len(things)


def test_only_the_kinds_that_were_asked_for_appear() -> None:
    kinds = Kinds(("red", "blue"), ("ring", "star"), ("dotted",), (3, 3))
    for seed in range(50):
        for thing in sample_world(kinds, np.random.default_rng(seed)).things:
            assert thing.color in kinds.colors
            assert thing.shape in kinds.shapes
            assert thing.texture == "dotted"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"colors": ("red", "mauve")}, "colors must be chosen from red, green"),
        ({"shapes": ()}, "shapes must be chosen from circle"),
        ({"textures": ("furry",)}, "textures must be chosen from plain, striped, dotted, got"),
        ({"count": (1, 3)}, "2 <= fewest <= most <= 5"),
        ({"count": (4, 3)}, "fewest <= most"),
        ({"count": (2, 6)}, "most <= 5"),
    ],
)
def test_kinds_that_do_not_exist_are_refused(arguments: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Kinds(**arguments)


def test_a_world_needs_pairs_to_choose_from() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="hold no held-out pair; allow more"):
        sample_world(Kinds(colors=("cyan", "pink")), rng, novel=True)
    with pytest.raises(ValueError, match="hold held-out pairs alone; allow more"):
        sample_world(Kinds(colors=("red",), shapes=("square",)), rng)
