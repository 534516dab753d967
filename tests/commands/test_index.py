"""The index of an output folder: cards, pages, several writers."""

import os
from pathlib import Path

import numpy as np
import pytest
from index_cards import folder_cards, parse_index_page

from visattn.commands import index as folder_index, outputs
from visattn.commands.index import FolderIndex, Row, card_image
from visattn.commands.records import Origin, Part, Record, ResultFolder
from visattn.results.cards import Card

CARD = card_image(np.zeros((11, 13, 3), np.uint8))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that is set by hand, and advances by a second when an index is written."""
    now, written = [100.0], outputs.atomic_write

    def write(path: Path, content: bytes) -> None:
        now[0] += path.name == folder_index.INDEX
        written(path, content)

    monkeypatch.setattr(folder_index.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(outputs, "atomic_write", write)
    return now


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cards per page."""
    size = len(CARD) + 150
    monkeypatch.setattr(folder_index, "_PAGE_BYTES", 3 * size + size // 2)


class ImageIndex(FolderIndex):
    """An index that is written when its context is left, as in a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(folder, "Captions", "caption", {"caption": self}.get)

    def table(self, record: Record) -> list[Row]:
        return [record["row"]]

    def seen_share(self, record: Record) -> None:
        del record

    def __enter__(self) -> "ImageIndex":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.write([])


def add(index: ImageIndex, name: str, card: str = CARD) -> None:
    """Write the result of a photo, and update the index."""
    part = Part(
        name,
        {"row": {"name": name}},
        {f"{name}.html": b""},
        Card(name, f"{name}.html", f"a {name}", card),
    )
    with ResultFolder(index.folder) as folder:
        folder.write(part, Origin("caption", f"{name}.jpg", {}, {}))
    index.refresh()


def listed(folder: Path, page: str = "index.html") -> list[str]:
    return [entry.name for entry in parse_index_page((folder / page).read_text())]


def test_updates_are_rate_limited_and_the_final_one_is_complete(
    clock: list[float], tmp_path: Path
) -> None:
    with ImageIndex(tmp_path) as index:
        add(index, "a")
        assert listed(tmp_path) == ["a"]  # after a second; the next may come after ten more
        clock[0] += 9.5
        add(index, "b")
        assert listed(tmp_path) == ["a"]
        clock[0] += 0.5
        add(index, "c")
        assert listed(tmp_path) == ["a", "b", "c"]
        add(index, "d")
        assert listed(tmp_path) == ["a", "b", "c"]
    assert listed(tmp_path) == ["a", "b", "c", "d"]


def test_the_index_is_written_after_an_error(clock: list[float], tmp_path: Path) -> None:
    def broken() -> None:
        with ImageIndex(tmp_path) as index:
            add(index, "a")
            add(index, "b")
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        broken()
    assert listed(tmp_path) == ["a", "b"]


def test_the_index_is_unchanged_without_new_cards(tmp_path: Path) -> None:
    with ImageIndex(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_two_commands_can_share_a_folder(tmp_path: Path) -> None:
    """Both start before the other has written; the index contains the photos of both."""
    with ImageIndex(tmp_path) as first, ImageIndex(tmp_path) as second:
        add(first, "a")
        add(second, "b")
        add(first, "c")
    assert listed(tmp_path) == ["a", "b", "c"]


def test_an_index_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "index.html")
    with pytest.raises(ValueError, match="visattn did not write and will not replace"):
        ImageIndex(tmp_path)


@pytest.mark.usefixtures("small_pages")
def test_a_long_index_has_pages_that_link_to_each_other(tmp_path: Path) -> None:
    with ImageIndex(tmp_path) as index:
        for name in "abcdefgh":
            add(index, name)
    pages = sorted(path.name for path in tmp_path.glob("index*.html"))
    assert [listed(tmp_path, page) for page in pages] == [[*"def"], [*"gh"], [*"abc"]]
    first, second, third = (
        (tmp_path / name).read_text() for name in ("index.html", "index-2.html", "index-3.html")
    )
    assert "8 photos, 3 of them on this page" in first
    assert "photos 4 to 6" in second
    assert [text.count('href="./index-3.html"') for text in (first, second, third)] == [1, 2, 0]
    assert [text.count('href="./index.html"') for text in (first, second, third)] == [1, 4, 2]
    assert 'index-2.html">d \N{EN DASH} f<' in first


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("order", ["hgfedcba", "acegbdfh", "adgbehcf"])
def test_pages_do_not_depend_on_the_order_of_the_cards(order: str, tmp_path: Path) -> None:
    """In one process, and in one process per card, which knows the others from the pages."""
    cards = {
        name: card_image(np.full((5, 5, 3), 20 * number, np.uint8))
        for number, name in enumerate("abcdefgh")
    }
    for folder in ("sorted", "one", "many"):
        (tmp_path / folder).mkdir()
    with ImageIndex(tmp_path / "sorted") as index:
        for name in sorted(order):
            add(index, name, cards[name])
    with ImageIndex(tmp_path / "one") as index:
        for name in order:
            add(index, name, cards[name])
    for name in order:
        with ImageIndex(tmp_path / "many") as index:
            add(index, name, cards[name])
    expected, *others = (
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        for folder in ("sorted", "one", "many")
    )
    assert others == [expected, expected]


@pytest.mark.usefixtures("small_pages")
def test_cards_of_removed_files_leave_and_pages_move_up(tmp_path: Path) -> None:
    cards = {
        name: card_image(np.full((5, 5, 3), 20 * number, np.uint8))
        for number, name in enumerate("abcdefgh")
    }
    with ImageIndex(tmp_path) as index:
        for name, card in cards.items():
            add(index, name, card)
    for name in "bcd":
        (tmp_path / f"{name}.html").unlink()
    with ImageIndex(tmp_path) as index:
        add(index, "h", cards["h"])
    assert {path.name for path in tmp_path.glob("index*")} == {"index.html", "index-2.html"}
    entries = folder_cards(tmp_path)
    assert {entry.name: entry.thumbnail for entry in entries} == {x: cards[x] for x in "aefgh"}


@pytest.mark.usefixtures("small_pages")
def test_unchanged_pages_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ImageIndex(tmp_path) as index:
        for name in "abcdefgh":
            add(index, name)
    written: list[str] = []
    write = outputs.atomic_write
    monkeypatch.setattr(
        outputs,
        "atomic_write",
        lambda path, content: written.append(path.name) or write(path, content),
    )
    with ImageIndex(tmp_path) as index:
        add(index, "i")
    assert written == ["index.html", "index-3.html"]  # the first lists the last photo of the third


@pytest.mark.usefixtures("small_pages")
def test_a_foreign_page_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "index-2.html").write_text("my page")
    index = ImageIndex(tmp_path)
    for name in "abc":
        add(index, name)
    add(index, "d")
    with pytest.raises(ValueError, match=r"an index-2\.html that visattn did not write"):
        index.write([])
    assert (tmp_path / "index-2.html").read_text() == "my page"
