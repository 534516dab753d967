"""Files of each photo and the index page."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from visattn.commands.caption.gallery import Gallery
from visattn.commands.options import image_index
from visattn.data.images.reader import LoadedImage
from visattn.geometry.affine import Geometry
from visattn.pipelines.captioning import Caption
from visattn.recording.attention_map import AttentionMap
from visattn.viz.html.index_page import parse_index_page

IMAGE = LoadedImage(np.zeros((11, 13, 3), np.uint8), name="somewhere/dog.png")
MAPS = AttentionMap(torch.full((1, 2, 3), 1 / 6), "look", "words", Geometry.identity((11, 13)))
SAID = Caption(("dog",), (-0.5,), (0.5,), MAPS, -0.5, finished=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that is set by hand, and advances by a second when an index is written."""
    now, written = [100.0], image_index.atomic_write

    def write(path: Path, content: bytes) -> None:
        now[0] += path.name == image_index.INDEX
        written(path, content)

    monkeypatch.setattr(image_index.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(image_index, "atomic_write", write)
    return now


def listed(folder: Path) -> list[str]:
    return [entry.name for entry in parse_index_page((folder / "index.html").read_text())]


def test_index_updates_are_rate_limited_and_the_final_one_is_complete(
    clock: list[float], tmp_path: Path
) -> None:
    with Gallery(tmp_path) as gallery:
        gallery.add("a", IMAGE, SAID)
        assert listed(tmp_path) == ["a"]  # after a second; the next may come after ten more
        clock[0] += 9.5
        gallery.add("b", IMAGE, SAID)
        assert listed(tmp_path) == ["a"]
        clock[0] += 0.5
        gallery.add("c", IMAGE, SAID)
        assert listed(tmp_path) == ["a", "b", "c"]
        gallery.add("d", IMAGE, SAID)
        assert listed(tmp_path) == ["a", "b", "c"]
    assert listed(tmp_path) == ["a", "b", "c", "d"]


def test_the_index_is_written_after_an_error(clock: list[float], tmp_path: Path) -> None:
    def broken() -> None:
        with Gallery(tmp_path) as gallery:
            gallery.add("a", IMAGE, SAID)
            gallery.add("b", IMAGE, SAID)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        broken()
    assert listed(tmp_path) == ["a", "b"]


def test_the_index_is_unchanged_without_new_pages(tmp_path: Path) -> None:
    with Gallery(tmp_path / "new"):
        pass
    assert list((tmp_path / "new").iterdir()) == []


def test_every_page_in_the_index_exists(tmp_path: Path) -> None:
    with Gallery(tmp_path) as gallery:
        (tmp_path / "b.html").mkdir()
        gallery.add("a", IMAGE, SAID)
        with pytest.raises(OSError, match=r"b\.html"):
            gallery.add("b", IMAGE, SAID)
    assert listed(tmp_path) == ["a"]
    assert not list(tmp_path.glob(".visattn*"))


def test_two_commands_can_share_a_folder(tmp_path: Path) -> None:
    """Both start before the other has written; the index contains the photos of both."""
    with Gallery(tmp_path) as first, Gallery(tmp_path) as second:
        first.add("a", IMAGE, SAID)
        second.add("b", IMAGE, SAID)
        first.add("c", IMAGE, SAID)
    assert listed(tmp_path) == ["a", "b", "c"]


def test_an_index_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "index.html")
    with pytest.raises(ValueError, match="visattn did not write and will not replace"):
        Gallery(tmp_path)
