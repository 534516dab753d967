"""Synthetic scenes: deterministic datasets of captions and objects, rendered on access."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, get_args

import numpy as np
import torch

from visattn.data.captions.batch import CaptionSample
from visattn.data.classification.datasets import Labeled
from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.scenes.language import describe_world, grammar_words
from visattn.data.scenes.world import (
    COLORS,
    SHAPES,
    TEXTURES,
    World,
    WorldConfig,
    draw_world,
    object_masks,
    sample_world,
)
from visattn.data.source import Source
from visattn.images.reader import LoadedImage
from visattn.results.kinds import Split


@dataclass(eq=False)
class Scenes(Sequence[CaptionSample]):
    """Synthetic images of colored, textured shapes, with five true captions each.

    Scene i of a split depends only on the seed, the split and i. The split `novel` tests
    compositional generalization: each scene shows and describes a color-shape pair of `HELD_OUT`,
    which no other split contains.

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

    num_scenes: int
    _: KW_ONLY
    size: int = 64
    split: Split = "train"
    seed: int = 0
    config: WorldConfig = field(default_factory=WorldConfig)

    def __len__(self) -> int:
        return self.num_scenes

    def __getitem__(self, index: Any) -> Any:
        world = self.world(index)
        captions = tuple(caption.text for caption in describe_world(world))
        pixels = np.ascontiguousarray(draw_world(world, self.size).transpose(2, 0, 1))
        return CaptionSample(f"{self.split}-{index}", torch.from_numpy(pixels), captions, world)

    def world(self, index: int) -> World:
        """Return the ground truth of a scene."""
        if not 0 <= index < self.num_scenes:
            raise IndexError(f"index must be in [0, {self.num_scenes}), got {index}")
        stream = (self.seed, get_args(Split).index(self.split), index)
        return sample_world(self.config, np.random.default_rng(stream), novel=self.split == "novel")


class SingleCaptionScenes(Scenes):
    """Training samples: each scene five times, once with each of its captions.

    Example:
        >>> len(SingleCaptionScenes(3))
        15
    """

    def __len__(self) -> int:
        return 5 * self.num_scenes

    def __getitem__(self, index: Any) -> Any:
        scene, caption = divmod(index, 5)
        sample = super().__getitem__(scene)
        return sample._replace(captions=(sample.captions[caption],))


@dataclass(eq=False)
class SceneRegions(Sequence[AnnotatedImage]):
    """Scenes with the mask of each object, whose category is its shape.

    Example:
        >>> SceneRegions(Scenes(3))[1].categories
        ('circle', 'ring', 'star', 'triangle')
    """

    scenes: Scenes

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: Any) -> Any:
        scenes = self.scenes
        world = scenes.world(index)
        image = LoadedImage(draw_world(world, scenes.size))
        objects = tuple(
            AnnotatedObject(item.shape, mask)
            for item, mask in zip(world.objects, object_masks(world, scenes.size), strict=True)
        )
        return AnnotatedImage(f"{scenes.split}-{index}", image, image.size, objects)


SINGLE_OBJECT = WorldConfig(num_objects=(2, 2))
"""Config of scenes that are reduced to one object; a world has at least two."""


def single_object_world(scenes: Scenes, index: int) -> World:
    """Return a scene reduced to one randomly chosen object.

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


def single_object_scenes(scenes: Scenes) -> Labeled:
    """Render all scenes with a single object each.

    Example:
        >>> single = single_object_scenes(Scenes(5, size=16))
        >>> tuple(single.images.shape), len(single.labels)
        ((5, 3, 16, 16), 5)
    """
    worlds = [single_object_world(scenes, index) for index in range(len(scenes))]
    images = np.stack([draw_world(world, scenes.size) for world in worlds])
    objects = [world.objects[0] for world in worlds]
    return Labeled(
        torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))),
        torch.tensor([scenes.config.shapes.index(obj.shape) for obj in objects]),
        2 * torch.tensor([(obj.x, obj.y) for obj in objects]) - 1,
    )


@dataclass
class RenderedScenes(Source):
    """Base class of sources of synthetic scenes; no files are needed.

    Objects do not overlap. In the split `novel`, which is as large as the test split, the largest
    object has a color-shape pair that never occurs in training.

    Args:
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of test scenes.
        image_size: Height and width of the images in pixels.
        colors: Colors of the objects.
        shapes: Shapes of the objects.
        textures: Textures of the objects.
        min_objects: Smallest number of objects in a scene, at least 2.
        max_objects: Largest number of objects in a scene, at most 5.
        seed: Seed of the scenes; by default the seed of the data module.
    """

    train: int = 200_000
    val: int = 500
    test: int = 1000
    image_size: int = 64
    colors: list[str] = field(default_factory=lambda: list(COLORS))
    shapes: list[str] = field(default_factory=lambda: list(SHAPES))
    textures: list[str] = field(default_factory=lambda: list(TEXTURES))
    min_objects: int = 2
    max_objects: int = 4
    seed: int | None = None
    test_splits = ("test", "novel")
    num_workers = 0

    def __post_init__(self) -> None:
        counts = (self.min_objects, self.max_objects)
        self.config = WorldConfig(
            tuple(self.colors), tuple(self.shapes), tuple(self.textures), counts
        )
        self.class_names = tuple(self.shapes)

    def scenes(self, split: Split, kind: type[Scenes] = Scenes) -> Scenes:
        """Return the scenes of a split."""
        count = {"train": self.train, "validation": self.val}.get(split, self.test)
        seed = self.seed or 0
        return kind(count, size=self.image_size, split=split, seed=seed, config=self.config)


@dataclass
class SceneCaptions(RenderedScenes):
    """Scenes with captions that a grammar can verify; options as in `RenderedScenes`."""

    num_workers = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.words = tuple(grammar_words(self.config))

    def __call__(self, split: Split) -> Sequence[CaptionSample]:
        """Return the scenes of a split; for training, one sample per caption."""
        return self.scenes(split, SingleCaptionScenes if split == "train" else Scenes)


@dataclass
class SceneObjects(RenderedScenes):
    """Scenes with boxes and masks; the shapes are the classes; options as in `RenderedScenes`."""

    def __call__(self, split: Split) -> Sequence[AnnotatedImage]:
        """Return the scenes of a split."""
        return SceneRegions(self.scenes(split))


@dataclass
class SingleObjects(RenderedScenes):
    """Images of one object, whose shape is the class; options as in `RenderedScenes`."""

    train: int = 10_000
    val: int = 1000
    test: int = 2000
    max_objects: int = 2
    test_splits = ("test",)

    def __call__(self, split: Split) -> Labeled:
        """Return the rendered scenes of a split."""
        return single_object_scenes(self.scenes(split))
