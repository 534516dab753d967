"""Base class of data modules of rendered scenes."""

from typing import Any

from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.world import COLORS, SHAPES, TEXTURES, WorldConfig
from visattn.results.kinds import Split
from visattn.training.data_module import DataModule


class DrawnScenesDataModule(DataModule):
    """Rendered scenes of colored, textured shapes; no files are needed.

    Args:
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of scenes of each test split.
        image_size: Height and width in pixels.
        colors: Colors of the objects.
        shapes: Shapes of the objects.
        textures: Textures of the objects.
        min_objects: Minimum number of objects in a scene.
        max_objects: Maximum number of objects in a scene.
        num_workers: Worker processes that render scenes; 0 renders them in this process.
        options: Further options of the data module.

    Raises:
        ValueError: If a number is out of range, or a color, shape or texture is unknown.
    """

    def __init__(
        self,
        *,
        train: int,
        val: int,
        test: int,
        image_size: int = 64,
        colors: list[str] = list(COLORS),  # noqa: B006 (the command line shows it)
        shapes: list[str] = list(SHAPES),  # noqa: B006
        textures: list[str] = list(TEXTURES),  # noqa: B006
        min_objects: int = 2,
        max_objects: int = 4,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(num_workers=num_workers, **options)
        if val < 1:
            raise ValueError(
                f"val must be at least 1, got {val}; to train without validation, use "
                "--trainer.limit_val_batches 0"
            )
        self.counts: dict[Split, int] = {
            "train": train,
            "validation": val,
            "test": test,
            "novel": test,
        }
        self.image_size = image_size
        num_objects = (min_objects, max_objects)
        self.config = WorldConfig(tuple(colors), tuple(shapes), tuple(textures), num_objects)
        for split in self.counts:
            self.scenes(split)  # refuses numbers out of range now

    def scenes(self, split: Split) -> Scenes:
        """Return the scenes of a split; `novel` has held-out pairs of color and shape."""
        count, size = self.counts[split], self.image_size
        return Scenes(count, size=size, split=split, seed=self.seed, config=self.config)
