"""Scenes as data for training: drawn while they are needed, nothing to download."""

from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from visattn.data.captions.batch import CaptionBatch, CaptionSample, caption_batch
from visattn.data.captions.vocabulary import Vocabulary
from visattn.data.loading.samplers import PairsOnce
from visattn.data.loading.stateful_loader import StatefulDataLoader
from visattn.data.scenes.dataset import EachCaptionOnce, Scenes, Split
from visattn.data.scenes.grammar import grammar_words
from visattn.data.scenes.world import COLORS, SHAPES, TEXTURES, Kinds
from visattn.models.captioner import SPECIALS
from visattn.training.base import DataModule

Loader = DataLoader[CaptionSample]


class ScenesDataModule(DataModule):
    """Images of colored, textured shapes with captions that can be checked.

    Args:
        train: Training scenes; each is told in one of five ways at a time.
        validation: Validation scenes.
        test: Test scenes, and as many of held-out color-shape pairs.
        size: Height and width in pixels.
        batch: Captions per training batch and process.
        pool: Training batches that are sorted by caption length together. More than 1 saves a few
            empty steps; but batch norm then learns from its batch how long the captions are, and
            misses it later.
        colors: Which colors appear.
        shapes: Which shapes appear.
        textures: Which textures appear.
        fewest: Fewest things in a scene.
        most: Most things in a scene; the two largest are told of, the others distract.
        workers: Processes that draw training scenes ahead; 0 draws them in between.
        seed: Another seed, other scenes.
    """

    def __init__(
        self,
        *,
        train: int = 200_000,
        validation: int = 500,
        test: int = 1000,
        size: int = 64,
        batch: int = 32,
        pool: int = 1,
        colors: list[str] = list(COLORS),  # noqa: B006 (the command line shows it)
        shapes: list[str] = list(SHAPES),  # noqa: B006
        textures: list[str] = list(TEXTURES),  # noqa: B006
        fewest: int = 2,
        most: int = 4,
        workers: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if validation < 1:
            raise ValueError(
                f"validation must be at least 1, got {validation}; to train without validation, "
                "say --trainer.limit_val_batches 0"
            )
        self.counts = {"train": train, "validation": validation, "test": test, "novel": test}
        self.size, self.batch, self.pool = size, batch, pool
        self.workers, self.seed = workers, seed
        self.kinds = Kinds(tuple(colors), tuple(shapes), tuple(textures), (fewest, most))
        self.vocabulary = Vocabulary((*SPECIALS, *grammar_words(self.kinds)))

    @property
    def data_info(self) -> dict[str, Any]:
        """The vocabulary: every word of the grammar; and that captions can be checked."""
        return {"words": list(self.vocabulary.words), "known": ["scenes"]}

    def scenes(self, split: Split) -> Scenes:
        """Return a split."""
        count = self.counts[split]
        return Scenes(count, size=self.size, split=split, seed=self.seed, kinds=self.kinds)

    def train_dataloader(self) -> Loader:
        """Return random batches of captions of similar length."""
        told = EachCaptionOnce(self.scenes("train"))
        buckets = self.order(len(told), length=told.length, pool=self.pool)
        return StatefulDataLoader(told, buckets, collate=self._collate, workers=self.workers)

    def val_dataloader(self) -> Loader:
        """Return the validation scenes, each once."""
        return self._evaluation("validation")

    def test_dataloader(self) -> list[Loader]:
        """Return the test scenes, then those of held-out pairs, each once."""
        return [self._evaluation("test"), self._evaluation("novel")]

    def examples(self, count: int) -> list[Any]:
        """Return the first validation scenes."""
        scenes = self.scenes("validation")
        shown = range(min(count, len(scenes)))
        return [scenes.image(index).permute(1, 2, 0).numpy() for index in shown]

    @property
    def _collate(self) -> partial[CaptionBatch]:
        return partial(caption_batch, vocabulary=self.vocabulary)

    def _evaluation(self, split: Split) -> Loader:
        scenes = self.scenes(split)
        pairs = PairsOnce(len(scenes), rank=self.rank, world=self.world)
        return DataLoader(scenes, batch_size=64, sampler=pairs, collate_fn=self._collate)
