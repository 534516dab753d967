"""Packed order of the words of a batch of captions: step by step, longest caption first."""

from typing import NamedTuple, Self

import torch
from jaxtyping import Int
from torch import Tensor


class WordPacking(NamedTuple):
    """Places of the p words of a batch of captions, for teacher forcing.

    All sizes are plain numbers, so that teacher forcing neither waits for a GPU nor breaks the
    graph of `torch.compile`; a data loader computes them on the CPU.
    """

    rows: Int[Tensor, " p"]
    """Caption of each word."""
    steps: Int[Tensor, " p"]
    """Position of each word in its caption."""
    image_indices: Int[Tensor, " p"]
    """Image of each word."""
    ranks: Int[Tensor, " p"]
    """Number of earlier words of the same image."""
    counts: tuple[int, ...]
    """Number of captions that have a word at each step."""
    words_per_image: int
    """Largest number of words of an image, in all of its captions."""

    def to(self, device: torch.device | str) -> Self:
        """Return the packing with its tensors on another device."""
        return self._make(
            part.to(device, non_blocking=True) if isinstance(part, Tensor) else part
            for part in self
        )


def pack_words(
    lengths: Int[Tensor, " r"] | WordPacking, image_indices: Int[Tensor, " r"] | None = None
) -> WordPacking:
    """Return the packed order of the words of a batch; a packing is returned as it is.

    Args:
        lengths: Words per caption, in decreasing order.
        image_indices: Image of each caption; None if caption i belongs to image i.

    Raises:
        ValueError: If the lengths are not in decreasing order, or one is below 1.

    Example:
        >>> packing = pack_words(torch.tensor([3, 1]), torch.tensor([0, 0]))
        >>> packing.rows, packing.steps
        (tensor([0, 1, 0, 0]), tensor([0, 0, 1, 2]))
        >>> packing.ranks, packing.counts, packing.words_per_image
        (tensor([0, 1, 2, 3]), (2, 1, 1), 4)
    """
    if isinstance(lengths, WordPacking):
        return lengths
    on_host = lengths.cpu()
    if (on_host.diff() > 0).any() or (on_host < 1).any():
        raise ValueError(f"lengths must be in decreasing order and at least 1, got {lengths}")
    # Captions of 3, 3 and 1 words: words are taken column by column, so that each step of a decoder
    # reads one slice, and a caption that has ended leaves from the end of the batch.
    #
    #               step 0  step 1  step 2        packed  0 1 2 3 4 5 6
    #     caption 0    0       3       5          rows    0 1 2 0 1 0 1
    #     caption 1    1       4       6          steps   0 0 0 1 1 2 2
    #     caption 2    2                          counts  3     2   2
    present = torch.arange(int(on_host[0]))[:, None] < on_host
    steps, rows = present.nonzero(as_tuple=True)
    images = rows if image_indices is None else image_indices.cpu()[rows]
    # Rank of a word: its place in the stable order by image, less where its image begins there.
    counts = images.bincount()
    order = images.argsort(stable=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[images[order]]
    packing = WordPacking(
        rows, steps, images, ranks, tuple(map(int, present.sum(1))), int(counts.max())
    )
    return packing.to(lengths.device)


def packed_indices(lengths: Int[Tensor, " b"]) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """Return row and step of each word in packed order: step by step, longest caption first.

    Args:
        lengths: Words per caption, in decreasing order.

    Raises:
        ValueError: If the lengths are not in decreasing order, or one is below 1.

    Example:
        >>> packed_indices(torch.tensor([3, 1]))
        (tensor([0, 1, 0, 0]), tensor([0, 0, 1, 2]))
    """
    packing = pack_words(lengths)
    return packing.rows, packing.steps
