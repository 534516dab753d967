"""Samples and batches of images with captions."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from visattn.data.captions.vocabulary import Vocabulary
from visattn.data.phrases.phrases import Phrase
from visattn.data.scenes.world import World
from visattn.models.captioner import PAD


class CaptionSample(NamedTuple):
    """An image, what is said of it, and what is known of what is really there."""

    id: str
    image: UInt8[Tensor, "3 y x"] | None
    """What the network is shown; None where its features are at hand."""
    captions: tuple[str, ...]
    world: World | None = None
    """What a drawn image shows."""
    grids: tuple[Float[Tensor, "c gy gx"], ...] = ()
    """What a frozen encoder finds in the image, where that was kept; see `FeatureCache`."""
    phrases: tuple[tuple[Phrase, ...], ...] = ()
    """For each caption, its phrases with their boxes as shares of what the network is shown."""
    references: tuple[str, ...] = ()
    """Captions to be scored against, as they were written; nothing where they are not known."""


class CaptionBatch(NamedTuple):
    """Images with their captions as numbers; captions lie longest first, whosever they are."""

    samples: tuple[CaptionSample, ...]
    images: UInt8[Tensor, "b 3 y x"] | None
    """None where the features are at hand."""
    grids: tuple[Float[Tensor, "b _c _gy _gx"], ...]
    """Features of the images, stage by stage; none where the images are to be looked at."""
    captions: Int[Tensor, "r t"]
    """Words, start and end included, filled up with pad."""
    lengths: Int[Tensor, " r"]
    """Words to be said per caption, its end included."""
    owners: Int[Tensor, " r"]
    """Which image each caption tells."""
    numbers: tuple[int, ...]
    """Which of its image's captions each one is."""

    def to(self, device: torch.device | str) -> Self:
        """Return the batch with its tensors on another device."""

        def moved(part: Tensor) -> Tensor:
            return part.to(device, non_blocking=True)

        return self._replace(
            images=None if self.images is None else moved(self.images),
            grids=tuple(map(moved, self.grids)),
            captions=moved(self.captions),
            lengths=moved(self.lengths),
            owners=moved(self.owners),
        )

    def phrases(self) -> list[tuple[Phrase, ...]]:
        """Return the phrases of each caption; none where they are not known."""
        told = (self.samples[owner].phrases for owner in self.owners.tolist())
        return [
            known[number] if known else () for known, number in zip(told, self.numbers, strict=True)
        ]

    @property
    def paired(self) -> int:
        """How many of the images have another one as partner: all, or all but the last."""
        return len(self.samples) // 2 * 2

    def swapped(self) -> Self:
        """Return the batch in which each caption tells of the other image of its pair.

        Images 0 and 1 change places, 2 and 3, and so on; of an odd number the last one stays.

        Example:
            >>> blank = [torch.full((3, 1, 1), n, dtype=torch.uint8) for n in (0, 1, 2)]
            >>> samples = [CaptionSample(str(n), blank[n], ("red",)) for n in (0, 1, 2)]
            >>> batch = caption_batch(samples, Vocabulary.of(["red"]))
            >>> batch.swapped().images[:, 0, 0, 0]
            tensor([1, 0, 2], dtype=torch.uint8)
        """
        partners = torch.arange(len(self.samples))
        partners[: self.paired] ^= 1
        return self._replace(
            images=None if self.images is None else self.images[partners],
            grids=tuple(grid[partners] for grid in self.grids),
        )


def caption_batch(
    samples: Sequence[CaptionSample], vocabulary: Vocabulary, *, max_words: int | None = None
) -> CaptionBatch:
    """Return samples as one batch.

    Args:
        samples: All with an image, or all with the grids of the same stages.
        vocabulary: What turns captions into numbers.
        max_words: Longer captions lose their end, and with it the word that ends them.

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
        (vocabulary.encode(caption)[: max_words and max_words + 1], owner, number)
        for owner, sample in enumerate(samples)
        for number, caption in enumerate(sample.captions)
    ]
    rows.sort(key=lambda row: -len(row[0]))
    captions = torch.full((len(rows), len(rows[0][0])), PAD)
    for row, (tokens, *_) in zip(captions, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    images = [sample.image for sample in samples if sample.image is not None]
    return CaptionBatch(
        samples=tuple(samples),
        images=torch.stack(images) if len(images) == len(samples) else None,
        grids=tuple(map(torch.stack, zip(*(sample.grids for sample in samples), strict=True))),
        captions=captions,
        lengths=torch.tensor([len(tokens) - 1 for tokens, *_ in rows]),
        owners=torch.tensor([owner for _, owner, _ in rows]),
        numbers=tuple(number for *_, number in rows),
    )
