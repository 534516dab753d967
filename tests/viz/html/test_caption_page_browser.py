"""HTML pages of captions in a browser: mouse, keys, touch, hostile texts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caption_results import caption_of

from visattn.results.captions import Caption, GroundedPhrase
from visattn.results.cards import Card
from visattn.viz.html.caption_page import caption_html
from visattn.viz.html.index_page import index_page, thumbnail

RNG = np.random.default_rng(3)
SIZE = (48, 80)
WORDS = ("a", "red", "dog", "runs")
DOG = GroundedPhrase(
    1, 2, ((0.25, 0.5, 0.75, 1.0), (0.0, 0.0, 0.1, 0.2)), (0.625, 0.25), 0.375, pointed=True
)
UNSEEN = GroundedPhrase(3, 1, ((0.9, 0.0, 1.0, 0.1),))
EVIL = (
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=2>",
    "</script><script>window.pwned=3</script>",
    "</script onload=window.pwned=5 ",
    "<!--<script -->",
    '"><svg onload=window.pwned=4>',
    "'\\\"\u2028\u2029&lt;\x00\udcff",
    "{{7*7}}$name${caption}",
)


def said(words: tuple[str, ...], **more: Any) -> Caption:
    maps = RNG.random((len(words), 3, 5)) ** 3
    chances = tuple(np.log(RNG.uniform(0.01, 1, len(words))).tolist())
    gates = tuple(RNG.random(len(words)).tolist())
    maps /= maps.sum((1, 2), keepdims=True)
    return caption_of(words, maps, SIZE, chances, gates, **more)


def page(first: Caption, *others: Caption, **options: Any) -> str:
    pixels = RNG.integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    return caption_html(pixels, replace(first, alternatives=others), **options)


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two captions; two phrases of the first have boxes."""
    path = tmp_path_factory.mktemp("pages") / "viewer.html"
    first = said(WORDS, score=-3.25, phrases=(DOG, UNSEEN))
    second = said(("a", "cat"), score=-4.5, finished=False)
    path.write_text(page(first, second, name="dog.jpg", index="index.html"), encoding="utf-8")
    return path


def chosen(browser: Any) -> int:
    return browser.value(
        "[...document.querySelectorAll('#words button')]"
        ".findIndex(button => button.ariaChecked === 'true')"
    )


def maps_by_word(browser: Any) -> list[str]:
    drawn = []
    for _ in browser.value("[...document.querySelectorAll('#words button')].map(one => 0)"):
        browser.press("ArrowRight" if drawn else "Home")
        drawn.append(browser.shown())
    return drawn


def test_hovering_shows_a_map_and_leaving_restores_the_selection(
    browser: Any, viewer: Path
) -> None:
    browser.alive(viewer)
    maps = maps_by_word(browser)
    assert len({*maps, "photo"}) == len(WORDS) + 1
    browser.press("Home")
    browser.hover("#words button", 2)
    assert browser.shown() == maps[2]
    assert browser.text("#word") == "dog"
    assert chosen(browser) == 0
    browser.hover("header .name")
    assert browser.shown() == maps[0]
    browser.click("#words button", 3)
    browser.hover("header .name")
    assert browser.shown() == maps[3]
    assert chosen(browser) == 3


def test_tap_selects_a_word(browser: Any, viewer: Path) -> None:
    browser.alive(viewer, width=360, height=740, touch=True)
    maps = maps_by_word(browser)
    browser.tap("#words button", 1)
    browser.wait("document.getElementById('word').innerText === 'red'")
    assert (browser.shown(), chosen(browser)) == (maps[1], 1)


def test_arrow_keys_move_between_words(browser: Any, viewer: Path) -> None:
    browser.alive(viewer)
    browser.press("Home")
    visited = [chosen(browser)]
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "ArrowLeft", "Home"):
        browser.press(key)
        visited.append(chosen(browser))
    assert visited == [0, 1, 2, 1, 3, 0, 3, 0]
    browser.press("Escape")
    assert (browser.shown(), chosen(browser)) == ("photo", -1)
    browser.press("Tab", "Tab")  # back link, words: a single tab stop for all words
    assert browser.value("document.activeElement.parentElement.className") == "words"
    browser.press("ArrowRight")
    assert browser.value("document.activeElement.innerText").startswith("red")
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert chosen(browser) == 1
    browser.press("Tab")
    assert browser.value("document.activeElement.id") == "mean"


