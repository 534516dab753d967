"""Phrases with boxes: reader, matching, scores and targets, by hand and by counting pixels."""

import gzip
import json
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
    score_phrases,
    supervised_words,
)
from visattn.geometry.affine import Box, Geometry
from visattn.metrics.grounding import box_coverage
from visattn.results.captions import Phrase

BOX, OTHER = [0.0, 0.25, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]
LEFT, RIGHT, TOP = (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0), (0.0, 0.0, 1.0, 0.5)
MIDDLE = (0.25, 0.0, 0.75, 1.0)
PARTS = st.sampled_from(
    ["a", "dog", "'s", "dog's", "T-shirt", ".", ",", "..", "#", "two2", "Ünder"]
)
CORNERS = st.tuples(*[st.integers(0, 60)] * 4).filter(lambda c: c[0] != c[2] and c[1] != c[3])


def phrase(first: int, words: int, *boxes: list[Any], types: tuple[str, ...] = ()) -> Any:
    return {"first_word": first, "words": words, "types": list(types), "boxes": list(boxes)}


def annotation(sentence: str, *phrases: Any) -> Any:
    return {"sentence": sentence, "phrases": list(phrases)}


def written(folder: Path, photos: Any) -> Path:
    path = folder / "phrases.json"
    path.write_text(json.dumps(photos))
    return path


def test_words_are_counted_without_punctuation_also_in_gzip(tmp_path: Path) -> None:
    sentence = annotation(
        '" The Dog , a puppy , bites .',
        phrase(4, 2, BOX, types=("animals",)), phrase(1, 2, BOX, OTHER), phrase(0, 1, BOX),
        phrase(7, 1),
    )  # fmt: skip
    file = written(tmp_path, {"a.jpg": [sentence], "b.jpg": []})
    dog = Phrase(0, 2, ((0.0, 0.25, 0.5, 1.0), RIGHT), (), "the dog")
    puppy = Phrase(2, 2, ((0.0, 0.25, 0.5, 1.0),), ("animals",), "a puppy")
    words = ("the", "dog", "a", "puppy", "bites")
    assert read_phrases(file) == {"a.jpg": {words: (dog, puppy)}, "b.jpg": {}}
    file.write_bytes(gzip.compress(file.read_bytes()))
    assert read_phrases(file) == {"a.jpg": {words: (dog, puppy)}, "b.jpg": {}}


