"""Back from a caption to what it claims, and whether the scene bears it out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.data.scenes.grammar import PLACES, RELATIONS, holds
from visattn.data.scenes.world import COLORS, RADII, SHAPES, TEXTURES, SceneObject, World
from visattn.metrics.maps.grounding import (
    attention_correctness,
    boxes_coverage,
    pointing_hit,
    uniform_baseline,
)

_SIZES = tuple(size for size in RADII if size != "medium")
_TEXTURES = tuple(texture for texture in TEXTURES if texture != "plain")


@dataclass(frozen=True)
class Mention:
    """A thing as a caption speaks of it; an empty string claims nothing. `span`: its words."""

    shape: str
    color: str
    texture: str
    size: str
    span: tuple[int, int]

    def fits(self, thing: SceneObject) -> bool:
        """Return whether everything said of it is true of the thing."""
        said = (self.shape, self.color, self.texture, self.size)
        true = (thing.shape, thing.color, thing.texture, thing.size)
        return all(not word or word == fact for word, fact in zip(said, true, strict=True))


@dataclass(frozen=True)
class Claim:
    """Two things exist, and the first stands in the relation to the second."""

    first: Mention
    relation: str
    second: Mention


@dataclass(frozen=True)
class Verdict:
    """What became of a caption.

    Args:
        understood: The grammar covers it.
        true: Understood, and two different things bear it out.
        shows: For each word, the things it truly speaks of: every thing that takes its part in
            some pair that bears the caption out; empty for words that show nothing.
    """

    understood: bool
    true: bool
    shows: tuple[tuple[int, ...], ...]


def _choice(words: Sequence[str]) -> str:
    return "(?:" + "|".join(words) + ")"


def _thing_pattern(name: str) -> str:
    return (
        rf"an? (?P<{name}>(?:(?P<{name}_size>{_choice(_SIZES)}) )?"
        rf"(?:(?P<{name}_texture>{_choice(_TEXTURES)}) )?"
        rf"(?:(?P<{name}_color>{_choice(tuple(COLORS))}) )?(?P<{name}_shape>{_choice(SHAPES)}))"
    )


_A, _B = _thing_pattern("a"), _thing_pattern("b")
_RELATION_OF = {place: relation for relation, place in PLACES.items()}
_RELATION = f"(?P<relation>{_choice(RELATIONS)})"
_SENTENCES = tuple(
    re.compile(pattern)
    for pattern in (
        f"{_A} is {_RELATION} {_B}",
        f"there is {_A} {_RELATION} {_B}",
        f"{_RELATION} {_B} is {_A}",
        f"{_A} with {_B} (?P<place>{_choice(tuple(PLACES.values()))})",
    )
)


def parse(caption: str) -> Claim | None:
    """Return what a caption claims, or None where it is not a sentence of the grammar.

    Example:
        >>> parse("a small red circle is left of a blue square").relation
        'left of'
        >>> parse("a red is left")
    """
    for sentence in _SENTENCES:
        if match := sentence.fullmatch(caption):
            said = match.groupdict()
            relation = said.get("relation") or _RELATION_OF[said["place"]]
            return Claim(_mention(match, "a"), relation, _mention(match, "b"))
    return None


def check(caption: str, world: World) -> Verdict:
    """Return whether the world bears the caption out, and what its words show.

    Example:
        >>> import numpy as np
        >>> from visattn.data.scenes.grammar import tell
        >>> from visattn.data.scenes.world import Kinds, sample_world
        >>> world = sample_world(Kinds(), np.random.default_rng(0))
        >>> all(check(telling.text, world).true for telling in tell(world))
        True
    """
    nothing: list[tuple[int, ...]] = [()] * len(caption.split())
    claim = parse(caption)
    if claim is None:
        return Verdict(understood=False, true=False, shows=tuple(nothing))
    pairs = _witnesses(claim, world.things)
    for mention, things in zip((claim.first, claim.second), zip(*pairs, strict=True), strict=False):
        first, last = mention.span
        nothing[first:last] = [tuple(sorted(set(things)))] * (last - first)
    return Verdict(understood=True, true=bool(pairs), shows=tuple(nothing))


def _witnesses(claim: Claim, things: Sequence[SceneObject]) -> list[tuple[int, int]]:
    return [
        (i, j)
        for i, a in enumerate(things)
        for j, b in enumerate(things)
        if i != j and claim.first.fits(a) and claim.second.fits(b) and holds(claim.relation, a, b)
    ]


def _mention(match: re.Match[str], name: str) -> Mention:
    before = match.string[: match.start(name)].split()
    said = {part: match[f"{name}_{part}"] or "" for part in ("shape", "color", "texture", "size")}
    return Mention(**said, span=(len(before), len(before) + len(match[name].split())))


class Judgment(NamedTuple):
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


def judge(caption: str, maps: Float[Tensor, "t gy gx"], world: World) -> Judgment:
    """Return how a caption and its maps, one per word, fare against the scene.

    Args:
        caption: Words in lower case, one blank between them.
        maps: Attention per word over the whole image, each map summing to 1.
        world: What is really there.

    Raises:
        ValueError: If there are fewer maps than words.

    Example:
        >>> from visattn.data.scenes.dataset import Scenes
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
        return Judgment(verdict.understood, verdict.true, 0, 0.0, 0.0, 0.0)
    hits = correctness = baseline = 0.0
    for things in {things for _, things in visual}:
        looked = maps[[word for word, shown in visual if shown == things]]
        boxes = torch.tensor([world.things[thing].box for thing in things])
        covered = boxes_coverage(boxes, (maps.shape[-2], maps.shape[-1]))
        hits += float(pointing_hit(looked, boxes).sum())
        correctness += float(attention_correctness(looked, covered).sum())
        baseline += float(uniform_baseline(covered)) * len(looked)
    return Judgment(verdict.understood, verdict.true, len(visual), hits, correctness, baseline)
