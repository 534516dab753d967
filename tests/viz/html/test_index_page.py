"""The index page with a card for each photo."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from index_cards import parse_index_page

from visattn.images.sources import is_result_folder
from visattn.results.kinds import Card
from visattn.viz.html.index_page import index_page, thumbnail

PIXEL = thumbnail(np.zeros((3, 5, 3), np.uint8))
# Invalid characters are replaced in texts; file names are unchanged.
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")))


def entry(name: str, caption: str = "a dog") -> Card:
    return Card(name, f"{name}.html", caption, PIXEL)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS).map(lambda each: Card(*each, PIXEL)), max_size=5))
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
    assert not is_result_folder(tmp_path)
    page.write_text(index_page([]))
    assert is_result_folder(tmp_path)


def test_thumbnails_are_small() -> None:
    photo = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    rough = thumbnail(np.kron(photo, np.ones((40, 40, 1), np.uint8)))
    assert len(rough) < 40_000  # harder to compress than photos; a thousand must fit into a page
