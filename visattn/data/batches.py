"""Samples and batches of pictures with captions."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from visattn.data.scenes.worlds import World
from visattn.data.vocabularies import Vocabulary
from visattn.models.captioners import PAD


class CaptionSample(NamedTuple):
    """A picture, what is said of it, and, for a drawn one, what is really there."""

    id: str
    picture: UInt8[Tensor, "3 y x"]
    captions: tuple[str, ...]
    world: World | None = None


class CaptionBatch(NamedTuple):
    """Pictures with their captions as numbers; captions lie longest first, whosever they are."""

    samples: tuple[CaptionSample, ...]
    pictures: UInt8[Tensor, "b 3 y x"]
    captions: Int[Tensor, "r t"]
    """Words, start and end included, filled up with pad."""
    lengths: Int[Tensor, " r"]
    """Words to be said per caption, its end included."""
    owners: Int[Tensor, " r"]
    """Which picture each caption tells."""

    def to(self, device: torch.device | str) -> Self:
        """Return the batch with its tensors on another device."""
        moved = (part.to(device, non_blocking=True) for part in self[1:])
        return type(self)(self.samples, *moved)


def caption_batch(samples: Sequence[CaptionSample], vocabulary: Vocabulary) -> CaptionBatch:
    """Return samples as one batch.

    Raises:
        ValueError: If a sample has no caption.

    Example:
        >>> blank = torch.zeros(3, 2, 2, dtype=torch.uint8)
        >>> samples = [CaptionSample("0", blank, ("red",)), CaptionSample("1", blank, ("a red",))]
        >>> batch = caption_batch(samples, Vocabulary.of(["a red"]))
        >>> batch.captions, batch.owners
        (tensor([[1, 4, 5, 2],
                [1, 5, 2, 0]]), tensor([1, 0]))
    """
    if silent := [sample.id for sample in samples if not sample.captions]:
        raise ValueError(f"every sample needs a caption, these have none: {silent[:5]}")
    rows = [
        (vocabulary.encode(caption), owner)
        for owner, sample in enumerate(samples)
        for caption in sample.captions
    ]
    rows.sort(key=lambda row: -len(row[0]))
    captions = torch.full((len(rows), len(rows[0][0])), PAD)
    for row, (tokens, _) in zip(captions, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return CaptionBatch(
        samples=tuple(samples),
        pictures=torch.stack([sample.picture for sample in samples]),
        captions=captions,
        lengths=torch.tensor([len(tokens) - 1 for tokens, _ in rows]),
        owners=torch.tensor([owner for _, owner in rows]),
    )
