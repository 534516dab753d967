"""Generated captions of a whole split held against what people wrote."""

from collections.abc import Sequence
from typing import Any

from torch import distributed

from visattn.data.batches import CaptionSample
from visattn.metrics.caption_metrics import CaptionScores, caption_scores

OF_REFERENCES = ("bleu-1", "bleu-2", "bleu-3", "bleu-4", "rouge-l", "cider-d")


class ReferenceScores:
    """Captions of a split and their references, scored once, when all are there.

    The scores look at all captions together, so they are no means over batches: captions of all
    processes are gathered first, and a picture that came twice counts once.
    """

    def __init__(self) -> None:
        self.captions: dict[str, str] = {}
        self.references: dict[str, tuple[str, ...]] = {}

    def update(self, samples: Sequence[CaptionSample], captions: Sequence[str]) -> None:
        """Take in captions and the samples they tell of."""
        for sample, caption in zip(samples, captions, strict=True):
            self.captions[sample.id] = caption
            self.references[sample.id] = sample.references

    def gathered(self) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
        """Return captions and references of all processes, by picture, in the order of names."""
        parts: list[Any] = [(self.captions, self.references)]
        if distributed.is_available() and distributed.is_initialized():
            parts = [None] * distributed.get_world_size()
            distributed.all_gather_object(parts, (self.captions, self.references))
        captions = {name: said for told, _ in parts for name, said in told.items()}
        references = {name: written for _, known in parts for name, written in known.items()}
        names = sorted(captions)
        return {n: captions[n] for n in names}, {n: references[n] for n in names}

    def compute(self) -> tuple[dict[str, str], CaptionScores]:
        """Return the captions of all pictures, by their names, and their scores together."""
        captions, references = self.gathered()
        return captions, caption_scores(captions, references)

    def reset(self) -> None:
        """Forget everything."""
        self.captions.clear()
        self.references.clear()
