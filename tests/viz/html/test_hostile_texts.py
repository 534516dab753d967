"""Hostile captions and names in images and on pages."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from page_results import caption_of, explained_model, layer_of, method_map

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.results.captions import Caption
from visattn.results.kinds import Card
from visattn.viz.captions import caption_figure
from visattn.viz.figures import rgb
from visattn.viz.html.caption_page import caption_html
from visattn.viz.html.explorer_page import explorer_html
from visattn.viz.html.index_page import index_page, thumbnail

RNG = np.random.default_rng(5)
IMAGE = np.zeros((30, 40, 3), np.uint8)
PLACE = Geometry.identity((30, 40))
WORDS: dict[str, tuple[str, ...]] = {
    "code": (
        "<script>alert(1)</script>", "</script onload=alert(1) ", "<!--<script -->", "&amp;",
        "'\"><svg onload=alert(1)>", "<img src=x onerror=alert(1)>", "{{7*7}}$name${caption}",
    ),
    "mathematics": ("$5", "to", "$6", "$\\bad{", "b$", "a_b^c", "${name}"),
    "emoji": ("a", "🐶", "👨\u200d👩\u200d👧", "❤\ufe0f", "👍🏽"),
    "leftwards": ("כלב", "רץ", "الكلب", "يركض", "dog"),
    "hidden": ("a\0b", "\x1b[31mred", "b\u202eevil", "new\nline", "\u200b\u2028\u2029", "\udcff"),
    "accents": ("a" + "\u0301" * 5000, "Z\u0351\u036b\u0343" * 20),
    "endless": ("x" * 10_000, "a"),
    "many": tuple(f"word{number}" for number in range(100)),
    "blank": (" ", ""),
}  # fmt: skip
TOO_WIDE = (
    "[...document.querySelectorAll('body *')].filter(one => one.getBoundingClientRect().right > "
    "innerWidth).map(one => one.tagName + '#' + one.id + '.' + one.className)"
)
each = pytest.mark.parametrize("kind", WORDS)


def said(words: tuple[str, ...]) -> Caption:
    maps = RNG.random((len(words), 3, 5))
    return caption_of(words, maps / maps.sum((1, 2), keepdims=True), (30, 40))


@each
def test_hostile_texts_are_shortened_and_drawn(kind: str) -> None:
    figure = caption_figure(IMAGE, said(WORDS[kind]))
    texts: Any = figure.findobj(Text)
    assert max(len(each.get_text()) for each in texts) <= 25
    assert rgb(figure, 600).shape[1] == 600


def pages(folder: Path, kind: str) -> list[Path]:
    """Write a page of each kind with hostile texts only."""
    words = WORDS[kind]
    text = " ".join(words)
    maps = [method_map(text, RNG.random((3, 5)), PLACE, options={text: text}, class_name=text)]
    layers = [layer_of(23, RNG.random((24, 7, 2, 3)), (words[0],), 1, text)] * 24
    subject = explained_model(text)
    said_twice = replace(said(words), alternatives=(said(words[::-1]),))
    made = {
        "viewer": caption_html(IMAGE, said_twice, name=text),
        "explorer": explorer_html(
            LoadedImage(IMAGE), PLACE, subject=subject, maps=maps, layers=layers, name=text
        ),
        "index": index_page([Card(text, "viewer.html", text, thumbnail(IMAGE))] * 3, title=text),
    }
    for name, page in made.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return [folder / f"{name}.html" for name in made]


@pytest.mark.slow
@each
def test_page_stays_intact_and_sends_no_request(kind: str, browser: Any, tmp_path: Path) -> None:
    for page in pages(tmp_path, kind):
        for width, height in ((1280, 900), (360, 740)):
            browser.alive(page, width=width, height=height)
            wide, tall = browser.value(
                "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
            )
            assert wide <= width, (page.stem, browser.value(TOO_WIDE))
            assert tall < 8_000, page.stem
            radios = "[...document.querySelectorAll('[role=radio]')].slice(0, 20)"
            browser.value(f"{radios}.forEach((e) => e.click())")
            if page.stem != "index":
                browser.mouse(0.5, 0.5, click=True)
            assert browser.complaints() == []
            assert browser.requests()[1:] == []
            assert browser.value("document.querySelectorAll('svg [onload], script').length") <= 2
            if kind == "code":
                names = browser.all(".name", "e.textContent")
                assert {*names} == {" ".join(WORDS[kind])}
