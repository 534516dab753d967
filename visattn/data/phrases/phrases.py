"""Phrases of captions, and the boxes of what they speak of."""

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from visattn.data.captions.vocabulary import split_words
from visattn.geometry.affine import Box, Geometry
from visattn.io.safe_text import bounded_bytes, named, parsed_json, plain_text, shown, unpacked_gzip


class Phrase(NamedTuple):
    """Neighboring words of a caption that speak of something with a place on the image.

    Example:
        >>> Phrase(1, 2, ((0.0, 0.5, 1.0, 1.0),), ("scene",), "green grass").count
        2
    """

    first: int
    """Its first word, counted from 0 in what `split_words` makes of the caption."""
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] (nobody counts a phrase's fields)
    """Words."""
    boxes: tuple[Box, ...]
    """Left, top, right, bottom as shares of the image, or of what a network sees of it."""
    types: tuple[str, ...]
    """Such as `people`, `animals`, `scene`."""
    text: str
    """The words, lower-cased, one blank between them."""


def read_phrases(
    path: str | os.PathLike[str],
) -> dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]]:
    """Return, for each photo and each caption by its words, the phrases that have boxes.

    Where a caption stands twice, a phrase has the boxes of both. A phrase without boxes, or of
    which `split_words` leaves nothing, is left out.

    Args:
        path: JSON, also as gzip: names of photos with a list of captions each, a caption an object
            with `sentence` and `phrases`, a phrase an object with `first_word` and `words`, counted
            between blanks, `types`, and `boxes` as left, top, right, bottom between 0 and 1.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it does not hold what it should; the photo is named. If it is longer than a
            gibibyte, packed or unpacked.

    Example:
        >>> ball = {"first_word": 0, "words": 3, "types": [], "boxes": [[0, 0, 1, 0.5]]}
        >>> import json
        >>> told = {"a.jpg": [{"sentence": "Dog 's ball", "phrases": [ball]}]}
        >>> path = getfixture("tmp_path") / "phrases.json"
        >>> _ = path.write_text(json.dumps(told))
        >>> [phrases] = read_phrases(path)["a.jpg"].values()
        >>> phrases[0].text, phrases[0].boxes
        ("dog 's ball", ((0.0, 0.0, 1.0, 0.5),))

    Source:
        Plummer et al. 2015, arXiv:1505.04870 (Flickr30k Entities), whose annotations come so.
    """
    source = Path(path)
    told = _content(source)
    if not isinstance(told, dict):
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"{source} must hold an object of photos, it holds a {type(told).__name__}"
        )
    photos: dict[str, dict[tuple[str, ...], tuple[Phrase, ...]]] = {}
    for photo, sentences in told.items():
        try:
            photos[photo] = _captions(sentences)
        except ValueError as error:
            raise ValueError(f"{source}, photo {named(photo)}: {error}") from error
    return photos


def phrases_on_input(phrases: Sequence[Phrase], geometry: Geometry) -> tuple[Phrase, ...]:
    """Return phrases with their boxes as shares of what the network sees.

    What it does not see is cut off; a phrase of which it sees nothing is left out.

    Args:
        phrases: With boxes as shares of the upright image.
        geometry: The way from the network's input to that image.

    Example:
        >>> left = Geometry.identity((10, 20)).cropped(0, 0, (10, 10))
        >>> ball = Phrase(0, 1, ((0.25, 0.0, 1.0, 1.0), (0.6, 0.0, 1.0, 1.0)), (), "ball")
        >>> phrases_on_input([ball], left)[0].boxes
        ((0.5, 0.0, 1.0, 1.0),)
    """
    if not phrases:
        return ()
    height, width = geometry.image_size
    boxes = [box for phrase in phrases for box in phrase.boxes]
    pixels = torch.tensor(boxes, dtype=torch.float64) * torch.tensor([width, height, width, height])
    carried = iter(geometry.boxes_to_input(pixels).tolist())
    moved = (
        phrase._replace(boxes=_filled(next(carried) for _ in phrase.boxes)) for phrase in phrases
    )
    return tuple(phrase for phrase in moved if phrase.boxes)


def spoken_phrases(words: Sequence[str], known: Iterable[Phrase]) -> tuple[Phrase, ...]:
    """Return the known phrases that a caption says again, word for word, where it says them.

    The caption is read from left to right; of the phrases that begin at a word, the longest
    counts. Where a text is known several times, of several people say, the phrase has all boxes.

    Args:
        words: The caption, as a model made it up.
        known: Phrases of all captions of the same image.

    Example:
        >>> dog = Phrase(4, 2, ((0.0, 0.0, 0.5, 0.5),), ("animals",), "a dog")
        >>> spoken_phrases(["there", "is", "a", "dog"], [dog])[0].first
        2

    Source:
        Liu et al. 2017, arXiv:1605.09553, where a parser says what a phrase is: here `dog`,
        if that is known, is also found in `a big dog`.
    """
    by_words: dict[tuple[str, ...], list[Phrase]] = {}
    for phrase in known:
        by_words.setdefault(tuple(phrase.text.split()), []).append(phrase)
    longest = max(map(len, by_words), default=0)
    found: list[Phrase] = []
    first = 0
    while first < len(words):
        for count in range(longest, 0, -1):
            if same := by_words.get(tuple(words[first : first + count])):
                found.append(_as_one(same)._replace(first=first))
                first += found[-1].count
                break
        else:
            first += 1
    return tuple(found)


