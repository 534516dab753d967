"""Output folders and unique file names."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from visattn.commands.files import create_folder, result_names


def test_an_unwritable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = Path.mkdir

    def refuse(path: Path, *args: Any, **options: Any) -> None:
        if path.parent == tmp_path:
            raise PermissionError(13, "Permission denied")
        mkdir(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write to every folder
    with pytest.raises(OSError, match=r"--out .* cannot be written: Permission denied; choose"):
        create_folder(tmp_path)


parts = st.sampled_from(["a", "A", "b", "..", "a_b", "a_2", "A_2", "index", "Index_2"])
files = st.builds(
    lambda folders, stem, suffix: Path(*folders, stem + suffix),
    st.lists(parts, max_size=3),
    parts.filter(lambda part: part != ".."),
    st.sampled_from([".png", ".jpg"]),
)


@given(st.lists(files, min_size=1, max_size=12, unique=True))
def test_names_are_unique(paths: list[Path]) -> None:
    names = result_names(paths)
    assert list(names) == paths
    assert len({name.casefold() for name in names.values()} - {"index"}) == len(paths)
    assert not any(".." in name.split("/") for name in names.values())


def test_a_unique_name_is_kept() -> None:
    beside = [Path("x/a.png"), Path("x/a.jpg")]
    assert list(result_names(beside).values()) == ["a", "a_2"]
    two = [Path("x/a.png"), Path("x/a.jpg"), Path("y/a.png")]
    assert list(result_names(two).values()) == ["x/a", "x/a_2", "y/a"]
    names = result_names([Path("x/dog.png"), Path("y/cat.png"), Path("z/cat.png")])
    assert list(names.values()) == ["dog", "y/cat", "z/cat"]


def test_names_are_printable() -> None:
    assert list(result_names([Path("two\nlines\tand\udcff.png")]).values()) == ["two_lines_and_"]
