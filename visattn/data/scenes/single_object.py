"""Scenes with one thing each: images to be told apart by shape."""

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from visattn.data.scenes.dataset import Scenes, Split
from visattn.data.scenes.render import draw
from visattn.data.scenes.world import Kinds, World

LONE = Kinds(count=(2, 2))
"""Worlds of which one thing is left: with two, as no world has fewer."""


@dataclass(frozen=True)
class SingleObjectScenes:
    """Scenes with one thing each, drawn.

    Args:
        images: In RGB.
        shapes: The shape of each thing, as its number among those that may appear.
        centers: The middle of each thing: x and y, from -1 to 1 across the image.
    """

    images: UInt8[Tensor, "n 3 y x"]
    shapes: Int[Tensor, " n"]
    centers: Float[Tensor, "n 2"]


def lone_world(scenes: Scenes, index: int) -> World:
    """Return a scene in which a single thing is left, any one of those it holds.

    Args:
        scenes: The scenes.
        index: Which of them.

    Raises:
        IndexError: If there is no such scene.

    Example:
        >>> [thing.shape for thing in lone_world(Scenes(3), 1).things]
        ['triangle']
    """
    world = scenes.world(index)
    stream = (scenes.seed, get_args(Split).index(scenes.split), index, 1)
    left = int(np.random.default_rng(stream).integers(len(world.things)))
    return replace(world, things=(world.things[left],))


def lone_things(scenes: Scenes) -> SingleObjectScenes:
    """Draw all scenes with a single thing each.

    Args:
        scenes: The scenes.

    Example:
        >>> things = lone_things(Scenes(5, size=16))
        >>> tuple(things.images.shape), len(things.shapes)
        ((5, 3, 16, 16), 5)
    """
    worlds = [lone_world(scenes, index) for index in range(len(scenes))]
    drawn = np.stack([draw(world, scenes.size) for world in worlds])
    things = [world.things[0] for world in worlds]
    return SingleObjectScenes(
        torch.from_numpy(np.ascontiguousarray(drawn.transpose(0, 3, 1, 2))),
        torch.tensor([scenes.kinds.shapes.index(thing.shape) for thing in things]),
        2 * torch.tensor([(thing.x, thing.y) for thing in things]) - 1,
    )
