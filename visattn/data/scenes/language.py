"""Captions of scenes: their grammar, and verification against the scene."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.data.scenes.world import (
    COLORS,
    RADII,
    SHAPES,
    TEXTURES,
    SceneObject,
    World,
    WorldConfig,
    object_boxes,
)
from visattn.metrics.grounding import (
    attention_correctness,
    box_coverage,
    pointing_hit,
    uniform_baseline,
)

MARGIN = 0.04  # minimum offset of centers for a relation, relative to the image side
RELATIONS = ("left of", "right of", "above", "below")
PLACES = {  # position of the second object relative to the first
    "left of": "on its right",
    "right of": "on its left",
    "above": "below it",
    "below": "above it",
}
CONVERSE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}


@dataclass(frozen=True)
class SceneCaption:
    """A caption and, for each word, the index of the object it refers to (None: not visual)."""

    words: tuple[str, ...]
    objects: tuple[int | None, ...]

    @property
    def text(self) -> str:
        """The caption as one line."""
        return " ".join(self.words)


def relation_holds(relation: str, a: SceneObject, b: SceneObject) -> bool:
    """Return whether a spatial relation holds between `a` and `b`.

    Example:
        >>> from visattn.data.scenes.world import SceneObject
        >>> a = SceneObject("circle", "red", "plain", "small", 0.2, 0.5, 0.1, 0.0, (255, 0, 0))
        >>> b = SceneObject("square", "blue", "plain", "small", 0.8, 0.5, 0.1, 0.0, (0, 0, 255))
        >>> relation_holds("left of", a, b), relation_holds("above", a, b)
        (True, False)
    """
    offsets = {"left of": b.x - a.x, "right of": a.x - b.x, "above": b.y - a.y, "below": a.y - b.y}
    return offsets[relation] > MARGIN


def describe_world(world: World) -> tuple[SceneCaption, ...]:
    """Return five captions of the spatial relation between the two largest objects.

    Example:
        >>> import numpy as np
        >>> from visattn.data.scenes.world import WorldConfig, sample_world
        >>> len(describe_world(sample_world(WorldConfig(), np.random.default_rng(0))))
        5
    """
    first, second = world.objects[:2]
    relation = _dominant_relation(first, second)
    a = _object_phrase(first, 0)
    b = _object_phrase(second, 1)
    return (
        _build_caption(a, "is", relation, b),
        _build_caption(b, "is", CONVERSE[relation], a),
        _build_caption("there is", a, relation, b),
        _build_caption(relation, b, "is", a),
        _build_caption(a, "with", b, PLACES[relation]),
    )


def _dominant_relation(a: SceneObject, b: SceneObject) -> str:
    dx = b.x - a.x
    dy = b.y - a.y
    if abs(dx) >= abs(dy):
        return "left of" if dx > 0 else "right of"
    return "above" if dy > 0 else "below"


def _object_phrase(obj: SceneObject, index: int) -> list[tuple[str, int | None]]:
    size = "" if obj.size == "medium" else obj.size
    texture = "" if obj.texture == "plain" else obj.texture
    words = [word for word in (size, texture, obj.color, obj.shape) if word]
    article = "an" if words[0][0] in "aeiou" else "a"
    return [(article, None), *((word, index) for word in words)]


def _build_caption(*parts: str | list[tuple[str, int | None]]) -> SceneCaption:
    pairs: list[tuple[str, int | None]] = []
    for part in parts:
        pairs += [(word, None) for word in part.split()] if isinstance(part, str) else part
    return SceneCaption(tuple(word for word, _ in pairs), tuple(obj for _, obj in pairs))


def is_visual_word(word: str) -> bool | None:
    """Return whether a word of the captions describes an object: its size, texture, color, shape.

    Spatial relations give None: they depend on the image but on no single object, and a captioner
    can infer them from where it attended before.

    Example:
        >>> [is_visual_word(word) for word in ("striped", "circle", "left", "a")]
        [True, True, None, False]
    """
    if word in {relation.split()[0] for relation in RELATIONS}:
        return None
    return word in {*COLORS, *SHAPES, *TEXTURES, *RADII} - {"plain", "medium"}


def grammar_words(config: WorldConfig) -> list[str]:
    """Return all words that captions of a config can have, in alphabetical order.

    Example:
        >>> from visattn.data.scenes.world import WorldConfig
        >>> "striped" in grammar_words(WorldConfig(textures=("plain",)))
        False
    """
    words = {"a", "an", "is", "there", "with", *" ".join((*RELATIONS, *PLACES.values())).split()}
    words |= {*config.colors, *config.shapes, *config.textures, *RADII} - {"plain", "medium"}
    return sorted(words)


_SIZES = tuple(size for size in RADII if size != "medium")
_TEXTURES = tuple(texture for texture in TEXTURES if texture != "plain")


@dataclass(frozen=True)
class Mention:
    """How a caption describes an object: some or all of its size, texture, color and shape.

    `span` is the range of these words in the caption, end exclusive.
    """

    words: tuple[str, ...]
    span: tuple[int, int]

    def matches(self, thing: SceneObject) -> bool:
        """Return whether the description is true of an object."""
        return {*self.words} <= {thing.size, thing.texture, thing.color, thing.shape}


@dataclass(frozen=True)
class Claim:
    """Claim that two objects exist and a relation holds between them."""

    first: Mention
    relation: str
    second: Mention


@dataclass(frozen=True)
class Verdict:
    """Result of verifying a caption.

    Args:
        parsed: Whether the grammar covers the caption.
        true: Whether it is parsed and some pair of different objects satisfies it.
        objects: For each word, the indices of the objects it refers to, over all pairs that
            satisfy the caption; empty for words that are not visual.
    """

    parsed: bool
    true: bool
    objects: tuple[tuple[int, ...], ...]


def _alternatives(words: Sequence[str]) -> str:
    return "(?:" + "|".join(words) + ")"


def _object_pattern(name: str) -> str:
    before = "".join(f"(?:{_alternatives(words)} )?" for words in (_SIZES, _TEXTURES, [*COLORS]))
    return rf"an? (?P<{name}>{before}{_alternatives(SHAPES)})"


_A = _object_pattern("a")
_B = _object_pattern("b")
_RELATION_OF = {place: relation for relation, place in PLACES.items()}
_RELATION = f"(?P<relation>{_alternatives(RELATIONS)})"
_SENTENCES = tuple(
    re.compile(pattern)
    for pattern in (
        f"{_A} is {_RELATION} {_B}",
        f"there is {_A} {_RELATION} {_B}",
        f"{_RELATION} {_B} is {_A}",
        f"{_A} with {_B} (?P<place>{_alternatives(tuple(PLACES.values()))})",
    )
)


def parse_claim(caption: str) -> Claim | None:
    """Parse a caption into its claim; None if the grammar does not cover it.

    Example:
        >>> parse_claim("a small red circle is left of a blue square").relation
        'left of'
        >>> parse_claim("a red is left")
    """
    for sentence in _SENTENCES:
        if match := sentence.fullmatch(caption):
            groups = match.groupdict()
            relation = groups.get("relation") or _RELATION_OF[groups["place"]]
            return Claim(_parse_mention(match, "a"), relation, _parse_mention(match, "b"))
    return None


def verify_caption(caption: str, world: World) -> Verdict:
    """Return whether a caption is true of a world, and the objects its words refer to.

    Example:
        >>> import numpy as np
        >>> from visattn.data.scenes.language import describe_world
        >>> from visattn.data.scenes.world import WorldConfig, sample_world
        >>> world = sample_world(WorldConfig(), np.random.default_rng(0))
        >>> all(verify_caption(c.text, world).true for c in describe_world(world))
        True
    """
    referents: list[tuple[int, ...]] = [()] * len(caption.split())
    claim = parse_claim(caption)
    if claim is None:
        return Verdict(parsed=False, true=False, objects=tuple(referents))
    pairs = _satisfying_pairs(claim, world.objects)
    # Without a matching pair, zip(*pairs) is empty and no word refers to an object.
    for mention, things in zip((claim.first, claim.second), zip(*pairs, strict=True), strict=False):
        first, last = mention.span
        referents[first:last] = [tuple(sorted(set(things)))] * (last - first)
    return Verdict(parsed=True, true=bool(pairs), objects=tuple(referents))


def _satisfying_pairs(claim: Claim, things: Sequence[SceneObject]) -> list[tuple[int, int]]:
    return [
        (i, j)
        for i, a in enumerate(things)
        for j, b in enumerate(things)
        if i != j
        and claim.first.matches(a)
        and claim.second.matches(b)
        and relation_holds(claim.relation, a, b)
    ]


def _parse_mention(match: re.Match[str], name: str) -> Mention:
    words = tuple(match[name].split())
    first = len(match.string[: match.start(name)].split())
    return Mention(words, (first, first + len(words)))


class CaptionScore(NamedTuple):
    """Scores of one caption; the sums run over the visual words of a true caption."""

    parsed: bool
    """Whether the grammar covers the caption."""
    true: bool
    """Whether the caption is true of the scene."""
    num_visual_words: int
    """Number of visual words."""
    hits: float
    """Pointing-game hits: words whose map peaks in a box of an object they refer to."""
    correctness: float
    """Sum of the attention mass inside the boxes."""
    baseline: float
    """The same sum for uniform attention."""


def score_caption(
    caption: str,
    maps: Float[Tensor, "t gy gx"],
    world: World,
    *,
    size: int,
) -> CaptionScore:
    """Score a caption and its attention maps, one per word, against a scene.

    Args:
        caption: Words in lower case, joined by single spaces.
        maps: Attention per word over the whole image, each map summing to 1.
        world: Ground truth of the scene.
        size: Height and width of the rendered scene in pixels, in which the boxes are measured.

    Raises:
        ValueError: If there are fewer maps than words.

    Example:
        >>> from visattn.data.scenes.dataset import Scenes
        >>> scene = Scenes(1)[0]
        >>> uniform = torch.full((20, 8, 8), 1 / 64)
        >>> score = score_caption(scene.captions[0], uniform, scene.world, size=64)
        >>> score.true, round(score.correctness - score.baseline, 6)
        (True, 0.0)
    """
    verdict = verify_caption(caption, world)
    if len(maps) < len(verdict.objects):
        raise ValueError(f"each of {len(verdict.objects)} words needs a map, got {len(maps)} maps")
    visual = [(word, things) for word, things in enumerate(verdict.objects) if things]
    if not verdict.true or not visual:
        return CaptionScore(verdict.parsed, verdict.true, 0, 0.0, 0.0, 0.0)
    hits = correctness = baseline = 0.0
    object_sides = torch.from_numpy(object_boxes(world, size)).float() / size
    for things in {things for _, things in visual}:
        word_maps = maps[[word for word, objects in visual if objects == things]]
        boxes = object_sides[list(things)]
        coverage = box_coverage(boxes, (maps.shape[-2], maps.shape[-1]))
        hits += float(pointing_hit(word_maps, boxes).sum())
        correctness += float(attention_correctness(word_maps, coverage).sum())
        baseline += float(uniform_baseline(coverage)) * len(word_maps)
    return CaptionScore(verdict.parsed, verdict.true, len(visual), hits, correctness, baseline)
