"""A caption and its maps held against the scene: is it true, and did it look where it speaks of?"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.data.scenes.claims import check
from visattn.data.scenes.worlds import World
from visattn.maps.evaluations import (
    attention_correctness,
    boxes_coverage,
    pointing_hit,
    uniform_baseline,
)


class Judgement(NamedTuple):
    """One caption judged; the sums run over the visual words of a true caption."""

    understood: bool
    """The grammar covers the caption."""
    true: bool
    """Everything it claims holds in the scene."""
    visual: int
    """Visual words."""
    hits: float
    """Of these, how often the strongest place lies in a box of what the word shows."""
    correctness: float
    """Sum of the attention inside the boxes."""
    baseline: float
    """The same for attention that is spread evenly."""


def judge(caption: str, maps: Float[Tensor, "t gy gx"], world: World) -> Judgement:
    """Return how a caption and its maps, one per word, fare against the scene.

    Args:
        caption: Words in lower case, one blank between them.
        maps: Attention per word over the whole picture, each map summing to 1.
        world: What is really there.

    Raises:
        ValueError: If there are fewer maps than words.

    Example:
        >>> from visattn.data.scenes.datasets import Scenes
        >>> scene = Scenes(1)[0]
        >>> even = torch.full((20, 8, 8), 1 / 64)
        >>> judged = judge(scene.captions[0], even, scene.world)
        >>> judged.true, round(judged.correctness - judged.baseline, 6)
        (True, 0.0)
    """
    verdict = check(caption, world)
    if len(maps) < len(verdict.shows):
        raise ValueError(f"{len(verdict.shows)} words need a map each, got {len(maps)} maps")
    visual = [(word, things) for word, things in enumerate(verdict.shows) if things]
    if not verdict.true or not visual:
        return Judgement(verdict.understood, verdict.true, 0, 0.0, 0.0, 0.0)
    hits = correctness = baseline = 0.0
    for things in {things for _, things in visual}:
        looked = maps[[word for word, shown in visual if shown == things]]
        boxes = torch.tensor([world.things[thing].box for thing in things])
        covered = boxes_coverage(boxes, (maps.shape[-2], maps.shape[-1]))
        hits += float(pointing_hit(looked, boxes).sum())
        correctness += float(attention_correctness(looked, covered).sum())
        baseline += float(uniform_baseline(covered)) * len(looked)
    return Judgement(verdict.understood, verdict.true, len(visual), hits, correctness, baseline)
