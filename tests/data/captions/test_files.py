"""Splits of caption files: assigned in the file or listed in another."""

import json
from pathlib import Path

import pytest

from visattn.data.captions.files import (
    CaptionEntry,
    SplitFractions,
    check_disjoint_splits,
    check_unique_ids,
    divide_photos,
    entries_of_split,
    read_caption_splits,
    read_split_file,
    select_listed,
)

ENTRIES = [CaptionEntry(name, f"{name}.jpg", ("A dog .",), split) for name, split in zip(
    "abc", ("train", "val", "train"), strict=True)]  # fmt: skip


def test_splits_of_the_caption_file_take_precedence(tmp_path: Path) -> None:
    assert [entry.id for entry in entries_of_split(ENTRIES, "train")] == ["a", "c"]
    (tmp_path / "list.txt").write_text("c\nb\n")
    assert [entry.id for entry in entries_of_split(ENTRIES, str(tmp_path / "list.txt"))] == [
        "c",
        "b",
    ]


def test_unknown_split_error_lists_the_splits() -> None:
    with pytest.raises(ValueError, match=r"neither a split .*; it assigns"):
        entries_of_split(ENTRIES, "test")
    with pytest.raises(ValueError, match="it assigns no splits"):
        entries_of_split([CaptionEntry("a", "a.jpg", ("A .",))], "test")


def table(folder: Path, *rows: str) -> str:
    """Write a table of captions; return its path."""
    path = folder / "captions.csv"
    path.write_text("\n".join(rows))
    return str(path)


def test_fractions_divide_photos_by_their_names_alone(tmp_path: Path) -> None:
    rows = [f"{number}.jpg,Caption {row} ." for number in range(41) for row in range(3)]
    parts = []
    for order in (rows, sorted(rows, key=lambda row: row[::-1])):
        file = table(tmp_path, "image,caption", *order)
        splits = read_caption_splits(file, "photos", fractions=SplitFractions(0.2, 0.1))
        parts.append({name: {e.file for e in split.entries} for name, split in splits.items()})
        assert all(len(e.captions) == 3 for split in splits.values() for e in split.entries)
    assert parts[0] == parts[1]
    assert {name: len(files) for name, files in parts[0].items()} == {
        "train": 29, "validation": 8, "test": 4}  # fmt: skip
    assert len(set.union(*parts[0].values())) == 41
    alone = read_caption_splits(file, "photos", fractions=SplitFractions(0.2))
    assert alone["test"] is alone["validation"]
    assert {entry.file for entry in alone["test"].entries} == parts[0]["validation"]
    other = read_caption_splits(file, "photos", fractions=SplitFractions(0.2, seed=1))
    assert {entry.file for entry in other["test"].entries} != parts[0]["validation"]


