"""Captions are matched to references by image."""

import pytest

from visattn.commands.score.captions import match_captions
from visattn.data.captions.files import CaptionEntry


def entry(name: str, file: str = "", split: str | None = None) -> CaptionEntry:
    return CaptionEntry(name, file or name, (f"of {name}",), split)


COCO = [entry("790", "train2017/000000000790.jpg"), entry("30752", "train2017/000000030752.jpg")]
KARPATHY = [entry("COCO_val2014_000000000790.jpg", "val2014/COCO_val2014_000000000790.jpg")]


@pytest.mark.parametrize(
    ("name", "entries", "owner"),
    [
        ("a.jpg", [entry("a.jpg"), entry("b.jpg")], "a.jpg"),
        ("a", [entry("a.jpg"), entry("b.jpg")], "a.jpg"),
        ("a.png", [entry("a.jpg")], "a.jpg"),
        ("photos/a.JPEG", [entry("a.jpg", "train/a.jpg")], "a.jpg"),
        ("C:\\photos\\a.jpg", [entry("a.jpg")], "a.jpg"),
        ("train/a.jpg", [entry("1", "train/a.jpg"), entry("2", "test/a.jpg")], "1"),
        ("790", COCO, "790"),
        ("000000000790", COCO, "790"),
        ("000000000790.jpg", COCO, "790"),
        ("790", KARPATHY, "COCO_val2014_000000000790.jpg"),
        ("COCO_val2014_000000000790", COCO, "790"),
        ("a", [entry("a"), entry("b", "a.jpg")], "a"),
        ("v1.2", [entry("v1.2"), entry("v1.3")], "v1.2"),
    ],
)
def test_names_of_the_same_image(name: str, entries: list[CaptionEntry], owner: str) -> None:
    pairs = match_captions({name: "a ring"}, entries, intersection=True)
    assert pairs.captions == {owner: "a ring"}
    assert list(pairs.references) == [owner]


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("a", [entry("1", "train/a.jpg"), entry("2", "test/a.jpg")]),  # ambiguous
        ("v1", [entry("v1.2")]),
        ("79", COCO),
        ("A.jpg", [entry("a.jpg")]),
    ],
)
def test_names_of_no_image(name: str, entries: list[CaptionEntry]) -> None:
    with pytest.raises(ValueError, match="no image of the results is in the references"):
        match_captions({name: "a ring"}, entries, intersection=True)


def test_images_are_in_the_order_of_the_references() -> None:
    pairs = match_captions({"b": "ring", "a": "cross"}, [entry("a.jpg"), entry("b.jpg")])
    assert list(pairs.captions.items()) == [("a.jpg", "cross"), ("b.jpg", "ring")]
    assert pairs.references == {"a.jpg": ("of a.jpg",), "b.jpg": ("of b.jpg",)}
    assert pairs.notes == ()


def test_unmatched_images_are_refused_and_named() -> None:
    entries = [entry(name, split=split) for name, split in zip("abcdef", "ttvvvt", strict=True)]
    with pytest.raises(
        ValueError,
        match=(
            r"in the results without references: 2 images \(x, y\); in the references without a "
            r"result: 5 images \(b, c, d, \.\.\.\); --split selects .* "
            r"\(t, v\); --intersection scores"
        ),
    ):
        match_captions({"x": "ring", "a": "ring", "y": "ring"}, entries)


def test_no_split_is_suggested_for_unknown_images() -> None:
    with pytest.raises(ValueError, match=r"1 image \(x\); --intersection scores"):
        match_captions({"x": "ring", "a": "ring"}, [entry("a")])


def test_left_out_images_are_reported() -> None:
    pairs = match_captions({"x": "ring", "a": "ring"}, [entry("a"), entry("b")], intersection=True)
    assert list(pairs.captions) == list(pairs.references) == ["a"]
    assert pairs.notes == (
        "excluded, in the results without references: 1 image (x)",
        "excluded, in the references without a result: 1 image (b)",
    )


def test_two_captions_of_one_image_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.jpg and a\.png of the results are both .* a\.jpg"):
        match_captions({"a.jpg": "ring", "a.png": "cross"}, [entry("a.jpg")])
