"""Data modules of rendered scenes, for captioning and for classification."""

from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from visattn.data.captions.batch import CaptionBatch, Vocabulary, collate_captions
from visattn.data.classification.datasets import InMemoryImages, LabeledImages
from visattn.data.scenes.dataset import (
    SINGLE_OBJECT,
    Scenes,
    SingleCaptionScenes,
    SingleObjectScenes,
    single_object_scenes,
)
from visattn.data.scenes.language import grammar_words
from visattn.results.kinds import SPECIAL_TOKENS, Split
from visattn.training.data.classification import ClassificationDataModule
from visattn.training.data.drawn_scenes import DrawnScenesDataModule


class ScenesDataModule(DrawnScenesDataModule):
    """Images of colored, textured shapes with captions that a grammar can verify.

    Captions describe the two largest objects, the others are distractors. The test also reads
    scenes with color-shape pairs that are held out of training (`novel`).

    Args:
        train: Number of training scenes; each epoch uses each of the five captions of a scene.
        val: Number of validation scenes.
        test: Number of test scenes, and of test scenes with held-out color-shape pairs.
        batches_per_pool: Number of training batches that are sorted by caption length together.
            More than 1 saves some padding, but batch norm then depends on the length of the
            captions in a batch, which harms evaluation.
        num_workers: Worker processes that render scenes; 0 renders them in this process.
        options: Options of `DrawnScenesDataModule`.
    """

    test_splits = ("test", "novel")
    group_size = 2

    def __init__(
        self,
        *,
        train: int = 200_000,
        val: int = 500,
        test: int = 1000,
        batches_per_pool: int = 1,
        num_workers: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(train=train, val=val, test=test, num_workers=num_workers, **options)
        self.batches_per_pool = batches_per_pool
        self.vocabulary = Vocabulary((*SPECIAL_TOKENS, *grammar_words(self.config)))

    @property
    def data_info(self) -> dict[str, Any]:
        """The vocabulary, all words of the grammar; and that captions can be verified."""
        return {"words": list(self.vocabulary.words), "annotations": ["scenes"]}

    def open_dataset(self, split: Split) -> Scenes | SingleCaptionScenes:
        """Return the scenes of a split; those of the training once with each caption."""
        scenes = self.scenes(split)
        return SingleCaptionScenes(scenes) if split == "train" else scenes

    def collate_fn(self, split: Split) -> partial[CaptionBatch]:
        """Return the function that makes a batch of captioned scenes."""
        return partial(collate_captions, vocabulary=self.vocabulary)


class SingleObjectDataModule(DrawnScenesDataModule, ClassificationDataModule):
    """Images of one colored, textured object; its shape is the class.

    Scenes are rendered when a split is opened, about a millisecond each, and kept in memory.

    Args:
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of test scenes.
        batch_size: Images per training batch and process.
        options: Options of `DrawnScenesDataModule` and `ClassificationDataModule`.
    """

    def __init__(
        self,
        *,
        train: int = 10_000,
        val: int = 1000,
        test: int = 2000,
        batch_size: int = 64,
        **options: Any,
    ) -> None:
        least, most = SINGLE_OBJECT.num_objects
        super().__init__(
            train=train,
            val=val,
            test=test,
            batch_size=batch_size,
            min_objects=least,
            max_objects=most,
            **options,
        )
        self.class_names = self.config.shapes
        self._rendered: dict[Split, SingleObjectScenes] = {}

    def open_dataset(self, split: Split) -> LabeledImages:
        """Return the images of a split."""
        objects = self.objects(split)
        transforms = self.train_transforms if split == "train" else ()
        return InMemoryImages(objects.images, objects.shapes, transforms, seed=self.seed)

    def centers(self, split: Split = "test") -> Float[Tensor, "n 2"]:
        """Return the center of each object, x and y, from -1 to 1 across the image."""
        return self.objects(split).centers

    def objects(self, split: Split) -> SingleObjectScenes:
        """Return the images and objects of a split, rendered on first use."""
        if split not in self._rendered:
            self._rendered[split] = single_object_scenes(self.scenes(split))
        return self._rendered[split]
