"""Phrases with boxes: readers and matching."""

import gzip
import json
import os
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.data.captions.batch import split_words
from visattn.data.phrases import (
    match_phrases,
    phrases_to_input,
    read_phrases,
)
from visattn.geometry.affine import Box, Geometry
from visattn.metrics.grounding import box_coverage
from visattn.results.captions import Phrase

BOX = [0.0, 0.25, 0.5, 1.0]
PARTS = st.sampled_from(
    ["a", "dog", "'s", "dog's", "T-shirt", ".", ",", "..", "#", "two2", "Ünder"]
)


def phrase(first: int, words: int, *boxes: list[Any], types: tuple[str, ...] = ()) -> Any:
    return {"first_word": first, "words": words, "types": list(types), "boxes": list(boxes)}


def annotation(sentence: str, *phrases: Any) -> Any:
    return {"sentence": sentence, "phrases": list(phrases)}


def written(folder: Path, photos: Any) -> Path:
    path = folder / "phrases.json"
    path.write_text(json.dumps(photos))
    return path


def test_words_are_counted_without_punctuation(tmp_path: Path) -> None:
    other = [0.5, 0.0, 1.0, 1.0]
    sentence = annotation(
        '" The Dog , a puppy , bites .',
        phrase(4, 2, BOX, types=("animals",)),
        phrase(1, 2, BOX, other),
    )
    photos = read_phrases(written(tmp_path, {"a.jpg": [sentence], "b.jpg": []}))
    dog = Phrase(0, 2, ((0.0, 0.25, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0)), (), "the dog")
    puppy = Phrase(2, 2, ((0.0, 0.25, 0.5, 1.0),), ("animals",), "a puppy")
    words = ("the", "dog", "a", "puppy", "bites")
    assert photos == {"a.jpg": {words: (dog, puppy)}, "b.jpg": {}}


