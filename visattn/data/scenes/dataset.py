"""Scenes: deterministic data sets of captions and of single objects, rendered on access."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.scenes.language import SceneCaption, describe_world
from visattn.data.scenes.world import World, WorldConfig, draw_world, object_masks, sample_world
from visattn.results.kinds import Split


class Scenes(Dataset[CaptionSample]):
    """Rendered images of colored, textured shapes, each with five true captions.

    Scene i of a split depends on the seed, the split and i alone. The split `novel` tests
    compositional generalization: each of its scenes shows and describes a color-shape pair of
    `HELD_OUT`, which no other split contains.

    Args:
        num_scenes: Number of scenes.
        size: Height and width in pixels; the scenes are the same at any size.
        split: `train`, `validation`, `test` or `novel`.
        seed: Seed of the scenes.
        config: Distribution of worlds.

    Example:
        >>> scenes = Scenes(3, size=48, split="test")
        >>> scenes[1].image.shape, scenes[1].captions[0]
        (torch.Size([3, 48, 48]), 'a pink square is left of a striped cyan star')
    """

    def __init__(
        self,
        num_scenes: int,
        *,
        size: int = 64,
        split: Split = "train",
        seed: int = 0,
        config: WorldConfig | None = None,
    ) -> None:
        self.num_scenes = num_scenes
        self.size = size
        self.split = split
        self.seed = seed
        self.config = config or WorldConfig()

    def __len__(self) -> int:
        return self.num_scenes

    def __getitem__(self, index: int) -> CaptionSample:
        world = self.world(index)
        return self._sample(index, world, tuple(caption.text for caption in describe_world(world)))

    def single_caption_sample(self, index: int, caption: int) -> CaptionSample:
        """Return a scene with one of its five captions."""
        world = self.world(index)
        return self._sample(index, world, (describe_world(world)[caption].text,))

    def world(self, index: int) -> World:
        """Return the ground truth of a scene."""
        if not 0 <= index < self.num_scenes:
            raise IndexError(f"index must lie in [0, {self.num_scenes}), got {index}")
        stream = (self.seed, get_args(Split).index(self.split), index)
        return sample_world(self.config, np.random.default_rng(stream), novel=self.split == "novel")

    def image(self, index: int) -> UInt8[Tensor, "3 y x"]:
        """Return the rendered image of a scene."""
        return self._render(self.world(index))

    def captions(self, index: int) -> tuple[SceneCaption, ...]:
        """Return the five captions of a scene with the object that each word refers to."""
        return describe_world(self.world(index))

    def masks(self, index: int) -> Bool[Tensor, "objects y x"]:
        """Return the mask of each object of a scene; `mask_boxes` returns their boxes."""
        return torch.from_numpy(object_masks(self.world(index), self.size))

    def _sample(self, index: int, world: World, captions: tuple[str, ...]) -> CaptionSample:
        return CaptionSample(f"{self.split}-{index}", self._render(world), captions, world)

    def _render(self, world: World) -> UInt8[Tensor, "3 y x"]:
        pixels: UInt8[np.ndarray, "y x 3"] = draw_world(world, self.size)
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


class SingleCaptionScenes(Dataset[CaptionSample]):
    """Each scene five times, once with each of its captions, for training.

    Indices may exceed the length: with n captions, i + n is caption i again.

    Example:
        >>> len(SingleCaptionScenes(Scenes(3)))
        15
    """

    def __init__(self, scenes: Scenes) -> None:
        self.scenes = scenes

    def __len__(self) -> int:
        return 5 * len(self.scenes)

    def __iter__(self) -> Iterator[CaptionSample]:
        # Without this, iteration would not end: __getitem__ never raises IndexError.
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> CaptionSample:
        return self.scenes.single_caption_sample(*divmod(index % len(self), 5))

    def length(self, index: int) -> int:
        """Return the number of words of a caption, without rendering its scene."""
        scene, caption = divmod(index, 5)
        return len(self.scenes.captions(scene)[caption].words)


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
