"""Maps held against the boxes of what a caption speaks of: did it look there?"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.data.phrases.phrases import Phrase
from visattn.geometry.affine import Box
from visattn.metrics.maps.grounding import (
    attention_correctness,
    box_target,
    boxes_coverage,
    paper_correctness,
    pointing_hit,
    uniform_baseline,
)


class GroundingResult(NamedTuple):
    """One phrase judged. Where it has several boxes, what lies in any of them is right."""

    words: tuple[float, ...]
    """For each of its words, how much of the attention lies in the boxes, exact by area."""
    baseline: float
    """The same for attention that is spread evenly: the share of the image in the boxes."""
    pointed: bool
    """Whether the words' maps, added up, are strongest in a box; see `pointing_hit`."""
    paper: float
    """The greatest correctness among its words by the authors' steps, `paper_correctness`."""
    paper_baseline: float
    """The baseline by these steps."""

    @property
    def strongest(self) -> float:
        """The greatest correctness among its words, as the paper scores a phrase.

        The more words, the greater by chance alone: set it beside that of other images' maps.
        """
        return max(self.words)

    @property
    def mean(self) -> float:
        """The mean correctness of its words; maps that look at random have the baseline."""
        return sum(self.words) / len(self.words)

    @property
    def last(self) -> float:
        """The correctness of its last word, which in English mostly names the thing."""
        return self.words[-1]


def judge_phrases(
    maps: Float[Tensor, "t gy gx"], phrases: Sequence[Phrase]
) -> tuple[GroundingResult, ...]:
    """Return how the maps of a caption's words fare against the boxes of its phrases.

    Args:
        maps: Attention per word over the network's input, each map summing to 1.
        phrases: With boxes as shares of that input, such as `phrases_on_input` returns them for
            a given caption and `spoken_phrases` finds them in a generated one.

    Raises:
        ValueError: If a phrase reaches beyond the maps, or a map does not sum to 1.

    Example:
        >>> sky = Phrase(0, 2, ((0.0, 0.0, 1.0, 0.5),), ("scene",), "the sky")
        >>> maps = torch.tensor([[[0.5], [0.5]], [[0.9], [0.1]]])
        >>> [judged] = judge_phrases(maps, [sky])
        >>> [round(inside, 6) for inside in judged.words], judged.baseline, judged.pointed
        ([0.5, 0.9], 0.5, True)

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3; pointing: Zhang et al. 2016,
        arXiv:1608.00507, on one map per phrase.
    """
    return tuple(_judged(maps, phrase) for phrase in phrases)


def _judged(maps: Float[Tensor, "t gy gx"], phrase: Phrase) -> GroundingResult:
    looked = maps[phrase.first : phrase.first + phrase.count]
    if len(looked) < phrase.count:
        raise ValueError(
            f"the phrase {phrase.text!r} needs a map for word {phrase.first + phrase.count - 1}, "
            f"counted from 0, got {len(maps)} maps"
        )
    boxes = torch.tensor(phrase.boxes, device=maps.device)
    covered = boxes_coverage(boxes, (maps.shape[-2], maps.shape[-1]))
    enlarged, paper_baseline = paper_correctness(looked, boxes)
    return GroundingResult(
        words=tuple(attention_correctness(looked, covered).tolist()),
        baseline=float(uniform_baseline(covered)),
        pointed=bool(pointing_hit(looked.sum(0), boxes)),
        paper=float(enlarged.max()),
        paper_baseline=float(paper_baseline),
    )


Words = Literal["all", "last"]


class SupervisedWords(NamedTuple):
    """The words of a batch of captions whose place on the image is known."""

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

    `visattn.functional.captioning.losses.packed_targets` lays them beside the attention of a batch.

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
