"""Untrusted file names: none leads out of its directory, by itself or through a link."""

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from visattn.io.safe_paths import file_below, relative_path

PARTS = st.sampled_from(
    ["..", ".", "", "a", "b.jpg", "..b", "a..", "C:", "~", "\\", "\\..", "é", " "]
)


UNSAFE = (
    "../x.jpg", "a/../../x.jpg", "a/..", "/etc/x.jpg", "//host/x", "..", ".", "", "./", "..\\x.jpg",
    "a\\..\\x.jpg", "\\x.jpg", "\\\\host\\x", "C:\\x.jpg", "c:/x.jpg", "c:x.jpg", "a\0.jpg",
    "a\n.jpg", "a\x1b[2J.jpg", "a\x7f.jpg", "a\x9b.jpg", "\ud800.jpg", "x" * 256, "é" * 128,
    "a/" + "x" * 256, "/".join(["x" * 200] * 16),
)  # fmt: skip
SAFE = ("a.jpg", "train/a.jpg", "a b.jpg", "..a/b", "a../b", "~/a", "é.jpg", "犬.jpg", "a\\b",
        "$HOME", "x" * 255)  # fmt: skip


def test_names_that_lead_out_or_are_too_long_are_refused(tmp_path: Path) -> None:
    for name in UNSAFE:
        with pytest.raises(
            ValueError, match="must be a path inside its directory, got '"
        ) as caught:
            relative_path(name)
        assert str(caught.value).isprintable()
    for name in SAFE:
        assert file_below(tmp_path, name) == tmp_path / name.replace("\\", "/")


@given(parts=st.lists(PARTS, min_size=1, max_size=6))
def test_accepted_names_stay_inside(parts: list[str]) -> None:
    folder = Path("/somewhere/photos")
    try:
        path = file_below(folder, "/".join(parts))
    except ValueError:
        return
    assert Path(os.path.normpath(path)).is_relative_to(folder)
    assert path.name


def test_link_to_outside_is_refused(tmp_path: Path) -> None:
    photos, other = tmp_path / "photos", tmp_path / "other"
    for folder in (photos, other):
        folder.mkdir()
        (folder / "a.jpg").write_bytes(b"a")
    (photos / "link.jpg").symlink_to(other / "a.jpg")
    (photos / "up.jpg").symlink_to("../other/a.jpg")
    (photos / "deep").symlink_to(other)
    (photos / "gone.jpg").symlink_to("/nowhere/a.jpg")
    (photos / "round.jpg").symlink_to("round.jpg")
    (photos / "inner.jpg").symlink_to("a.jpg")
    for name in ("link.jpg", "up.jpg", "deep/a.jpg", "gone.jpg"):
        with pytest.raises(ValueError, match=rf"'{name}' is a link to .*, outside .*photos; copy"):
            file_below(photos, name)
    for name in ("a.jpg", "inner.jpg", "round.jpg", "new/folder/a.jpg"):
        assert file_below(photos, name) == photos / name


def test_a_sibling_is_outside_and_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    for name in ("photos", "photos2"):
        (tmp_path / name).mkdir()
    (tmp_path / "photos" / "a.jpg").symlink_to(tmp_path / "photos2" / "a.jpg")
    with pytest.raises(ValueError, match="is a link to"):
        file_below(tmp_path / "photos", "a.jpg")
    (tmp_path / "here").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "b.jpg").symlink_to("c.jpg")
    assert file_below(tmp_path / "here", "b.jpg") == tmp_path / "here" / "b.jpg"
