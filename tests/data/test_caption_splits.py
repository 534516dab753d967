"""A split is named in the captions' own file, or listed in another."""

from pathlib import Path

import pytest

from visattn.data.caption_files import CaptionEntry
from visattn.data.caption_splits import split_entries

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
