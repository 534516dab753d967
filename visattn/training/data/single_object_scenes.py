"""Scenes with one thing each as data for training a classifier of shapes."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from visattn.data.classification.datasets import HeldImages, LabeledImages
from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.single_object import LONE, SingleObjectScenes, lone_things
from visattn.data.scenes.world import COLORS, SHAPES, TEXTURES, Kinds
from visattn.training.data.classification import ClassificationDataModule, Specs, Split


class SingleObjectDataModule(ClassificationDataModule):
    """Images of one colored, textured thing somewhere; its shape is the class.

    Nothing to download: scenes are drawn when a part is opened, about a millisecond each, and kept
    in memory.

    Args:
        train: Training scenes.
        validation: Validation scenes.
        test: Test scenes.
        size: Height and width in pixels.
        augment: What happens to training images, as `TorchvisionDataModule` takes it.
        batch: Images per training batch and process.
        colors: Which colors appear.
        shapes: Which shapes appear: the classes.
        textures: Which textures appear.
        workers: Processes that read ahead; 0 reads in between.
        seed: Another seed, other scenes, in another order; at least 0.
    """

    def __init__(
        self,
        *,
        train: int = 10_000,
        validation: int = 1000,
        test: int = 2000,
        size: int = 64,
        augment: Specs | None = None,
        batch: int = 64,
        colors: list[str] = list(COLORS),  # noqa: B006 (the command line shows it)
        shapes: list[str] = list(SHAPES),  # noqa: B006
        textures: list[str] = list(TEXTURES),  # noqa: B006
        workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(augment, batch=batch, workers=workers, seed=seed)
        self.counts: dict[Split, int] = {"train": train, "validation": validation, "test": test}
        self.kinds = Kinds(tuple(colors), tuple(shapes), tuple(textures), LONE.count)
        self.size = size
        self._drawn: dict[Split, SingleObjectScenes] = {}
        for split in self.counts:
            self._scenes(split)  # says at once which number makes no sense

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"classes": list(self.kinds.shapes)}

    def part(self, split: Split) -> LabeledImages:
        """Return the images of a split."""
        things = self.things(split)
        augmentations = self.augmentations if split == "train" else ()
        return HeldImages(things.images, things.shapes, augmentations, seed=self.seed)

    def centers(self, split: Split = "test") -> Float[Tensor, "n 2"]:
        """Return the middle of each thing, in the order in which validation and test read them.

        Returns:
            x and y, from -1 to 1 across the image.
        """
        return self.things(split).centers

    def things(self, split: Split) -> SingleObjectScenes:
        """Return the things of a split, drawn when they are asked for first."""
        if split not in self._drawn:
            self._drawn[split] = lone_things(self._scenes(split))
        return self._drawn[split]

    def _scenes(self, split: Split) -> Scenes:
        return Scenes(
            self.counts[split], size=self.size, split=split, seed=self.seed, kinds=self.kinds
        )
