"""Phrase grounding: scores of attention maps against boxes, and targets for supervision."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.geometry.affine import Box
from visattn.metrics.grounding import (
    attention_correctness,
    box_coverage,
    box_target,
    paper_correctness,
    pointing_hit,
    uniform_baseline,
)
from visattn.results.captions import Phrase


class GroundingResult(NamedTuple):
    """Grounding scores of one phrase; its region is the union of its boxes."""

    word_correctness: tuple[float, ...]
    """Attention correctness of each word: attention mass in the boxes, exact by area."""
    baseline: float
    """Correctness of uniform attention: the fraction of the image covered by the boxes."""
    pointing_hit: bool
    """Whether the maximum of the summed maps of the words is in a box; see `pointing_hit`."""
    paper_correctness: float
    """Maximum correctness over the words as the authors compute it, `paper_correctness`."""
    paper_baseline: float
    """The baseline as the authors compute it."""

    @property
    def max_correctness(self) -> float:
        """Maximum correctness over the words, as the paper scores a phrase.

        It grows with the number of words by chance: compare it with that of other images' maps.
        """
        return max(self.word_correctness)

    @property
    def mean_correctness(self) -> float:
        """Mean correctness of the words; random maps reach the baseline on average."""
        return sum(self.word_correctness) / len(self.word_correctness)

    @property
    def last_correctness(self) -> float:
        """Correctness of the last word, in English mostly the head noun."""
        return self.word_correctness[-1]


def phrases_to_cells(
    phrases: Sequence[Phrase], boxes_to_cells: Callable[[Tensor], Tensor]
) -> tuple[Phrase, ...]:
    """Return phrases with their boxes relative to the grid of a model's maps.

    Args:
        phrases: With boxes relative to the network's input.
        boxes_to_cells: Of the model's encoder, `ImageEncoder.boxes_to_cells`.

    Example:
        >>> sky = Phrase(0, 1, ((0.0, 0.0, 1.0, 0.5),), (), "sky")
        >>> [placed] = phrases_to_cells([sky], lambda boxes: boxes + 0.25)
        >>> placed.boxes
        ((0.25, 0.25, 1.25, 0.75),)
    """
    counts = [len(phrase.boxes) for phrase in phrases]
    if not any(counts):
        return tuple(phrases)
    boxes = torch.tensor([box for phrase in phrases for box in phrase.boxes])
    placed = iter(boxes_to_cells(boxes).tolist())
    return tuple(
        phrase._replace(boxes=tuple(cast("Box", tuple(next(placed))) for _ in range(count)))
        for phrase, count in zip(phrases, counts, strict=True)
    )


def normalize_maps(values: Float[Tensor, "*t gy gx"]) -> Float[Tensor, "*t gy gx"]:
    """Return maps that sum to 1, in double precision; a map without positive values is uniform.

    Args:
        values: Maps of any sum; negative values count as 0.

    Example:
        >>> normalize_maps(torch.tensor([[[1.0, 3.0]], [[0.0, 0.0]]]))
        tensor([[[0.2500, 0.7500]],
        <BLANKLINE>
                [[0.5000, 0.5000]]], dtype=torch.float64)
    """
    values = values.double().clamp(min=0)
    sums = values.sum((-2, -1), keepdim=True)
    uniform = torch.full_like(values, 1 / (values.shape[-2] * values.shape[-1]))
    return torch.where(sums > 0, values / sums.clamp(min=1e-300), uniform)


def score_phrases(
    maps: Float[Tensor, "t gy gx"], phrases: Sequence[Phrase]
) -> tuple[GroundingResult, ...]:
    """Score the attention maps of a caption's words against the boxes of its phrases.

    Args:
        maps: Attention per word over the network's input, each map summing to 1.
        phrases: With boxes relative to that input: from `phrases_to_input` for a reference
            caption, from `match_phrases` for a generated one.

    Raises:
        ValueError: If there are too few maps for a phrase, or a map does not sum to 1.

    Example:
        >>> sky = Phrase(0, 2, ((0.0, 0.0, 1.0, 0.5),), ("scene",), "the sky")
        >>> maps = torch.tensor([[[0.5], [0.5]], [[0.9], [0.1]]])
        >>> [result] = score_phrases(maps, [sky])
        >>> [round(c, 6) for c in result.word_correctness], result.baseline, result.pointing_hit
        ([0.5, 0.9], 0.5, True)

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3; pointing: Zhang et al. 2016,
        arXiv:1608.00507, on one map per phrase.
    """
    return tuple(_score_phrase(maps, phrase) for phrase in phrases)


def _score_phrase(maps: Float[Tensor, "t gy gx"], phrase: Phrase) -> GroundingResult:
    phrase_maps = maps[phrase.start : phrase.start + phrase.num_words]
    if len(phrase_maps) < phrase.num_words:
        raise ValueError(
            f"the phrase {phrase.text!r} ends at word {phrase.start + phrase.num_words - 1}, "
            f"counted from 0, and needs a map for each word; got {len(maps)} maps"
        )
    boxes = torch.tensor(phrase.boxes, device=maps.device)
    coverage = box_coverage(boxes, (maps.shape[-2], maps.shape[-1]))
    enlarged, paper_baseline = paper_correctness(phrase_maps, boxes)
    return GroundingResult(
        word_correctness=tuple(attention_correctness(phrase_maps, coverage).tolist()),
        baseline=float(uniform_baseline(coverage)),
        pointing_hit=bool(pointing_hit(phrase_maps.sum(0), boxes)),
        paper_correctness=float(enlarged.max()),
        paper_baseline=float(paper_baseline),
    )


SupervisedPart = Literal["all", "last"]


class SupervisedWords(NamedTuple):
    """Words of a batch of captions with known boxes, and their target attention."""

    caption_indices: Int[Tensor, " s"]
    """Index of the caption of each word."""
    steps: Int[Tensor, " s"]
    """Index of the word in its caption, which is the decoding step of its attention."""
    targets: Float[Tensor, "s n"]
    """Target attention over the flattened grid; each row sums to 1."""


def supervised_words(
    captions: Sequence[Sequence[Phrase]], grid: tuple[int, int], *, words: SupervisedPart = "all"
) -> SupervisedWords:
    """Return the words of captions that have boxes, with uniform target attention over these.

    `visattn.functional.captions.pack_targets` aligns them with the attention of a batch.

    Args:
        captions: Phrases of each caption, with boxes relative to the network's input.
        grid: Rows and columns of the attention grid.
        words: `all` supervises every word of a phrase, articles included; `last` only the last
            one, in English mostly the head noun.

    Example:
        >>> red_ring = Phrase(1, 2, ((0.0, 0.0, 0.5, 1.0),), (), "red ring")
        >>> supervised_words([[], [red_ring]], (1, 2))
        SupervisedWords(caption_indices=tensor([1, 1]), steps=tensor([1, 2]),
            targets=tensor([[1., 0.], [1., 0.]]))

    Source:
        Liu et al. 2017, arXiv:1605.09553, strong supervision.
    """
    boxes: dict[tuple[int, int], tuple[Box, ...]] = {}
    for caption_index, phrases in enumerate(captions):
        for phrase in phrases:
            end = phrase.start + phrase.num_words
            for step in range(end - 1 if words == "last" else phrase.start, end):
                boxes[caption_index, step] = (*boxes.get((caption_index, step), ()), *phrase.boxes)
    positions = torch.tensor(list(boxes), dtype=torch.long).reshape(-1, 2)
    targets = [_target(word_boxes, grid) for word_boxes in boxes.values()]
    stacked = torch.stack(targets) if targets else torch.zeros(0, grid[0] * grid[1])
    return SupervisedWords(positions[:, 0], positions[:, 1], stacked)


@lru_cache(2**17)  # the same boxes recur in each caption and each epoch
def _target(boxes: tuple[Box, ...], grid: tuple[int, int]) -> Float[Tensor, " n"]:
    return box_target(torch.tensor(boxes), grid).flatten()
