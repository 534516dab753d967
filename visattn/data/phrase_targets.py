"""Where attention ought to lie while a word is said, made from the boxes of phrases."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.data.phrases import Phrase
from visattn.maps.evaluations import box_target
from visattn.maps.geometries import Box

Words = Literal["all", "last"]


class SupervisedWords(NamedTuple):
    """The words of a batch of captions whose place on the picture is known."""

    rows: Int[Tensor, " s"]
    """Which caption each word belongs to."""
    steps: Int[Tensor, " s"]
    """Which of its words, from 0: at this step it is said, and its attention computed."""
    targets: Float[Tensor, "s n"]
    """Where the attention ought to lie, over the cells row by row; each sums to 1."""


def supervised_words(
    captions: Sequence[Sequence[Phrase]], grid: tuple[int, int], *, words: Words = "all"
) -> SupervisedWords:
    """Return the words of captions that have boxes, and attention spread evenly over these.

    `visattn.functional.captions.packed_targets` lays them beside the attention of a batch.

    Args:
        captions: The phrases of each caption, with boxes as shares of the network's input.
        grid: Rows and columns of cells that attention is spread over.
        words: `all` takes every word of a phrase, articles included; `last` only the last one,
            which in English mostly names the thing.

    Example:
        >>> red_ring = Phrase(1, 2, ((0.0, 0.0, 0.5, 1.0),), (), "red ring")
        >>> supervised_words([[], [red_ring]], (1, 2))
        SupervisedWords(rows=tensor([1, 1]), steps=tensor([1, 2]),
            targets=tensor([[1., 0.], [1., 0.]]))

    Source:
        Liu et al. 2017, arXiv:1605.09553, strong supervision.
    """
    boxes: dict[tuple[int, int], tuple[Box, ...]] = {}
    for row, phrases in enumerate(captions):
        for phrase in phrases:
            end = phrase.first + phrase.count
            for step in range(end - 1 if words == "last" else phrase.first, end):
                boxes[row, step] = (*boxes.get((row, step), ()), *phrase.boxes)
    places = torch.tensor(list(boxes), dtype=torch.long).reshape(-1, 2)
    targets = [_target(each, grid) for each in boxes.values()]
    blank = torch.zeros(0, grid[0] * grid[1])
    return SupervisedWords(places[:, 0], places[:, 1], torch.stack(targets) if targets else blank)


@lru_cache(2**17)  # a photo's boxes come back with each caption and in each epoch
def _target(boxes: tuple[Box, ...], grid: tuple[int, int]) -> Float[Tensor, " n"]:
    return box_target(torch.tensor(boxes), grid).flatten()