def _content(source: Path) -> Any:
    if not source.is_file():
        raise FileNotFoundError(f"no file of phrases at {source}")
    content = bounded_bytes(source)
    if content[:2] == b"\x1f\x8b":
        try:
            content = unpacked_gzip(content)
        except ValueError as error:
            raise ValueError(f"{source} cannot be unpacked: {error}; fetch it anew") from error
    try:
        return parsed_json(plain_text(content))
    except ValueError as error:
        raise ValueError(f"{source} is neither JSON nor JSON packed by gzip: {error}") from error


def _captions(sentences: Any) -> dict[tuple[str, ...], tuple[Phrase, ...]]:
    """Return the phrases of one photo's captions."""
    if not isinstance(sentences, list):
        raise ValueError(f"captions must stand in a list, got a {type(sentences).__name__}")  # noqa: TRY004
    captions: dict[tuple[str, ...], tuple[Phrase, ...]] = {}
    for entry in sentences:
        parts = str(_field(entry, "sentence", str)).split()
        pieces = [split_words(part) for part in parts]
        words = tuple(chain.from_iterable(pieces))
        starts = [0, *accumulate(map(len, pieces))]
        phrases = [_phrase(told, parts, starts, words) for told in _field(entry, "phrases", list)]
        kept = (phrase for phrase in phrases if phrase.count and phrase.boxes)
        captions[words] = _merged((*captions.get(words, ()), *kept))
    return captions


def _phrase(
    entry: Any, parts: Sequence[str], starts: Sequence[int], words: Sequence[str]
) -> Phrase:
    """Return a phrase counted in words, each of the parts between blanks starting at its own."""
    first, count = _field(entry, "first_word", int), _field(entry, "words", int)
    if not 0 <= first < first + count <= len(parts):
        raise ValueError(
            f"{count} words from word {first} do not lie in {shown(' '.join(parts))}, "
            f"which has {len(parts)}"
        )
    said = " ".join(parts[first : first + count])
    if entry.get("phrase", said) != said:
        raise ValueError(
            f"the phrase {shown(entry['phrase'])} does not stand at word {first}, there is "
            f"{shown(said)}; "
            "words are counted from 0, between blanks"
        )
    start, end = starts[first], starts[first + count]
    boxes = tuple(_box(box, said) for box in _field(entry, "boxes", list))
    types = _field(entry, "types", list)
    if not all(isinstance(kind, str) for kind in types):
        raise ValueError(f"types must be texts, got {shown(types)} for {shown(said)}")
    return Phrase(start, end - start, boxes, tuple(types), " ".join(words[start:end]))


def _box(told: Any, said: str) -> Box:
    numbers = told if isinstance(told, list) and len(told) == 4 else [-1]
    plain = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in numbers)
    if not plain or not all(0 <= one <= 1 for one in numbers):  # NaN neither
        numbers = [-1.0] * 4
    x0, y0, x1, y1 = map(float, numbers)
    if not (0 <= x0 < x1 and 0 <= y0 < y1):
        raise ValueError(
            "a box must be left < right and top < bottom, all between 0 and 1, got "
            f"{shown(told)} for {shown(said)}"
        )
    return x0, y0, x1, y1


def _field(entry: Any, name: str, kind: type) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"each entry needs {name!r}, a {kind.__name__}, got {shown(entry)}")  # noqa: TRY004
    return value


def _merged(phrases: Iterable[Phrase]) -> tuple[Phrase, ...]:
    """Return phrases in their order, those of the same words as one."""
    places: dict[tuple[int, int], list[Phrase]] = {}
    for phrase in phrases:
        places.setdefault((phrase.first, phrase.count), []).append(phrase)
    return tuple(_as_one(places[place]) for place in sorted(places))


def _as_one(same: Sequence[Phrase]) -> Phrase:
    """Return the first of phrases, with the boxes and types of all, each once."""
    boxes = dict.fromkeys(box for phrase in same for box in phrase.boxes)
    types = dict.fromkeys(kind for phrase in same for kind in phrase.types)
    return same[0]._replace(boxes=tuple(boxes), types=tuple(types))


def _filled(boxes: Iterable[Sequence[float]]) -> tuple[Box, ...]:
    """Return those boxes that hold anything."""
    return tuple(cast("Box", tuple(box)) for box in boxes if box[0] < box[2] and box[1] < box[3])