@given(parts=st.lists(PARTS, min_size=1, max_size=11), span=st.tuples(st.integers(), st.integers()))
def test_phrase_keeps_its_words(
    parts: list[str], span: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = span[0] % len(parts)
    count = span[1] % (len(parts) - first) + 1
    content = {"p": [annotation(" ".join(parts), phrase(first, count, BOX))]}
    [(words, phrases)] = read_phrases(written(tmp_path_factory.getbasetemp(), content))["p"].items()
    assert words == tuple(split_words(" ".join(parts)))
    said = split_words(" ".join(parts[first : first + count]))
    assert [item.text.split() for item in phrases] == ([said] if said else [])
    for item in phrases:
        assert list(words[item.start : item.start + item.num_words]) == said


def test_repeated_caption_has_the_boxes_of_both(tmp_path: Path) -> None:
    twice = [
        annotation("A dog runs .", phrase(0, 2, BOX, types=("animals",)), phrase(2, 1, BOX)),
        annotation("a Dog runs", phrase(0, 2, OTHER, BOX, types=("animals", "people"))),
    ]
    [phrases] = read_phrases(written(tmp_path, {"p": twice}))["p"].values()
    said = [(item.text, item.types) for item in phrases]
    assert said == [("a dog", ("animals", "people")), ("runs", ())]
    assert phrases[0].boxes == ((0.0, 0.25, 0.5, 1.0), RIGHT)


REFUSED: list[tuple[Any, str]] = [
    ([{"sentence": "a dog"}], "no 'phrases'"),
    ([annotation("a dog", phrase(1, 2, BOX))], "words 1 to 3 of 'a dog'"),
    ([annotation("a dog", phrase(-1, 1, BOX))], "words -1 to 0 of"),
    ([annotation("a dog", phrase(0, 0, BOX))], "words 0 to 0 of"),
    ([annotation("a dog", {**phrase(0, 1, BOX), "phrase": "dog"})], "words 0 to 1 .*got 'dog'"),
    ([annotation("a dog", phrase(0, 2, [0, 0, 1, 1.01]))], "all between 0 and 1, got"),
    ([annotation("a dog", phrase(0, 2, [0.5, 0, 0.5, 1]))], "left < right"),
    ([annotation("a dog", phrase(0, 2, [0, 0, float("nan"), 1]))], "a box must be"),
]


@pytest.mark.parametrize(("sentences", "message"), REFUSED)
def test_invalid_phrases_are_refused_with_the_photo(
    tmp_path: Path, sentences: Any, message: str
) -> None:
    path = written(tmp_path, {"good.jpg": [], "bad.jpg": sentences})
    with pytest.raises(ValueError, match=rf"phrases\.json, photo bad\.jpg: .*{message}"):
        read_phrases(path)


@given(
    corners=st.lists(CORNERS, min_size=1, max_size=5), top=st.integers(0, 30), flip=st.booleans()
)
def test_cropped_boxes_match_cropped_pixels(
    corners: list[tuple[int, int, int, int]], top: int, flip: bool
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
    assert bool(carried) == bool(window.any())  # what is outside is dropped
    for item in carried:
        coverage = box_coverage(torch.tensor(item.boxes, dtype=torch.float64), (30, 40))
        torch.testing.assert_close(coverage, window.double(), atol=1e-9, rtol=0)


def known(*texts: tuple[str, Box]) -> list[Phrase]:
    return [Phrase(7, len(text.split()), (box,), (), text) for text, box in texts]


def test_longest_phrase_is_matched_once_and_word_for_word() -> None:
    phrases = known(("a dog", LEFT), ("dog", TOP), ("a dog on grass", TOP), ("grass", LEFT))
    result = match_phrases("a dog near a dog on grass and dog".split(), phrases)  # noqa: SIM905
    assert [(item.start, item.text, item.boxes) for item in result] == [
        (0, "a dog", (LEFT,)), (3, "a dog on grass", (TOP,)), (8, "dog", (TOP,)),
    ]  # fmt: skip
    result = match_phrases(["a", "man"], known(("a man", LEFT), ("a man", TOP), ("a man", LEFT)))
    assert result == (Phrase(0, 2, (LEFT, TOP), (), "a man"),)
    for caption in ("", "the dog", "a brown dog", "a"):
        assert match_phrases(caption.split(), known(("a dog", LEFT))) == ()


# ---------------------------------------------------------------- scores and targets


def words(first: int, count: int, *boxes: Box) -> Phrase:
    return Phrase(first, count, boxes, (), " ".join("x" * count))


def test_phrase_scores_by_hand() -> None:
    maps = torch.tensor([[[0.0, 1.0]], [[0.75, 0.25]], [[0.5, 0.5]]])
    [judged] = score_phrases(maps, [words(0, 3, LEFT)])
    assert judged.word_correctness == pytest.approx((0, 0.75, 0.5))
    assert (judged.max_correctness, judged.last_correctness) == pytest.approx((0.75, 0.5))
    assert judged.mean_correctness == pytest.approx(1.25 / 3)
    assert judged.baseline == pytest.approx(0.5)
    assert judged.pointing_hit is False  # in total 1.25 on the left and 1.75 on the right
    assert score_phrases(maps, [words(1, 1, LEFT)])[0].pointing_hit is True
    assert score_phrases(maps, [words(1, 1, LEFT, MIDDLE)])[0].baseline == pytest.approx(0.75)
    for phrase, message in ((words(2, 2, LEFT), "'x x' ends at word 3"),
                            (words(0, 1, LEFT), "must sum to 1")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            score_phrases(torch.full((3, 1, 1), 1.0 if phrase.start else torch.nan), [phrase])


def test_word_targets_by_hand() -> None:
    captions = [[words(0, 2, LEFT), words(3, 1, MIDDLE)], [], [words(1, 3, RIGHT, LEFT)]]
    supervised = supervised_words(captions, (1, 2))
    assert supervised.caption_indices.tolist() == [0, 0, 0, 2, 2, 2]
    assert supervised.steps.tolist() == [0, 1, 3, 1, 2, 3]
    left, even = [1.0, 0.0], [0.5, 0.5]
    assert supervised.targets.tolist() == [left, left, even, even, even, even]
    both = supervised_words([[words(0, 2, LEFT), words(1, 1, RIGHT)]], (1, 2))  # a word of two
    assert (both.steps.tolist(), both.targets.tolist()) == ([0, 1], [left, even])
    [lower] = supervised_words([[words(0, 1, (0.0, 0.5, 1 / 3, 1.0))]], (2, 3)).targets
    assert lower.round().tolist() == [0, 0, 0, 1, 0, 0]  # row by row
    for nothing in ([], [[], []]):
        none = supervised_words(nothing, (3, 5))
        assert (none.caption_indices.shape, none.targets.shape) == ((0,), (0, 15))
        assert none.caption_indices.dtype == none.steps.dtype == torch.long
