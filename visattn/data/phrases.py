"""Phrase boxes (Flickr30k Entities): reading, grounding scores, targets for attention."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.data.captions.batch import split_words
from visattn.geometry.affine import Box, Geometry
from visattn.io.safe_text import (
    decode_utf8,
    decompress_gzip,
    parse_json,
    printable_name,
    read_bytes_bounded,
    reading,
    short_repr,
)
from visattn.metrics.grounding import (
    attention_correctness,
    box_coverage,
    box_target,
    paper_correctness,
    pointing_hit,
    uniform_baseline,
)
from visattn.results.captions import Phrase


def read_phrases(
    path: str | os.PathLike[str],
) -> dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]]:
    """Read phrase boxes: for each photo, a mapping from the words of a caption to its phrases.

    If a caption occurs twice, the boxes of its phrases are merged. Phrases without boxes, or
    without words after `split_words`, are dropped.

    Args:
        path: JSON, optionally gzipped: photo name to a list of captions with `sentence` and
            `phrases`. A phrase has `first_word` and `words` (counting words between spaces),
            `types`, and `boxes` as left, top, right, bottom between 0 and 1.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its content is invalid (the message names the photo), or exceeds 1 GiB,
            compressed or decompressed.

    Example:
        >>> ball = {"first_word": 0, "words": 3, "types": [], "boxes": [[0, 0, 1, 0.5]]}
        >>> import json
        >>> annotations = {"a.jpg": [{"sentence": "Dog 's ball", "phrases": [ball]}]}
        >>> path = getfixture("tmp_path") / "phrases.json"
        >>> _ = path.write_text(json.dumps(annotations))
        >>> [phrases] = read_phrases(path)["a.jpg"].values()
        >>> phrases[0].text, phrases[0].boxes
        ("dog 's ball", ((0.0, 0.0, 1.0, 0.5),))

    Source:
        Plummer et al. 2015, arXiv:1505.04870 (Flickr30k Entities), the format of its annotations.
    """
    with reading(path):
        content = read_bytes_bounded(Path(path))
        if content[:2] == b"\x1f\x8b":
            content = decompress_gzip(content)
        photos: dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]] = {}
        for photo, sentences in parse_json(decode_utf8(content)).items():
            with reading(path, f"photo {printable_name(photo)}"):
                photos[photo] = _parse_sentences(sentences)
    return photos


def phrases_to_input(phrases: Sequence[Phrase], geometry: Geometry) -> tuple[Phrase, ...]:
    """Map the boxes of phrases from the upright image to the network's input.

    Boxes are clipped to the input; a phrase whose boxes are all outside is dropped.

    Example:
        >>> left = Geometry.identity((10, 20)).cropped(0, 0, (10, 10))
        >>> ball = Phrase(0, 1, ((0.25, 0.0, 1.0, 1.0), (0.6, 0.0, 1.0, 1.0)), (), "ball")
        >>> phrases_to_input([ball], left)[0].boxes
        ((0.5, 0.0, 1.0, 1.0),)
    """
    if not phrases:
        return ()
    height, width = geometry.image_size
    boxes = [box for phrase in phrases for box in phrase.boxes]
    pixels = torch.tensor(boxes, dtype=torch.float64) * torch.tensor([width, height, width, height])
    on_input = iter(geometry.boxes_to_input(pixels).tolist())
    result: list[Phrase] = []
    for phrase in phrases:
        mapped = [cast("Box", tuple(next(on_input))) for _ in phrase.boxes]
        if nonempty := tuple(box for box in mapped if box[0] < box[2] and box[1] < box[3]):
            result.append(phrase._replace(boxes=nonempty))
    return tuple(result)


def match_phrases(words: Sequence[str], annotated: Iterable[Phrase]) -> tuple[Phrase, ...]:
    """Return the annotated phrases that occur verbatim in a generated caption of their image.

    The caption is matched from left to right; at each word the longest phrase wins. If a text is
    annotated several times, for example for several people, the match has all boxes.

    Example:
        >>> dog = Phrase(4, 2, ((0.0, 0.0, 0.5, 0.5),), ("animals",), "a dog")
        >>> match_phrases(["there", "is", "a", "dog"], [dog])[0].start
        2

    Source:
        Liu et al. 2017, arXiv:1605.09553, who find phrases with a parser; here an annotated `dog`
        also matches within `a big dog`.
    """
    by_words: dict[tuple[str, ...], list[Phrase]] = {}
    for phrase in annotated:
        by_words.setdefault(tuple(phrase.text.split()), []).append(phrase)
    longest = max(map(len, by_words), default=0)
    matches: list[Phrase] = []
    start = 0
    while start < len(words):
        for num_words in range(longest, 0, -1):
            if phrases := by_words.get(tuple(words[start : start + num_words])):
                matches.append(_merge(phrases)._replace(start=start))
                start += matches[-1].num_words
                break
        else:
            start += 1
    return tuple(matches)


def _parse_sentences(
    sentences: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, ...], tuple[Phrase, ...]]:
    """Return the phrases of each caption of one photo."""
    captions: dict[tuple[str, ...], tuple[Phrase, ...]] = {}
    for entry in sentences:
        # Annotations count space-separated parts, captions count words of `split_words`:
        #
        #     parts    A  dog's   bone  ,  two  cats
        #     words    a  dog 's  bone     two  cats
        #     starts   0  1       3     4  4    5     6
        parts = entry["sentence"].split()
        words_of_parts = [split_words(part) for part in parts]
        words = tuple(chain.from_iterable(words_of_parts))
        starts = [0, *accumulate(map(len, words_of_parts))]
        phrases = [_parse_phrase(phrase, parts, starts, words) for phrase in entry["phrases"]]
        kept = (phrase for phrase in phrases if phrase.num_words and phrase.boxes)
        captions[words] = _merge_duplicates((*captions.get(words, ()), *kept))
    return captions


def _parse_phrase(
    entry: Mapping[str, Any], parts: Sequence[str], starts: Sequence[int], words: Sequence[str]
) -> Phrase:
    """Return a phrase, with its position converted from space-separated parts to words."""
    first, end = entry["first_word"], entry["first_word"] + entry["words"]
    text = " ".join(parts[first:end])
    if not 0 <= first < end <= len(parts) or entry.get("phrase", text) != text:
        raise ValueError(
            f"a phrase must be words {first} to {end} of {short_repr(' '.join(parts))} (separated "
            f"by spaces, counted from 0), got {short_repr(entry.get('phrase', ''))}"
        )
    boxes = tuple(_parse_box(box) for box in entry["boxes"])
    start, stop = starts[first], starts[end]
    types = tuple(map(str, entry["types"]))
    return Phrase(start, stop - start, boxes, types, " ".join(words[start:stop]))


def _parse_box(value: Sequence[float]) -> Box:
    left, top, right, bottom = map(float, value)
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):  # false for NaN
        raise ValueError(
            "a box must be left < right and top < bottom, all between 0 and 1, got "
            f"{short_repr(value)}"
        )
    return left, top, right, bottom


def _merge_duplicates(phrases: Iterable[Phrase]) -> tuple[Phrase, ...]:
    """Return phrases in order, merging those with the same words."""
    by_span: dict[tuple[int, int], list[Phrase]] = {}
    for phrase in phrases:
        by_span.setdefault((phrase.start, phrase.num_words), []).append(phrase)
    return tuple(_merge(by_span[span]) for span in sorted(by_span))


def _merge(phrases: Sequence[Phrase]) -> Phrase:
    """Return the first phrase, with the unique boxes and types of all."""
    boxes = dict.fromkeys(box for phrase in phrases for box in phrase.boxes)
    types = dict.fromkeys(name for phrase in phrases for name in phrase.types)
    return phrases[0]._replace(boxes=tuple(boxes), types=tuple(types))


class GroundingResult(NamedTuple):
    """Grounding scores of one phrase; its region is the union of its boxes."""

    word_correctness: tuple[float, ...]
    """Attention correctness of each word: attention mass in the boxes, exact by area."""
    baseline: float
    """Correctness of uniform attention: the fraction of the image covered by the boxes."""
    pointing_hit: bool
    """Whether the summed maps of the words peak inside a box; see `pointing_hit`."""
    paper_correctness: float
    """Maximum correctness over the words as the authors compute it, `paper_correctness`."""
    paper_baseline: float
    """The baseline as the authors compute it."""

    @property
    def max_correctness(self) -> float:
        """Maximum correctness over the words, as the paper scores a phrase.

        By chance alone it grows with the number of words: compare with maps of other images.
        """
        return max(self.word_correctness)

    @property
    def mean_correctness(self) -> float:
        """Mean correctness of the words; random maps score the baseline on average."""
        return sum(self.word_correctness) / len(self.word_correctness)

    @property
    def last_correctness(self) -> float:
        """Correctness of the last word, usually the head noun in English."""
        return self.word_correctness[-1]


def normalize_maps(values: Float[Tensor, "*t gy gx"]) -> Float[Tensor, "*t gy gx"]:
    """Normalize maps to sum to 1, in float64; negative values count as 0.

    A map without positive values becomes uniform.

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
    """Target attention for the words of a batch of captions that have boxes."""

    caption_indices: Int[Tensor, " s"]
    """Index of the caption of each word."""
    steps: Int[Tensor, " s"]
    """Index of each word in its caption, i.e. its decoding step."""
    targets: Float[Tensor, "s n"]
    """Target attention over the flattened grid; each row sums to 1."""


def supervised_words(
    captions: Sequence[Sequence[Phrase]], grid: tuple[int, int], *, words: SupervisedPart = "all"
) -> SupervisedWords:
    """Return target attention, uniform over the boxes, for the words of phrases.

    `visattn.functional.captions.pack_targets` aligns them with the attention of a batch.

    Args:
        captions: Phrases of each caption, with boxes relative to the network's input.
        grid: Rows and columns of the attention grid.
        words: `all` supervises every word of a phrase, articles included; `last` only the last one,
            usually the head noun in English.

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