@pytest.mark.parametrize(
    ("fractions", "reason"),
    [
        ((0.5, 0.5), "leave none of 3 photos for training; lower them"),
        ((1.0, 0.0), r"must lie in \[0, 1\) and not both be 0, got 1.0 and 0.0"),
        ((0.0, 0.0), "not both be 0"),
    ],
)
def test_fractions_that_leave_a_split_empty_are_refused(
    fractions: tuple[float, float], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        divide_photos(ENTRIES, SplitFractions(*fractions))


def test_fractions_exclude_splits_of_any_other_kind(tmp_path: Path) -> None:
    half = SplitFractions(0.5)
    file = table(tmp_path, "image,caption,split", "a.jpg,A .,train", "b.jpg,B .,val")
    with pytest.raises(ValueError, match="the captions file assigns the splits train, val; leave"):
        read_caption_splits(file, "photos", fractions=half)
    with pytest.raises(ValueError, match="name their splits, got train, list.txt and None; leave"):
        read_caption_splits(file, "photos", ("train", "list.txt", None), fractions=half)
    with pytest.raises(ValueError, match="single captions file, but there is one per split; leave"):
        read_caption_splits({"train": file}, "photos", fractions=half)


def test_a_column_of_a_table_assigns_splits(tmp_path: Path) -> None:
    rows = ["a.jpg,train,A .", "b.jpg,val,B .", "a.jpg,train,C .", "c.jpg,,D ."]
    splits = read_caption_splits(table(tmp_path, "image,Split,caption", *rows), "photos")
    files = {name: [entry.file for entry in split.entries] for name, split in splits.items()}
    assert files == {"train": ["a.jpg"], "validation": ["b.jpg"], "test": ["b.jpg"]}
    reason = r"line 6: b.jpg is in the split train, and in val at line 3; all captions of a photo"
    with pytest.raises(ValueError, match=reason):
        read_caption_splits(
            table(tmp_path, "image,Split,caption", *rows, "b.jpg,train,E ."), "photos"
        )
    with pytest.raises(ValueError, match="assigns no splits: set val_fraction"):
        read_caption_splits(table(tmp_path, "image,caption", "a.jpg,A ."), "photos")


def coco(folder: Path, split: str, numbers: range) -> str:
    """Write a COCO caption file; return its path."""
    images = [{"id": number, "file_name": f"{number:012d}.jpg"} for number in numbers]
    said = [{"id": 2 * n, "image_id": n, "caption": f"A dog in {split} ."} for n in numbers]
    path = folder / f"captions_{split}.json"
    path.write_text(json.dumps({"images": images, "annotations": said}))
    return str(path)


def test_splits_may_have_their_own_files_and_folders(tmp_path: Path) -> None:
    files = {
        "train": coco(tmp_path, "train2017", range(3, 8)),
        "val": coco(tmp_path, "val2017", range(11, 14)),
    }
    folders = {"train": "train2017", "val": "val2017"}
    splits = read_caption_splits(files, folders)
    content = {split: (len(result.entries), str(result.folder)) for split, result in splits.items()}
    assert content == {
        "train": (5, "train2017"),
        "validation": (3, "val2017"),
        "test": (3, "val2017"),
    }
    [(train, _), (val, _), _] = splits.values()
    assert {entry.captions for entry in train} == {("A dog in train2017 .",)}
    assert [entry.file for entry in val] == [f"{n:012d}.jpg" for n in (11, 12, 13)]
    (tmp_path / "few.txt").write_text("000000000005.jpg\n")
    few = read_caption_splits(files, folders, (str(tmp_path / "few.txt"), "val", None))
    assert [entry.id for entry in few["train"].entries] == ["5"]
    alone = read_caption_splits({"train": files["train"]}, "photos")
    assert list(alone) == ["train"]
    again = coco(tmp_path, "again", range(3, 5))
    splits = read_caption_splits(
        {"train": files["train"], "test": again}, {**folders, "test": "other"}
    )
    assert [len(result.entries) for result in splits.values()] == [5, 2]  # other photos, by folder
    with pytest.raises(ValueError, match=r"train2017/.*3.jpg and other/.*3.jpg have the same id"):
        check_unique_ids(splits)


def test_invalid_splits_are_refused(tmp_path: Path) -> None:
    train = coco(tmp_path, "train2017", range(3, 8))
    wrong = (
        ({"train": train, "dev": train}, "photos", r"captions accepts train, val, test; got dev"),
        ({"val": train}, "photos", r"captions must include a train split, got validation"),
        ({"train": train, "val": train}, "photos", r"train and validation share 5 photos"),
        ({"train": train, "test": train}, {"train": "photos"}, r"the folder of the test split"),
        (train, "photos", r"assigns no splits: set val_fraction .* or a captions file for each"),
    )
    for captions, photos, said in wrong:
        with pytest.raises(ValueError, match=said):
            read_caption_splits(captions, photos)


def entry(name: str, *captions: str, split: str | None = None) -> CaptionEntry:
    return CaptionEntry(name, name, captions or ("A dog .",), split)


def test_split_has_the_order_of_its_list(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(b"\xef\xbb\xbfb.jpg\r\n\r\n  a.jpg  \r\n")
    assert read_split_file(path) == ["b.jpg", "a.jpg"]
    entries = [entry("a.jpg", "A"), entry("x.jpg", "X"), entry("b.jpg", "B")]
    assert select_listed(entries, read_split_file(path)) == [entries[2], entries[0]]


def test_duplicate_or_empty_split_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("a.jpg\n\nb.jpg\na.jpg\n")
    with pytest.raises(ValueError, match=r"train\.txt, line 4: a\.jpg is already on line 1"):
        read_split_file(path)
    path.write_text("\n")
    with pytest.raises(ValueError, match=r"train\.txt is empty"):
        read_split_file(path)


def test_split_photos_are_matched_by_name_stem_or_id() -> None:
    photo, other = CaptionEntry("7", "x/a.jpg", ("A",)), CaptionEntry("8", "x/b.jpg", ("B",))
    for name in ("7", "x/a.jpg", "a"):
        assert select_listed([photo, other], [name]) == [photo]
    with pytest.raises(ValueError, match=r"1 photo \(7\) more than once in the split"):
        select_listed([photo, other], ["a", "b", "7"])


def test_ambiguous_names_match_no_photo() -> None:
    entries = [entry("a.jpg"), entry("a.png")]
    assert select_listed(entries, ["a.png"]) == [entries[1]]
    with pytest.raises(ValueError, match=r"1 name \(a\) of the split without captions"):
        select_listed(entries, ["a"])


def test_names_without_captions_are_counted() -> None:
    reason = r"5,000 names \(0, 1, 2, \.\.\.\) of the split without captions"
    with pytest.raises(ValueError, match=reason):
        select_listed([entry("a")], ["a", *map(str, range(5000))])


def test_overlapping_splits_are_refused() -> None:
    a, b, c, d = map(entry, "abcd")
    check_disjoint_splits({"train": [a, b], "validation": [c], "test": [d]})
    reason = r"train and validation share 2 photos \(a, b\), train and test share 1 photo \(c\); a"
    with pytest.raises(ValueError, match=reason):
        check_disjoint_splits({"train": [a, b, c], "validation": [d, a, b], "test": [c]})