def test_candidates_have_their_own_words_and_maps(browser: Any, viewer: Path) -> None:
    browser.alive(viewer)
    before = maps_by_word(browser)
    lines = browser.text("#candidates").splitlines()
    assert lines == ["1", "a red dog runs", "\u22123.25", "2", "a cat \u2026", "\u22124.50"]
    browser.click("#candidates button", 1)
    assert browser.value("[...document.querySelectorAll('.word')].map(one => one.innerText)") == [
        "a",
        "cat",
    ]
    assert chosen(browser) == 1  # there is no fourth word
    assert browser.shown() not in before
    browser.press("ArrowUp", "Escape")
    assert browser.value("caption.innerText") == "a red dog runs"


def test_boxes_and_word_details_are_shown(browser: Any, viewer: Path) -> None:
    browser.alive(viewer)
    count = "document.querySelectorAll('#boxes .over').length"
    assert browser.text("#word") == "dog"  # a page begins with the last word of a known phrase
    browser.press("Home")
    assert browser.value(count) == 0
    assert browser.text("#phrase") == "No boxes are known for this word"
    browser.press("ArrowRight")
    assert browser.value(count) == 2
    first = browser.value(
        "(r => [r.x, r.y, r.width, r.height])(boxes.querySelector('.over').getBoundingClientRect())"
    )
    x, y, width, height = browser.value(
        "(r => [r.x, r.y, r.width, r.height])(photo.getBoundingClientRect())"
    )
    assert first == pytest.approx([x + width / 4, y + height / 2, width / 2, height / 2], abs=3)
    page_data = browser.text("#grounding")
    for part in ("red dog", "0.63", "0.38", "+0.25", "inside"):
        assert part in page_data
    browser.press("ArrowRight")
    assert "\u22120.13" in browser.text("#grounding")
    browser.click("#outlined")
    assert browser.value(count) == 0
    browser.click("#words button", 3)
    assert "outside the model's input" in browser.text("#grounding")


def test_clicking_the_photo_ranks_the_words(browser: Any, viewer: Path) -> None:
    browser.alive(viewer)
    strengths = (
        "[...document.querySelectorAll('#words button')]"
        ".map(one => one.style.getPropertyValue('--here'))"
    )
    browser.hover("#frame")
    assert browser.value("words.classList.contains('pointed')")
    assert len({*browser.value(strengths)}) > 2
    browser.hover("header .name")
    assert {*browser.value(strengths)} == {"0%"}


def test_texts_are_escaped_and_no_request_is_sent(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    evil = said(EVIL, score=-1.0)
    path.write_text(page(evil, said(EVIL[::-1]), name=EVIL[0] + EVIL[5]), encoding="utf-8")
    browser.alive(path)
    for index in range(len(EVIL)):
        browser.click("#words button", index)
    browser.click("#candidates button", 1)
    browser.click("#candidates button", 0)
    browser.hover("#frame")
    assert browser.value("typeof pwned") == "undefined"
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]
    words = browser.value(
        "[...document.querySelectorAll('#words .word')].map(one => one.textContent)"
    )
    assert words[:6] == list(EVIL[:6])
    assert browser.value("document.querySelector('.name').textContent") == EVIL[0] + EVIL[5]
    assert browser.value("document.querySelectorAll('script, img, svg, iframe').length") == 4


def test_content_security_policy_is_enforced(browser: Any, viewer: Path) -> None:
    browser.alive(viewer)
    browser.value(
        "window.broken = []; addEventListener('securitypolicyviolation', event =>"
        "  broken.push(event.effectiveDirective));"
        "document.body.append(Object.assign(document.createElement('script'),"
        "  {textContent: 'window.pwned = 1'}));"
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"https://example.org/a.png\">"
        '  <p style="color: red" onclick="window.pwned = 2">\');'
        "fetch('https://example.org/').catch(() => 0); 0"
    )
    browser.wait("broken.length >= 5")
    assert {*browser.value("broken")} == {
        "script-src-elem", "img-src", "style-src-attr", "script-src-attr", "connect-src"
    }  # fmt: skip
    assert browser.value("typeof pwned") == "undefined"
    assert browser.requests() == [viewer.as_uri()]


