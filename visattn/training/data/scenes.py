"""Data modules of rendered scenes, for captioning and for classification; no files are needed."""

from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.utils.data import DataLoader

from visattn.data.captions.batch import CaptionBatch, CaptionSample, collate_captions
from visattn.data.captions.vocabulary import Vocabulary
from visattn.data.classification.datasets import InMemoryImages, LabeledImages
from visattn.data.images.augment import AugmentationSpec
from visattn.data.loading.samplers import DistributedEvalSampler
from visattn.data.loading.stateful_loader import StatefulDataLoader
from visattn.data.scenes.dataset import Scenes, SingleCaptionScenes, Split
from visattn.data.scenes.grammar import grammar_words
from visattn.data.scenes.single_object import (
    SINGLE_OBJECT,
    SingleObjectScenes,
    single_object_scenes,
)
from visattn.data.scenes.world import COLORS, SHAPES, TEXTURES, WorldConfig
from visattn.results.kinds import SPECIAL_TOKENS, Split as ClassificationSplit
from visattn.training.data.classification import ClassificationDataModule
from visattn.training.data_module import DataModule

Loader = DataLoader[CaptionSample]
_EVAL_BATCH_SIZE = 64


class ScenesDataModule(DataModule):
    """Images of colored, textured shapes with captions that a grammar can verify.

    Args:
        train: Number of training scenes; each epoch uses one of the five captions of a scene.
        val: Number of validation scenes.
        test: Number of test scenes, and of test scenes with held-out color-shape pairs.
        image_size: Height and width in pixels.
        batch_size: Captions per training batch and process.
        batches_per_pool: Number of training batches that are sorted by caption length together.
            More than 1 saves some padding, but batch norm then depends on the length of the
            captions in a batch, which harms evaluation.
        colors: Colors of the objects.
        shapes: Shapes of the objects.
        textures: Textures of the objects.
        min_objects: Minimum number of objects in a scene.
        max_objects: Maximum number of objects in a scene; captions describe the two largest, the
            others are distractors.
        num_workers: Worker processes that render training scenes; 0 renders them in this process.
        seed: Seed of the scenes.
    """

    def __init__(
        self,
        *,
        train: int = 200_000,
        val: int = 500,
        test: int = 1000,
        image_size: int = 64,
        batch_size: int = 32,
        batches_per_pool: int = 1,
        colors: list[str] = list(COLORS),  # noqa: B006 (the command line shows it)
        shapes: list[str] = list(SHAPES),  # noqa: B006
        textures: list[str] = list(TEXTURES),  # noqa: B006
        min_objects: int = 2,
        max_objects: int = 4,
        num_workers: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if val < 1:
            raise ValueError(
                f"val must be at least 1, got {val}; to train without validation, use "
                "--trainer.limit_val_batches 0"
            )
        self.counts = {"train": train, "validation": val, "test": test, "novel": test}
        self.image_size, self.batch_size = image_size, batch_size
        self.batches_per_pool = batches_per_pool
        self.num_workers, self.seed = num_workers, seed
        num_objects = (min_objects, max_objects)
        self.config = WorldConfig(tuple(colors), tuple(shapes), tuple(textures), num_objects)
        self.vocabulary = Vocabulary((*SPECIAL_TOKENS, *grammar_words(self.config)))

    @property
    def data_info(self) -> dict[str, Any]:
        """The vocabulary, all words of the grammar; and that captions can be verified."""
        return {"words": list(self.vocabulary.words), "annotations": ["scenes"]}

    def scenes(self, split: Split) -> Scenes:
        """Return the scenes of a split."""
        count = self.counts[split]
        return Scenes(count, size=self.image_size, split=split, seed=self.seed, config=self.config)

    def train_dataloader(self) -> Loader:
        """Return random batches of captions of similar length."""
        scenes = SingleCaptionScenes(self.scenes("train"))
        batches = self.train_batch_sampler(
            len(scenes), length=scenes.length, batches_per_pool=self.batches_per_pool
        )
        return StatefulDataLoader(
            scenes,
            batches,
            collate_fn=self._collate_fn,
            num_workers=self.num_workers_for(len(scenes)),
        )

    def val_dataloader(self) -> Loader:
        """Return the validation scenes, each once."""
        return self._eval_dataloader("validation")

    def test_dataloader(self) -> list[Loader]:
        """Return the test scenes, then those with held-out color-shape pairs, each once."""
        return [self._eval_dataloader("test"), self._eval_dataloader("novel")]

    def examples(self, count: int) -> list[Any]:
        """Return the images of the first validation scenes."""
        scenes = self.scenes("validation")
        indices = range(min(count, len(scenes)))
        return [scenes.image(index).permute(1, 2, 0).numpy() for index in indices]

    @property
    def _collate_fn(self) -> partial[CaptionBatch]:
        return partial(collate_captions, vocabulary=self.vocabulary)

    def _eval_dataloader(self, split: Split) -> Loader:
        scenes = self.scenes(split)
        sampler = DistributedEvalSampler(
            len(scenes), rank=self.rank, num_replicas=self.world_size, group_size=2
        )
        return DataLoader(
            scenes, batch_size=_EVAL_BATCH_SIZE, sampler=sampler, collate_fn=self._collate_fn
        )


class SingleObjectDataModule(ClassificationDataModule):
    """Images of one colored, textured object; its shape is the class.

    Scenes are rendered when a split is opened, about a millisecond each, and kept in memory.

    Args:
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of test scenes.
        image_size: Height and width in pixels.
        train_transforms: Augmentations of training images, as in `TorchvisionDataModule`.
        batch_size: Images per training batch and process.
        colors: Colors of the objects.
        shapes: Shapes of the objects, which are the classes.
        textures: Textures of the objects.
        num_workers: Worker processes that load training batches; 0 loads them in this process.
        seed: Seed of the scenes and of their order; at least 0.
    """

    def __init__(
        self,
        *,
        train: int = 10_000,
        val: int = 1000,
        test: int = 2000,
        image_size: int = 64,
        train_transforms: list[AugmentationSpec] | None = None,
        batch_size: int = 64,
        colors: list[str] = list(COLORS),  # noqa: B006 (the command line shows it)
        shapes: list[str] = list(SHAPES),  # noqa: B006
        textures: list[str] = list(TEXTURES),  # noqa: B006
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            train_transforms, batch_size=batch_size, num_workers=num_workers, seed=seed
        )
        counts: dict[ClassificationSplit, int] = {"train": train, "validation": val, "test": test}
        num_objects = SINGLE_OBJECT.num_objects
        config = WorldConfig(tuple(colors), tuple(shapes), tuple(textures), num_objects)
        self.class_names = config.shapes
        self._scenes = {
            split: Scenes(count, size=image_size, split=split, seed=seed, config=config)
            for split, count in counts.items()
        }
        self._rendered: dict[ClassificationSplit, SingleObjectScenes] = {}

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"class_names": list(self.class_names)}

    def open_dataset(self, split: ClassificationSplit) -> LabeledImages:
        """Return the images of a split."""
        objects = self.objects(split)
        transforms = self.train_transforms if split == "train" else ()
        return InMemoryImages(objects.images, objects.shapes, transforms, seed=self.seed)

    def centers(self, split: ClassificationSplit = "test") -> Float[Tensor, "n 2"]:
        """Return the center of each object, in the order of validation and test.

        Returns:
            x and y, from -1 to 1 across the image.
        """
        return self.objects(split).centers

    def objects(self, split: ClassificationSplit) -> SingleObjectScenes:
        """Return the images and objects of a split, rendered on first use."""
        if split not in self._rendered:
            self._rendered[split] = single_object_scenes(self._scenes[split])
        return self._rendered[split]