@given(parts=st.lists(PARTS, min_size=1, max_size=11), span=st.tuples(st.integers(), st.integers()))
def test_phrase_keeps_its_words(
    parts: list[str], span: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = span[0] % len(parts)
    count = span[1] % (len(parts) - first) + 1
    sentence = " ".join(parts)
    path = written(
        tmp_path_factory.getbasetemp(), {"p": [annotation(sentence, phrase(first, count, BOX))]}
    )
    [(words, phrases)] = read_phrases(path)["p"].items()
    assert words == tuple(split_words(sentence))
    said = split_words(" ".join(parts[first : first + count]))
    assert [item.text.split() for item in phrases] == ([said] if said else [])
    for item in phrases:
        assert list(words[item.start : item.start + item.num_words]) == said


def test_phrases_without_box_or_word_are_skipped(tmp_path: Path) -> None:
    sentence = annotation("a dog . runs", phrase(0, 2), phrase(2, 1, BOX), phrase(3, 1, BOX))
    [phrases] = read_phrases(written(tmp_path, {"p": [sentence]}))["p"].values()
    assert [item.text for item in phrases] == ["runs"]


def test_repeated_caption_has_the_boxes_of_both(tmp_path: Path) -> None:
    other = [0.5, 0.0, 1.0, 1.0]
    twice = [
        annotation("A dog runs .", phrase(0, 2, BOX, types=("animals",)), phrase(2, 1, BOX)),
        annotation("a Dog runs", phrase(0, 2, other, BOX, types=("animals", "people"))),
    ]
    [phrases] = read_phrases(written(tmp_path, {"p": twice}))["p"].values()
    assert [(item.text, item.types) for item in phrases] == [
        ("a dog", ("animals", "people")),
        ("runs", ()),
    ]
    assert phrases[0].boxes == ((0.0, 0.25, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0))


def test_gzip_is_detected_by_content(tmp_path: Path) -> None:
    photos = {"p": [annotation("a dog", phrase(0, 2, BOX))]}
    plain = written(tmp_path, photos)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_phrases(packed) == read_phrases(plain)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ({"sentence": "a"}, "string indices must be integers"),
        (["a dog"], "string indices must be integers"),
        ([{"sentence": 3}], "'int' object has no attribute 'split'"),
        ([{"sentence": "a dog"}], "no 'phrases'"),
        ([annotation("a dog", phrase(1, 2, BOX))], "words 1 to 3 of 'a dog'"),
        ([annotation("a dog", phrase(-1, 1, BOX))], "words -1 to 0 of"),
        ([annotation("a dog", phrase(0, 0, BOX))], "words 0 to 0 of"),
        ([annotation("a dog", {**phrase(0, 1, BOX), "phrase": "dog"})], "'dog', words 0 to 1 of"),
        ([annotation("a dog", phrase(0, 2, [0, 0, 1, 1.01]))], "all between 0 and 1, got"),
        ([annotation("a dog", phrase(0, 2, [0.5, 0, 0.5, 1]))], "left < right"),
        ([annotation("a dog", phrase(0, 2, [0, 0, float("nan"), 1]))], "a box must be"),
        ([annotation("a dog", phrase(0, 2, [0, 0, 1]))], "not enough values"),
        ([annotation("a dog", phrase(0, 2, ["left", 0, 1, 1]))], "could not convert"),
        ([annotation("a dog", phrase(0, 2, [0, 0, 10**400, 1]))], "too large"),
    ],
)
def test_invalid_phrases_are_refused_with_the_photo(
    tmp_path: Path, sentences: Any, message: str
) -> None:
    good = [annotation("a dog", phrase(0, 2, BOX))]
    path = written(tmp_path, {"good.jpg": good, "bad.jpg": sentences})
    with pytest.raises(ValueError, match=rf"phrases\.json, photo bad\.jpg: .*{message}"):
        read_phrases(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "invalid JSON"),
        (b"name,caption", "invalid JSON"),
        (b"\xff\xfe\x00\xff", "not UTF-8"),
        (b"[1]", "'list' object has no attribute 'items'"),
        (gzip.compress(b'{"p": []}')[:-9], "damaged gzip"),
        (b"\x1f\x8b, no more", "damaged gzip"),
        (gzip.compress(b"{"), "invalid JSON"),
    ],
    ids=["empty", "table", "binary", "list", "truncated", "no gzip", "packed text"],
)
def test_broken_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.json.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"broken\.json\.gz.*{message}"):
        read_phrases(path)


def visited(*boxes: Box) -> tuple[Phrase, ...]:
    return tuple(Phrase(place, 1, (box,), (), "x") for place, box in enumerate(boxes))


CORNERS = st.tuples(*[st.integers(0, 60)] * 4).filter(lambda c: c[0] != c[2] and c[1] != c[3])


@given(
    corners=st.lists(CORNERS, min_size=1, max_size=5), top=st.integers(0, 30), flip=st.booleans()
)
def test_cropped_boxes_match_cropped_pixels(
    corners: list[tuple[int, int, int, int]],
    top: int,
    flip: bool,
) -> None:
    """The image is a 60 x 120 grid of squares; the crop shows 30 x 40 of them."""
    boxes = [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in corners]
    mask = torch.zeros(60, 120, dtype=torch.bool)
    for x0, y0, x1, y1 in boxes:
        mask[y0:y1, 2 * x0 : 2 * x1] = True
    window = mask[top : top + 30, 50:90]
    geometry = Geometry.identity((60, 120)).cropped(top, 50, (30, 40))
    if flip:
        window, geometry = window.flip(-1), geometry.flipped()
    known = [Phrase(0, 1, tuple((a / 60, b / 60, c / 60, d / 60) for a, b, c, d in boxes), (), "x")]
    carried = phrases_to_input(known, geometry.resized((7, 11)))
    assert bool(carried) == bool(window.any())
    for item in carried:
        coverage = box_coverage(torch.tensor(item.boxes, dtype=torch.float64), (30, 40))
        torch.testing.assert_close(coverage, window.double(), atol=1e-9, rtol=0)


