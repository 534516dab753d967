"""A split is named in the captions' own file, or listed in another."""

import json
from pathlib import Path

import pytest

from visattn.data.captions.files import CaptionEntry, check_ids, per_split, split_entries

ENTRIES = [CaptionEntry(name, f"{name}.jpg", ("A dog .",), split) for name, split in zip(
    "abc", ("train", "val", "train"), strict=True)]  # fmt: skip


def test_the_split_of_the_file_itself_comes_first(tmp_path: Path) -> None:
    assert [entry.id for entry in split_entries(ENTRIES, "train")] == ["a", "c"]
    (tmp_path / "list.txt").write_text("c\nb\n")
    assert [entry.id for entry in split_entries(ENTRIES, str(tmp_path / "list.txt"))] == ["c", "b"]


def test_neither_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"neither a split .*; the captions' file names"):
        split_entries(ENTRIES, "test")
    with pytest.raises(ValueError, match="it names no split"):
        split_entries([CaptionEntry("a", "a.jpg", ("A .",))], "test")


def coco(folder: Path, split: str, numbers: range) -> str:
    """Write a file of captions as COCO has them; return its path."""
    images = [{"id": number, "file_name": f"{number:012d}.jpg"} for number in numbers]
    said = [{"id": 2 * n, "image_id": n, "caption": f"A dog in {split} ."} for n in numbers]
    path = folder / f"captions_{split}.json"
    path.write_text(json.dumps({"images": images, "annotations": said}))
    return str(path)


def test_each_split_may_have_its_own_file_and_folder(tmp_path: Path) -> None:
    files = {
        "train": coco(tmp_path, "train2017", range(3, 8)),
        "validation": coco(tmp_path, "val2017", range(11, 14)),
    }
    folders = {"train": "train2017", "validation": "val2017"}
    splits = per_split(files, folders)
    told = {split: (len(found.entries), str(found.folder)) for split, found in splits.items()}
    assert told == {"train": (5, "train2017"), "validation": (3, "val2017"), "test": (3, "val2017")}
    [(train, _), (val, _), _] = splits.values()
    assert {entry.captions for entry in train} == {("A dog in train2017 .",)}
    assert [entry.file for entry in val] == [f"{n:012d}.jpg" for n in (11, 12, 13)]
    (tmp_path / "few.txt").write_text("000000000005.jpg\n")
    few = per_split(files, folders, (str(tmp_path / "few.txt"), "val", None))
    assert [entry.id for entry in few["train"].entries] == ["5"]
    alone = per_split({"train": files["train"]}, "photos")
    assert list(alone) == ["train"]
    again = coco(tmp_path, "again", range(3, 5))
    splits = per_split({"train": files["train"], "test": again}, {**folders, "test": "other"})
    assert [len(found.entries) for found in splits.values()] == [5, 2]  # other photos, by folder
    with pytest.raises(ValueError, match=r"train2017/.*3.jpg and other/.*3.jpg have the same name"):
        check_ids(splits)


def test_splits_that_cannot_be_are_refused(tmp_path: Path) -> None:
    train = coco(tmp_path, "train2017", range(3, 8))
    wrong = (
        ({"train": train, "val": train}, "photos", r"captions may be given for .*; got val"),
        ({"validation": train}, "photos", r"captions to train on, got captions of validation"),
        ({"train": train, "validation": train}, "photos", r"train and validation share 5 photos"),
        ({"train": train, "test": train}, {"train": "photos"}, r"folder of the test split too"),
        (train, "photos", r"it names no split: give a list .* or a file of captions for each"),
    )
    for captions, photos, said in wrong:
        with pytest.raises(ValueError, match=said):
            per_split(captions, photos)
    missing = str(tmp_path / "captions_tran2017.json")
    with pytest.raises(FileNotFoundError, match=r"is no file; did you mean .*train2017.json\?"):
        per_split({"train": missing}, "photos")
    with pytest.raises(FileNotFoundError, match=r"is no file; there is no folder .*nowhere either"):
        per_split({"train": str(tmp_path / "nowhere" / "a.json")}, "photos")
