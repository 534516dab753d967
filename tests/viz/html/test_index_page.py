"""The index page with a card for each photo."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from index_cards import parse_index_page

from visattn.images.reader import is_index_page
from visattn.results.cards import Card
from visattn.viz.html.index_page import index_page, thumbnail, tile_images

PIXEL = thumbnail(np.zeros((3, 5, 3), np.uint8))
# Invalid characters are replaced in texts; file names are unchanged.
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")))


def entry(name: str, caption: str = "a dog") -> Card:
    return Card(name, f"{name}.html", caption, PIXEL)


@given(st.lists(st.builds(Card, TEXTS, TEXTS, TEXTS, st.just(PIXEL)), max_size=5))
def test_index_page_roundtrip(entries: list[Card]) -> None:
    assert sorted(parse_index_page(index_page(entries))) == sorted(entries)


def test_cards_are_in_natural_sort_order() -> None:
    names = ["photo 10", "Photo 9", "photo 9b", "a", "photo 010", "2", "10"]
    actual = [item.name for item in parse_index_page(index_page([entry(name) for name in names]))]
    assert actual == ["2", "10", "a", "Photo 9", "photo 9b", "photo 010", "photo 10"]


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 photos"), (1, "1 photo"), (2, "2 photos"), (1234, "1,234 photos")]
)
def test_page_shows_the_number_of_photos(count: int, said: str) -> None:
    page = index_page([entry(str(number)) for number in range(count)])
    assert f'role="status">{said}<' in page
    assert page.count("<li>") == page.count('loading="lazy" decoding="async"') == count


def test_names_and_captions_are_escaped() -> None:
    page = index_page([entry("<b>\"'", "</ul><script>alert(1)</script>")])
    assert "<b>" not in page
    assert page.count("<script") == 2
    assert 'href="./%3Cb%3E%22%27.html"' in page


def test_pages_of_others_are_known(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text('<meta name="generator" content="another"><a class="photo" href="a.html">')
    assert not is_index_page(page)
    page.write_text(index_page([]))
    assert is_index_page(page)


def test_thumbnails_are_small() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    rough = thumbnail(np.kron(photo, np.ones((40, 40, 1), np.uint8)))
    assert len(rough) < 40_000  # harder to compress than photos; a thousand must fit into a page


@pytest.mark.parametrize("size", [(60, 80), (80, 60), (62, 61), (30, 101), (90, 29)])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("cut_first", [False, True])
def test_a_card_shows_all_of_its_maps(
    size: tuple[int, int], count: int, *, cut_first: bool
) -> None:
    images = [np.full((*size, 3), 40 * number, np.uint8) for number in range(1, count + 1)]
    drawn = tile_images(images, cut_first=cut_first)
    assert drawn.shape[1] / drawn.shape[0] == pytest.approx(4 / 3, rel=0.03)  # cards are 4 : 3
    first, *others = (np.argwhere((drawn == image[0, 0]).all(2)) for image in images)
    for cell in (first, *others):
        rows, columns = np.ptp(cell, axis=0) + 1
        assert rows * columns == len(cell)  # no other image lies on it
        if cell is not first or not cut_first:
            assert rows / columns == pytest.approx(size[0] / size[1], rel=0.06)
    if size == (60, 80) and count > 2:
        margin = 1 - (len(first) + sum(map(len, others))) / (drawn.shape[0] * drawn.shape[1])
        assert margin < (0.02 if count == 4 or cut_first else 0.4)  # there is no empty cell
