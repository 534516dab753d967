"""A split is named in the captions' own file, or listed in another."""

import json
from pathlib import Path

import pytest

from visattn.data.captions.files import (
    CaptionEntry,
    check_unique_ids,
    entries_of_split,
    read_caption_splits,
)

ENTRIES = [CaptionEntry(name, f"{name}.jpg", ("A dog .",), split) for name, split in zip(
    "abc", ("train", "val", "train"), strict=True)]  # fmt: skip


def test_the_split_of_the_file_itself_comes_first(tmp_path: Path) -> None:
    assert [entry.id for entry in entries_of_split(ENTRIES, "train")] == ["a", "c"]
    (tmp_path / "list.txt").write_text("c\nb\n")
    assert [entry.id for entry in entries_of_split(ENTRIES, str(tmp_path / "list.txt"))] == [
        "c",
        "b",
    ]


def test_neither_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"neither a split .*; it assigns"):
        entries_of_split(ENTRIES, "test")
    with pytest.raises(ValueError, match="it assigns no splits"):
        entries_of_split([CaptionEntry("a", "a.jpg", ("A .",))], "test")


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


def test_splits_that_cannot_be_are_refused(tmp_path: Path) -> None:
    train = coco(tmp_path, "train2017", range(3, 8))
    wrong = (
        ({"train": train, "dev": train}, "photos", r"captions accepts train, val, test; got dev"),
        ({"val": train}, "photos", r"captions must include a train split, got validation"),
        ({"train": train, "val": train}, "photos", r"train and validation share 5 photos"),
        ({"train": train, "test": train}, {"train": "photos"}, r"the folder of the test split"),
        (train, "photos", r"it assigns no splits: give a list .* or a captions file for each"),
    )
    for captions, photos, said in wrong:
        with pytest.raises(ValueError, match=said):
            read_caption_splits(captions, photos)
    missing = str(tmp_path / "captions_tran2017.json")
    with pytest.raises(FileNotFoundError, match=r"is not a file; did you mean .*train2017.json\?"):
        read_caption_splits({"train": missing}, "photos")
    with pytest.raises(
        FileNotFoundError, match=r"is not a file; there is no folder .*nowhere either"
    ):
        read_caption_splits({"train": str(tmp_path / "nowhere" / "a.json")}, "photos")
