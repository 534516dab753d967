"""Controls of pages of a photo in a browser: values, the swipe of two maps, sizes, colors."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from caption_results import caption_of
from explorer_results import explained_model, layer_of, method_map

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.results.attention_map import AttentionMap
from visattn.results.cards import Card
from visattn.results.values import Answer
from visattn.viz.html.caption_page import caption_html
from visattn.viz.html.explorer_page import explorer_html
from visattn.viz.html.index_page import index_page, thumbnail
from visattn.viz.html.question_page import answer_html

RNG = np.random.default_rng(7)
GRID, SIZE = (3, 5), (96, 160)
PLACE = Geometry.identity(SIZE)
WORDS = ("a", "red", "dog")
DOWN, ALONG = np.mgrid[: SIZE[0], : SIZE[1]] / max(SIZE)
WAVES = (np.sin(9 * DOWN + 3 * ALONG), np.cos(5 * ALONG), np.sin(11 * ALONG * DOWN))
PHOTO = np.stack([127 + 90 * wave for wave in WAVES], axis=-1).astype(np.uint8)
METHOD = method_map("Grad-CAM", RNG.random(GRID), PLACE, class_name="dog", target=0)
GRADIENT = method_map("gradients", RNG.normal(size=(6, 10)), PLACE, signed=True)


def weights(heads: int, queries: int, cells: int) -> np.ndarray:
    values = RNG.random((heads, queries, cells)) ** 4
    return (values / values.sum(2, keepdims=True)).reshape(heads, queries, *GRID)


def caption_page(**options: Any) -> str:
    maps = RNG.random((3, *GRID)) ** 2
    maps /= maps.sum((1, 2), keepdims=True)
    maps[2] = 0.01
    maps[2, 2, 4] = 0.85
    said = caption_of(WORDS, maps, SIZE, (-0.5, -0.2, -0.1), (0.2, 0.9, 0.5), score=-0.8)
    return caption_html(PHOTO, said, name="dog.jpg", **options)


def explorer_page(name: str = "ViT", **options: Any) -> str:
    layers = [layer_of(index, weights(2, 1 + 15, 15), ("class",), 1) for index in range(3)]
    options = {"layers": layers, "maps": [METHOD, GRADIENT], **options}
    model = explained_model(name)
    return explorer_html(LoadedImage(PHOTO), PLACE, subject=model, name="dog.jpg", **options)


def question_page() -> str:
    values = torch.from_numpy(RNG.random((2, *GRID)))
    maps = AttentionMap(values, "hops", "tokens", PLACE, labels=("1", "2"))
    answer = Answer("Red?", ("red",), (("yes", 0.75), ("no", 0.25)), maps, torch.ones(2, 1))
    return answer_html(PHOTO, [answer], name="dog.jpg")


def index() -> str:
    return index_page([Card("dog", "dog.html", "a dog", thumbnail(PHOTO))])


PAGES = {
    "caption": caption_page, "explorer": explorer_page, "question": question_page, "index": index,
}  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(make(), encoding="utf-8")
    return {path.stem: path for path in folder.iterdir()}


def parts(pattern: str, content: str) -> tuple[str, ...]:
    match = re.search(pattern, content)
    assert match is not None
    return match.groups()


def test_the_value_under_the_pointer_is_that_of_the_map(
    browser: Any, pages: dict[str, Path]
) -> None:
    browser.alive(pages["explorer"])
    browser.click("#cells button", 1)
    for row, column in ((0, 0), (2, 4), (1, 2)):
        browser.mouse((column + 0.5) / 5, (row + 0.5) / 3)
        value, x, y = parts(r"([\d.e]+) \u00b7 x (\d+), y (\d+)", browser.text("#value"))
        assert float(value) == pytest.approx(float(METHOD.values[row, column]), rel=0.01)
        assert int(x) == pytest.approx(160 * (column + 0.5) / 5, abs=1)
        assert int(y) == pytest.approx(96 * (row + 0.5) / 3, abs=1)
    browser.hover("header .name")
    assert browser.value("value.hidden")
    browser.alive(pages["caption"])
    browser.mouse(0.9, 0.84)
    assert float(browser.text("#value").split(" ")[0]) > 0
    browser.press("Escape")
    assert browser.value("value.hidden")


@pytest.mark.parametrize("at", [25, 75])
def test_two_maps_lie_on_both_sides_of_a_line(
    browser: Any, pages: dict[str, Path], at: int
) -> None:
    browser.alive(pages["explorer"])
    browser.click("#cells button", 1)
    held = browser.pixels("#overlay")
    browser.click("#hold")
    browser.click("#maps button", 1)
    assert (browser.pixels("#overlay") != held).any()
    assert (browser.pixels("#second") == held).all()
    browser.value(f"divider.value = {at}; divider.dispatchEvent(new Event('input'))")
    clip, border = browser.value(
        "[getComputedStyle(second).clipPath, getComputedStyle(views, '::after').left]"
    )
    assert clip == f"inset(0px 0px 0px {at}%)"
    assert float(border.removesuffix("px")) == pytest.approx(
        browser.value("frame.getBoundingClientRect().width") * at / 100, abs=1
    )
    titles = [browser.text(f"#{name}-title") for name in ("first", "second")]
    assert titles[0].startswith("gradients (")
    assert titles[1].startswith("Grad-CAM (")
    for column, values in ((0, GRADIENT.values[:, ::2]), (4, METHOD.values)):
        browser.mouse((column + 0.5) / 5 - 0.05, 0.5 / 3 - 0.05)
        value = float(browser.text("#value").split(" ")[0].replace("\u2212", "-"))
        assert value == pytest.approx(float(values[0, column]), rel=0.01)
    browser.click("#hold")
    assert browser.value("second.hidden && divider.hidden && titles.hidden")


def test_a_held_head_is_compared_with_another(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["explorer"])
    browser.click("#tiles button", 0)
    kept = browser.pixels("#overlay")
    browser.click("#hold")
    browser.value("document.querySelectorAll('#tiles button')[4].click()")
    browser.wait("shown.innerText === 'Layer 1, head 1'")
    assert browser.text("#second-title").startswith("Layer 0, head 0 (")
    assert np.abs(browser.pixels("#second").astype(int) - kept).max() <= 2
    assert (browser.pixels("#overlay") != kept).any()
    browser.press("Escape")  # the photo alone beside the held map
    assert browser.text("#first-title") == "photo alone"
    assert not browser.value("second.hidden")


def test_tiles_have_the_colors_of_the_scale(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["explorer"])
    browser.click("#tiles button", 0)
    ramp = browser.pixels("#ramp")[7].astype(int)
    for style in (0, 1):
        browser.click("#style button", style)
        ramp = browser.pixels("#ramp")[7].astype(int)
        tile = browser.pixels("#tiles canvas").reshape(-1, 3).astype(int)
        assert np.abs(tile[:, None] - ramp[None]).sum(2).min(1).max() <= 9


def test_the_page_says_where_the_peak_lies(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["caption"])
    assert browser.value("spoken.getAttribute('role')") == "status"
    browser.press("End")
    browser.wait("spoken.textContent === 'dog, Word 3 of 3, peak: lower right'")
    assert "lower right" in browser.text("#facts")


@pytest.mark.parametrize("name", ["caption", "explorer", "question"])
def test_on_a_phone_the_photo_stays_above_the_controls(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    browser.alive(pages[name], width=390, height=844, touch=True)
    for control in ("threshold", "hold"):
        browser.value(f"document.getElementById({control!r}).scrollIntoView({{block: 'center'}})")
        top, bottom = browser.value("(r => [r.top, r.bottom])(frame.getBoundingClientRect())")
        assert -1 <= top < bottom < 422
        hit = browser.value(
            f"(r => document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2)?.id)"
            f"(document.getElementById({control!r}).getBoundingClientRect())"
        )
        assert hit == control


@pytest.mark.parametrize("width", [390, 1300])
@pytest.mark.parametrize("name", PAGES)
def test_targets_are_at_least_24_pixels_and_nothing_overflows(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.alive(pages[name], width=width, height=844, touch=width < 700)
    small = browser.value(
        "[...document.querySelectorAll('button, select, a, input, summary')].filter((e) => {"
        "const r = e.getBoundingClientRect(); return r.width && (r.width < 23.9 || r.height < 23.9)"
        "&& !e.closest('#tiles, label') }).map((e) => e.outerHTML.slice(0, 90))"
    )
    assert small == []
    assert browser.value("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("name", ["caption", "explorer", "question"])
def test_forced_colors_show_what_is_selected(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    browser.alive(pages[name])
    browser.call(
        "Emulation.setEmulatedMedia", features=[{"name": "forced-colors", "value": "active"}]
    )
    differ = browser.value(
        "(() => { const chosen = document.querySelector('#style [aria-checked=true]'),"
        "other = document.querySelector('#style [aria-checked=false]');"
        "const style = getComputedStyle(other);"
        "return getComputedStyle(chosen).backgroundColor !== style.backgroundColor"
        " && style.borderTopStyle === 'solid' })()"
    )
    assert differ
    colors = browser.value(
        "[...document.querySelectorAll('[aria-checked=true]:not(#tiles *)')].map((e) => "
        "[getComputedStyle(e).backgroundColor, getComputedStyle(e).color].join())"
    )
    assert len({*colors}) == 1  # those of selected text of the system
    assert browser.value(
        "getComputedStyle(document.querySelector('#ramp')).forcedColorAdjust === 'none'"
    )


def test_print_shows_words_and_hides_controls(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["caption"])
    browser.call("Emulation.setEmulatedMedia", media="print")
    visible = "document.querySelector({!r}).checkVisibility()"
    assert browser.value(visible.format("#words .shown .gauge i"))
    assert not any(browser.value(visible.format(each)) for each in ("#drawing", "#mean", "#hold"))
    chosen = "getComputedStyle(document.querySelector('#words .shown'))"
    assert browser.value(f"{chosen}.printColorAdjust") == "exact"


def test_words_of_two_models_have_a_row_each(browser: Any, tmp_path: Path) -> None:
    maps = RNG.random((2, 2, 2))
    other = caption_of(("one", "cat"), maps / maps.sum((1, 2), keepdims=True), SIZE)
    soft = caption_of(WORDS, RNG.random((3, *GRID)) / 9, SIZE, (), (0.2, 0.9, 0.5))
    page = caption_html(PHOTO, {"soft": soft, "hard": other}, name="dog.jpg")
    (tmp_path / "a.html").write_text(page, encoding="utf-8")
    browser.alive(tmp_path / "a.html")
    labels = "[...document.querySelectorAll('#words [role=radiogroup]')].map(e => e.ariaLabel)"
    assert browser.value(labels) == ["soft", "hard"]
    browser.click("#words button", 1)
    assert browser.text("#word") == "red"
    before = browser.pixels("#overlay")
    browser.hover("#words button", 4)
    assert browser.text("#word") == "cat"
    assert browser.text("#which") == "Word 2 of 2"
    browser.mouse(0.9, 0.5)
    assert browser.text("#word") == "red"  # that which was chosen
    browser.click("#words button", 4)
    browser.press("ArrowLeft")
    assert browser.text("#word") == "one"
    assert (browser.pixels("#overlay") != before).any()


def test_without_scripts_a_page_links_to_its_figure(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(caption_page(panel="dog 1.png"), encoding="utf-8")
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(tmp_path / "a.html")
    link = browser.value("document.querySelector('noscript a').getAttribute('href')")
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert link == "./dog%201.png"


def test_pages_keep_their_policy(pages: dict[str, Path]) -> None:
    for path in pages.values():
        page = path.read_text(encoding="utf-8")
        [policy] = parts(r'Content-Security-Policy" content="([^"]+)"', page)
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy
        assert not re.search(r"<[^>]+\son[a-z]+=", page.split("<script>")[0])
        [data] = parts(r'id="page-data">(.*?)</script>', page)
        assert json.loads(data) is not None
