"""Scenes as a data set: drawn when they are asked for, the same whenever they are."""

from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.scenes.grammar import SceneCaption, tell
from visattn.data.scenes.render import draw, masks
from visattn.data.scenes.world import Kinds, World, sample_world

Split = Literal["train", "validation", "test", "novel"]


class Scenes(Dataset[CaptionSample]):
    """Images of colored, textured shapes, each with five true captions.

    Scene i of a split depends on the seed, the split and i alone. The split `novel` is a test of
    composition: each of its scenes shows, and tells of, a color-shape pair of `HELD_OUT`, which
    no other split contains.

    Args:
        count: How many scenes.
        size: Height and width in pixels; any size shows the same scenes.
        split: `train`, `validation`, `test` or `novel`.
        seed: Another seed, other scenes.
        kinds: Which kinds of things may appear.

    Raises:
        ValueError: If the split is unknown, or a number makes no sense.

    Example:
        >>> scenes = Scenes(3, size=48, split="test")
        >>> scenes[1].image.shape, scenes[1].captions[0]
        (torch.Size([3, 48, 48]), 'a pink square is left of a striped cyan star')
    """

    def __init__(
        self,
        count: int,
        *,
        size: int = 64,
        split: Split = "train",
        seed: int = 0,
        kinds: Kinds | None = None,
    ) -> None:
        if split not in get_args(Split):
            raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
        if count < 1 or size < 16 or seed < 0:
            raise ValueError(
                "count must be >= 1, size >= 16 pixels and seed >= 0, "
                f"got count={count}, size={size}, seed={seed}"
            )
        self.count, self.size, self.split, self.seed = count, size, split, seed
        self.kinds = kinds or Kinds()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> CaptionSample:
        world = self.world(index)
        return self._sample(index, world, tuple(telling.text for telling in tell(world)))

    def told_once(self, index: int, telling: int) -> CaptionSample:
        """Return a scene with one of its five captions."""
        world = self.world(index)
        return self._sample(index, world, (tell(world)[telling].text,))

    def world(self, index: int) -> World:
        """Return what a scene holds."""
        if not 0 <= index < self.count:
            raise IndexError(f"index must lie in [0, {self.count}), got {index}")
        stream = (self.seed, get_args(Split).index(self.split), index)
        return sample_world(self.kinds, np.random.default_rng(stream), novel=self.split == "novel")

    def image(self, index: int) -> UInt8[Tensor, "3 y x"]:
        """Return a scene as it is drawn."""
        return self._drawn(self.world(index))

    def tellings(self, index: int) -> tuple[SceneCaption, ...]:
        """Return the five captions of a scene with what each of their words shows."""
        return tell(self.world(index))

    def masks(self, index: int) -> Bool[Tensor, "things y x"]:
        """Return the pixels of each thing of a scene; `SceneObject.box` is its box."""
        return torch.from_numpy(masks(self.world(index), self.size))

    def _sample(self, index: int, world: World, captions: tuple[str, ...]) -> CaptionSample:
        return CaptionSample(f"{self.split}-{index}", self._drawn(world), captions, world)

    def _drawn(self, world: World) -> UInt8[Tensor, "3 y x"]:
        pixels: UInt8[np.ndarray, "y x 3"] = draw(world, self.size)
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


class EachCaptionOnce(Dataset[CaptionSample]):
    """Each scene five times, once with each of its captions: what training reads.

    Args:
        scenes: The scenes.

    Example:
        >>> len(EachCaptionOnce(Scenes(3)))
        15
    """

    def __init__(self, scenes: Scenes) -> None:
        self.scenes = scenes

    def __len__(self) -> int:
        return 5 * len(self.scenes)

    def __getitem__(self, index: int) -> CaptionSample:
        return self.scenes.told_once(*divmod(index, 5))

    def length(self, index: int) -> int:
        """Return how many words a caption has, without drawing its scene."""
        scene, telling = divmod(index, 5)
        return len(self.scenes.tellings(scene)[telling].words)
