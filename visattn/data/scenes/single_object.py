"""Scenes with a single object, for shape classification."""

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.render import draw_world
from visattn.data.scenes.world import World, WorldConfig
from visattn.results.kinds import Split

SINGLE_OBJECT = WorldConfig(num_objects=(2, 2))
"""Config of the worlds that are reduced to one object; two is the minimum of a world."""


@dataclass(frozen=True)
class SingleObjectScenes:
    """Rendered scenes with one object each.

    Args:
        images: RGB images.
        shapes: Index of each object's shape in the shapes of the config.
        centers: Center of each object: x and y, from -1 to 1 across the image.
    """

    images: UInt8[Tensor, "n 3 y x"]
    shapes: Int[Tensor, " n"]
    centers: Float[Tensor, "n 2"]


def single_object_world(scenes: Scenes, index: int) -> World:
    """Return a scene reduced to one of its objects, chosen at random.

    Args:
        scenes: The scenes.
        index: Index of the scene.

    Raises:
        IndexError: If there is no such scene.

    Example:
        >>> [obj.shape for obj in single_object_world(Scenes(3), 1).objects]
        ['triangle']
    """
    world = scenes.world(index)
    stream = (scenes.seed, get_args(Split).index(scenes.split), index, 1)
    chosen = int(np.random.default_rng(stream).integers(len(world.objects)))
    return replace(world, objects=(world.objects[chosen],))


def single_object_scenes(scenes: Scenes) -> SingleObjectScenes:
    """Render all scenes with a single object each.

    Args:
        scenes: The scenes.

    Example:
        >>> single = single_object_scenes(Scenes(5, size=16))
        >>> tuple(single.images.shape), len(single.shapes)
        ((5, 3, 16, 16), 5)
    """
    worlds = [single_object_world(scenes, index) for index in range(len(scenes))]
    images = np.stack([draw_world(world, scenes.size) for world in worlds])
    objects = [world.objects[0] for world in worlds]
    return SingleObjectScenes(
        torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))),
        torch.tensor([scenes.config.shapes.index(obj.shape) for obj in objects]),
        2 * torch.tensor([(obj.x, obj.y) for obj in objects]) - 1,
    )
