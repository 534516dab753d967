"""Phrase grounding annotations: noun phrases of captions with boxes (Flickr30k Entities)."""

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, cast

import torch

from visattn.data.captions.vocabulary import split_words
from visattn.geometry.affine import Box, Geometry
from visattn.io.safe_text import (
    decode_utf8,
    decompress_gzip,
    parse_json,
    printable_name,
    read_bytes_bounded,
    short_repr,
)
from visattn.results.captions import Phrase


def read_phrases(
    path: str | os.PathLike[str],
) -> dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]]:
    """Read phrase annotations: for each photo, phrases with boxes by the words of the caption.

    If a caption occurs twice, a phrase has the boxes of both. Phrases without boxes, or without
    words after `split_words`, are dropped.

    Args:
        path: JSON, also as gzip: names of photos with a list of captions each, a caption an object
            with `sentence` and `phrases`, a phrase an object with `first_word` and `words`, counted
            between spaces, `types`, and `boxes` as left, top, right, bottom between 0 and 1.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its content is invalid; the message names the photo. If it is longer than a
            gibibyte, compressed or decompressed.

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
    source = Path(path)
    annotations = _load_json(source)
    if not isinstance(annotations, dict):
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"{source} must hold an object of photos, got a {type(annotations).__name__}"
        )
    photos: dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]] = {}
    for photo, sentences in annotations.items():
        try:
            photos[photo] = _parse_sentences(sentences)
        except ValueError as error:
            raise ValueError(f"{source}, photo {printable_name(photo)}: {error}") from error
    return photos


def phrases_to_input(phrases: Sequence[Phrase], geometry: Geometry) -> tuple[Phrase, ...]:
    """Return phrases with their boxes relative to the network's input.

    Boxes are clipped to the input; a phrase whose boxes are all outside is dropped.

    Args:
        phrases: With boxes relative to the upright image.
        geometry: Maps the network's input to that image.

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
    mapped = (
        phrase._replace(boxes=_nonempty(next(on_input) for _ in phrase.boxes)) for phrase in phrases
    )
    return tuple(phrase for phrase in mapped if phrase.boxes)


def match_phrases(words: Sequence[str], annotated: Iterable[Phrase]) -> tuple[Phrase, ...]:
    """Return the annotated phrases that occur word for word in a generated caption.

    The caption is matched from left to right; at each word the longest phrase wins. If a text is
    annotated several times, for example for several people, the match has all boxes.

    Args:
        words: Words of the generated caption.
        annotated: Phrases of all reference captions of the same image.

    Example:
        >>> dog = Phrase(4, 2, ((0.0, 0.0, 0.5, 0.5),), ("animals",), "a dog")
        >>> match_phrases(["there", "is", "a", "dog"], [dog])[0].start
        2

    Source:
        Liu et al. 2017, arXiv:1605.09553, where a parser finds the phrases: here an
        annotated `dog` also matches inside of `a big dog`.
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


def _load_json(source: Path) -> Any:
    if not source.is_file():
        raise FileNotFoundError(f"no phrase annotations at {source}")
    content = read_bytes_bounded(source)
    if content[:2] == b"\x1f\x8b":
        try:
            content = decompress_gzip(content)
        except ValueError as error:
            raise ValueError(
                f"{source} cannot be decompressed: {error}; download it again"
            ) from error
    try:
        return parse_json(decode_utf8(content))
    except ValueError as error:
        raise ValueError(f"{source} is neither JSON nor gzip-compressed JSON: {error}") from error


def _parse_sentences(sentences: Any) -> dict[tuple[str, ...], tuple[Phrase, ...]]:
    """Return the phrases of each caption of one photo."""
    if not isinstance(sentences, list):
        raise ValueError(f"captions must be a list, got a {type(sentences).__name__}")  # noqa: TRY004
    captions: dict[tuple[str, ...], tuple[Phrase, ...]] = {}
    for entry in sentences:
        parts = str(_require_field(entry, "sentence", str)).split()
        words_of_parts = [split_words(part) for part in parts]
        words = tuple(chain.from_iterable(words_of_parts))
        starts = [0, *accumulate(map(len, words_of_parts))]
        phrases = [
            _parse_phrase(phrase, parts, starts, words)
            for phrase in _require_field(entry, "phrases", list)
        ]
        kept = (phrase for phrase in phrases if phrase.num_words and phrase.boxes)
        captions[words] = _merge_duplicates((*captions.get(words, ()), *kept))
    return captions


def _parse_phrase(
    entry: Any, parts: Sequence[str], starts: Sequence[int], words: Sequence[str]
) -> Phrase:
    """Return a phrase; its position in space-separated parts becomes one in `split_words`."""
    first, count = _require_field(entry, "first_word", int), _require_field(entry, "words", int)
    if not 0 <= first < first + count <= len(parts):
        raise ValueError(
            f"{count} words from word {first} exceed {short_repr(' '.join(parts))}, "
            f"which has {len(parts)}"
        )
    text = " ".join(parts[first : first + count])
    if entry.get("phrase", text) != text:
        raise ValueError(
            f"the phrase {short_repr(entry['phrase'])} is not at word {first}, where the caption "
            f"has {short_repr(text)}; words are separated by spaces and counted from 0"
        )
    start, end = starts[first], starts[first + count]
    boxes = tuple(_parse_box(box, text) for box in _require_field(entry, "boxes", list))
    types = _require_field(entry, "types", list)
    if not all(isinstance(kind, str) for kind in types):
        raise ValueError(f"types must be strings, got {short_repr(types)} for {short_repr(text)}")
    return Phrase(start, end - start, boxes, tuple(types), " ".join(words[start:end]))


def _parse_box(value: Any, text: str) -> Box:
    numbers = value if isinstance(value, list) and len(value) == 4 else [-1]
    numeric = all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers)
    if not numeric or not all(0 <= n <= 1 for n in numbers):  # false for NaN
        numbers = [-1.0] * 4
    x0, y0, x1, y1 = map(float, numbers)
    if not (0 <= x0 < x1 and 0 <= y0 < y1):
        raise ValueError(
            "a box must be left < right and top < bottom, all between 0 and 1, got "
            f"{short_repr(value)} for {short_repr(text)}"
        )
    return x0, y0, x1, y1


def _require_field(entry: Any, name: str, kind: type) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"each entry needs {name!r} of type {kind.__name__}, got {short_repr(entry)}"
        )
    return value


def _merge_duplicates(phrases: Iterable[Phrase]) -> tuple[Phrase, ...]:
    """Return phrases in order, merging those with the same words."""
    by_span: dict[tuple[int, int], list[Phrase]] = {}
    for phrase in phrases:
        by_span.setdefault((phrase.start, phrase.num_words), []).append(phrase)
    return tuple(_merge(by_span[span]) for span in sorted(by_span))


def _merge(phrases: Sequence[Phrase]) -> Phrase:
    """Return the first phrase, with the unique boxes and types of all."""
    boxes = dict.fromkeys(box for phrase in phrases for box in phrase.boxes)
    types = dict.fromkeys(kind for phrase in phrases for kind in phrase.types)
    return phrases[0]._replace(boxes=tuple(boxes), types=tuple(types))


def _nonempty(boxes: Iterable[Sequence[float]]) -> tuple[Box, ...]:
    """Return the boxes with a positive area."""
    return tuple(cast("Box", tuple(box)) for box in boxes if box[0] < box[2] and box[1] < box[3])