def test_without_javascript_photo_and_caption_are_shown(browser: Any, viewer: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(viewer)
    page_data = browser.text("body")
    height = browser.value("photo.getBoundingClientRect().height")
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "a red dog runs" in page_data
    assert "scripts are off" in page_data
    assert "Opacity" not in page_data
    assert height > 100


NAMES = ("50 % #1?.jpg", 'it\'s "quoted" & <b>', "naïve 犬", "photo 10", "photo 9")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    entries = []
    for number, name in enumerate(NAMES):
        caption = f"a dog and {number} cats"
        (folder / f"{name}.html").write_text(f"<title>{number}</title>", encoding="utf-8")
        image = np.full((30, 40, 3), 50 * number, np.uint8)
        entries.append(Card(name, f"{name}.html", caption, thumbnail(image)))
    evil = Card(EVIL[0], "no.html", EVIL[1] + EVIL[5], "data:image/jpeg;base64,")
    (folder / "index.html").write_text(index_page([*entries, evil]), encoding="utf-8")
    return folder / "index.html"


def test_search_filters_the_cards(browser: Any, index: Path) -> None:
    browser.open(index)
    assert browser.text("#count") == "6 photos"
    browser.press("/", *"DOG 1")
    left = "[...document.querySelectorAll('#cards li:not([hidden]) .name')].map(e => e.textContent)"
    assert browser.value(left) == ["50 % #1?.jpg", NAMES[1], "photo 10"]
    assert browser.text("#count") == "3 of 6 photos"
    browser.press(*" horse")
    assert browser.value("document.getElementById('none').hidden") is False
    assert browser.value("typeof pwned") == "undefined"
    assert browser.complaints() == []
    assert browser.requests() == [index.as_uri()]


def test_cards_are_sorted_and_filtered_and_the_address_keeps_it(
    browser: Any, tmp_path: Path
) -> None:
    facts = (("a", "rose", 0.9, "rose"), ("b", "tulip", 0.4, "rose"), ("c", "rose", 0.95, "rose"))
    cards = [Card(name, f"{name}.html", label, "", label, share, truth)
             for name, label, share, truth in facts]  # fmt: skip
    path = tmp_path / "index.html"
    path.write_text(index_page(cards, about=["timm:resnet18"]), encoding="utf-8")
    browser.open(path)
    assert browser.text("#about") == "timm:resnet18 \u00b7 accuracy 66.7% of 3"
    left = "[...document.querySelectorAll('#cards li:not([hidden]) .name')].map(e => e.textContent)"
    order = "(name) => { sort.value = name; sort.dispatchEvent(new Event('change')); }"
    for name, names in (("probability", "cab"), ("class", "acb"), ("wrong first", "bac")):
        browser.value(f"({order})({name!r})")
        assert "".join(browser.value(left)) == names
    browser.value("label.value = 'rose'; label.dispatchEvent(new Event('change'))")
    assert browser.value(left) == ["a", "c"]
    assert browser.value("location.hash") == "#sort=wrong+first&class=rose"
    browser.value("location.reload()")
    browser.wait("document.getElementById('count')?.textContent === '2 of 3 photos'")


def test_arrow_keys_move_between_cards(browser: Any, index: Path) -> None:
    browser.open(index, width=620)  # two in a row
    at = "document.activeElement.querySelector('.name')?.textContent"
    visited = []
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "End", "ArrowUp", "Home"):
        browser.press(key)
        visited.append(browser.value(at))
    order = [EVIL[0], "50 % #1?.jpg", NAMES[1], NAMES[2], "photo 9", "photo 10"]
    listed = browser.value("[...document.querySelectorAll('.name')].map(e => e.textContent)")
    assert sorted(listed) == sorted(order)
    assert listed[-2:] == ["photo 9", "photo 10"]
    assert visited == [listed[i] for i in (0, 1, 3, 2, 5, 3, 0)]
    browser.press("ArrowUp")
    assert browser.value("document.activeElement.id") == "filter"


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_card_links_work_for_any_file_name(browser: Any, index: Path, number: int) -> None:
    browser.open(index)
    browser.press("/", *NAMES[number])
    browser.press("ArrowDown", "Enter")
    browser.wait("!location.pathname.endsWith('index.html') && document.readyState === 'complete'")
    assert browser.value("document.title") == str(number)
