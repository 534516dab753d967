"""Scenes with a single object: image and label agree."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from visattn.data.scenes.dataset import (
    SINGLE_OBJECT,
    Scenes,
    single_object_scenes,
    single_object_world,
)
from visattn.data.scenes.world import SHAPES, draw_world, object_boxes, object_masks

SCENES = Scenes(97, size=37, seed=3, config=SINGLE_OBJECT)


def test_remaining_object_belongs_to_the_scene() -> None:
    left = [single_object_world(SCENES, index).objects for index in range(97)]
    places = [SCENES.world(index).objects.index(thing) for index, (thing,) in enumerate(left)]
    assert 30 < sum(places) < 67  # the larger one about as often as the smaller one


def test_image_shows_its_shape_at_the_center_only() -> None:
    things = single_object_scenes(SCENES)
    assert isinstance(things.images, Tensor)
    assert things.images.shape == (97, 3, 37, 37)
    assert things.centers is not None
    for index in range(0, 97, 7):
        world = single_object_world(SCENES, index)
        assert SHAPES[int(things.labels[index])] == world.objects[0].shape
        (mask,) = torch.from_numpy(object_masks(world, 37))
        empty = torch.from_numpy(draw_world(replace(world, objects=()), 37)).permute(2, 0, 1)
        changed = (things.images[index] != empty).any(0)
        assert (changed & mask).any()
        [item], [box] = world.objects, object_boxes(world, 37).astype(int)
        left, top, right, bottom = box
        changed[max(0, top - 2) : bottom + 2, max(0, left - 2) : right + 2] = False
        assert not changed.any()
        x, y = (37 * (things.centers[index] + 1) / 2).tolist()
        assert (x, y) == pytest.approx((37 * item.x, 37 * item.y), abs=1e-4)
        rows, columns = torch.nonzero(mask, as_tuple=True)
        assert abs(float(columns.float().mean()) + 0.5 - x) < 1.5
        assert abs(float(rows.float().mean()) + 0.5 - y) < 2.5  # a triangle is bottom-heavy


def test_shapes_are_balanced() -> None:
    scenes = Scenes(300, size=16, seed=1, config=SINGLE_OBJECT)
    counts = Counter(single_object_world(scenes, index).objects[0].shape for index in range(300))
    assert set(counts) == set(SHAPES)
    assert min(counts.values()) > 30


def test_scenes_depend_on_the_seed_only() -> None:
    scenes = [single_object_scenes(Scenes(5, size=16, seed=seed)) for seed in (3, 3, 4)]
    once, again, other = (torch.as_tensor(each.images) for each in scenes)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_index_beyond_the_end_is_refused() -> None:
    with pytest.raises(IndexError, match=r"index must lie in \[0, 97\), got 97"):
        single_object_world(SCENES, 97)