def test_boxes_outside_the_input_are_dropped() -> None:
    left = Geometry.identity((10, 20)).cropped(0, 0, (10, 10))
    phrases = visited((0.5, 0.0, 1.0, 1.0), (0.0, 0.0, 0.25, 1.0), (0.9, 0.9, 1.0, 1.0))
    assert phrases_to_input(phrases, left) == (Phrase(1, 1, ((0.0, 0.0, 0.5, 1.0),), (), "x"),)
    assert phrases_to_input([], left) == ()


def test_identity_geometry_keeps_boxes() -> None:
    phrases = visited((0.0187, 0.302, 0.288, 0.68), (0.0, 0.0, 1.0, 1.0))
    squashed = Geometry.identity((375, 500)).resized((224, 224))
    for before, after in zip(phrases, phrases_to_input(phrases, squashed), strict=True):
        assert after.boxes[0] == pytest.approx(before.boxes[0], abs=1e-12)


DOG, CAT = (0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 1.0, 1.0)


def known(*texts: tuple[str, Box]) -> list[Phrase]:
    return [Phrase(7, len(text.split()), (box,), (), text) for text, box in texts]


def test_longest_phrase_is_matched_once() -> None:
    phrases = known(("a dog", DOG), ("dog", CAT), ("a dog on grass", CAT), ("grass", DOG))
    caption = "a dog near a dog on grass and dog"
    result = match_phrases(caption.split(), phrases)
    assert [(item.start, item.text, item.boxes) for item in result] == [
        (0, "a dog", (DOG,)),
        (3, "a dog on grass", (CAT,)),
        (8, "dog", (CAT,)),
    ]


def test_repeated_phrase_has_the_boxes_of_both() -> None:
    result = match_phrases(["a", "man"], known(("a man", DOG), ("a man", CAT), ("a man", DOG)))
    assert result == (Phrase(0, 2, (DOG, CAT), (), "a man"),)


@pytest.mark.parametrize("caption", ["", "the dog", "a brown dog", "a"])
def test_only_equal_words_match(caption: str) -> None:
    assert match_phrases(caption.split(), known(("a dog", DOG))) == ()
    assert match_phrases(caption.split(), []) == ()


@pytest.mark.data
def test_nearly_all_captions_have_their_phrases() -> None:
    folder = Path(os.environ["VISATTN_DATA"], "flickr8k")
    photos = read_phrases(folder / "phrase_boxes.json.gz")
    lines = (folder / "Flickr8k.token.txt").read_text().splitlines()
    captions = [(name.split("#")[0], words) for name, words in (line.split("\t") for line in lines)]
    matched = sum(tuple(split_words(words)) in photos[name] for name, words in captions)
    assert (len(photos), len(captions)) == (7000, 35000)
    assert matched > 0.97 * len(captions)
    phrases = list(
        chain.from_iterable(p for annotation in photos.values() for p in annotation.values())
    )
    assert len(phrases) > 90_900  # of 91,034, those of 18 captions that occur twice


SENTENCES = """\
[/EN#11/people Two dogs] chase [/EN#12/other a red ball] across [/EN#13/scene the wide lawn] .
[/EN#0/notvisual It] 's [/EN#12/other/sports the ball] that [/EN#11/animals/people dogs] like .
"""
ANNOTATION = """\
<annotation>
  <filename>36.jpg</filename>
  <size><width>200</width><height>100</height><depth>3</depth></size>
  <object><name>11</name>
    <bndbox><xmin>20</xmin><ymin>10</ymin><xmax>60</xmax><ymax>90</ymax></bndbox></object>
  <object><name>11</name>
    <bndbox><xmin>100</xmin><ymin>0</ymin><xmax>200</xmax><ymax>50</ymax></bndbox></object>
  <object><name>12</name><name>14</name>
    <bndbox><xmin>50</xmin><ymin>50</ymin><xmax>70</xmax><ymax>75</ymax></bndbox></object>
  <object><name>13</name><nobndbox>1</nobndbox><scene>1</scene></object>
</annotation>
"""
