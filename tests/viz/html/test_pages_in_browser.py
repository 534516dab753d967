"""Each kind of page in a browser: sizes, mouse, keys, fingers, hostile texts, pixels of Python."""

import base64
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from page_results import caption_of, explained_model, layer_of, method_map
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeSpec
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.pipelines.captioning import ResizeMode, caption
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption, GroundedPhrase
from visattn.results.kinds import SPECIAL_TOKENS, Card
from visattn.results.scale import MapScale
from visattn.results.values import Answer
from visattn.viz.heatmap import overlay
from visattn.viz.html.caption_page import caption_html
from visattn.viz.html.explorer_page import explorer_html, quantize_weights
from visattn.viz.html.index_page import index_page, thumbnail
from visattn.viz.html.question_page import answer_html
from visattn.viz.maps import overlay as draw

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(7)
GRID, SIZE = (3, 5), (96, 160)
PLACE = Geometry.identity(SIZE)
CROP = PLACE.cropped(0, 30, (96, 100)).resized((60, 100))
WORDS = ("a", "red", "dog", "runs")
DOG = GroundedPhrase(
    1, 2, ((0.25, 0.5, 0.75, 1.0), (0.0, 0.0, 0.1, 0.2)), (0.625, 0.25), 0.375, pointed=True
)
NAMES = ("50 % #1?.jpg", 'it\'s "quoted" & <b>', "naïve 犬", "photo 10", "photo 9")
LEFT = "#cards li:not([hidden]) .name"


def photo(y: int = SIZE[0], x: int = SIZE[1]) -> np.ndarray:
    """Return a landscape with soft edges, on which decoders agree."""
    down, along = np.mgrid[:y, :x] / max(y, x)
    waves = (np.sin(9 * down + 3 * along), np.cos(5 * along - down), np.sin(11 * along * down))
    return np.stack([127 + 90 * wave for wave in waves], axis=-1).astype(np.uint8)


def attention(heads: int, queries: int, grid: tuple[int, int] = GRID) -> np.ndarray:
    weights = RNG.random((heads, queries, *grid)) ** 4
    return 0.9 * weights / weights.sum((2, 3), keepdims=True)


LAYERS = (
    layer_of(0, attention(3, 2 + 15), ("class", "register"), 2),
    layer_of(1, attention(2, 60, (6, 10))),
)
MAPS = (
    method_map("Grad-CAM", RNG.random((4, 6)), CROP, class_name="dog", target=0, probability=0.91),
    method_map("gradients", RNG.normal(size=(60, 100)), CROP, signed=True),
)
SCALES = (MapScale("image", 0.0, 0.9), MapScale("image", 0.0, 2.0, signed=True))


def said(words: tuple[str, ...], **more: Any) -> Caption:
    chances = tuple(np.log(RNG.uniform(0.01, 1, len(words))).tolist())
    gates = tuple(RNG.random(len(words)).tolist())
    return caption_of(words, attention(1, len(words))[0], SIZE, chances, gates, **more)


def caption_page(texts: tuple[str, ...] = WORDS, name: str = "dog.jpg", **options: Any) -> str:
    second = said(("a", "cat") if texts is WORDS else texts[::-1], score=-4.5, finished=False)
    phrases = (DOG, GroundedPhrase(3, 1, ((0.9, 0.0, 1.0, 0.1),))) if texts is WORDS else ()
    first = said(texts, score=-3.25, phrases=phrases, alternatives=(second,))
    return caption_html(photo(), first, name=name, **options)


def models_page() -> str:
    hard = caption_of(("one", "cat"), attention(1, 2, (2, 2))[0], SIZE)
    return caption_html(photo(), {"soft": said(WORDS), "hard": hard}, name="dog.jpg")


def explorer_page(**options: Any) -> str:
    options = {"layers": LAYERS, "maps": MAPS, "scales": SCALES, "name": "dog.jpg",
               "subject": explained_model(), **options}  # fmt: skip
    return explorer_html(LoadedImage(photo()), CROP, **options)


def question_page() -> str:
    hops = AttentionMap(torch.from_numpy(attention(1, 2)[0]), "hops", "tokens", PLACE,
                        labels=("step 1", "step 2"))  # fmt: skip
    shares, weights = (("yes", 0.75), ("no", 0.25)), torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    answer = Answer("Red dog?", ("red", "dog"), shares, hops, weights, ("dog",), notes=("A note.",))
    bare = replace(answer, question="Why?", words=("why",), maps=None, word_weights=None)
    return answer_html(photo(), [answer, bare], name="dog.jpg")


def cards() -> str:
    facts = (("a", "rose", 0.9, "rose"), ("b", "tulip", 0.4, "rose"), ("c", "rose", 0.95, "rose"))
    entries = [Card(name, f"{name}.html", label, thumbnail(photo()), label, share, truth)
               for name, label, share, truth in facts]  # fmt: skip
    return index_page(entries, about=["timm:resnet18"])


PAGES: dict[str, Callable[[], str]] = {
    "caption": caption_page, "models": models_page, "explorer": explorer_page,
    "question": question_page, "index": cards,
}  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(make(), encoding="utf-8")
    return {path.stem: path for path in folder.iterdir()}


def write(path: Path, page: str) -> Path:
    path.write_text(page, encoding="utf-8")
    return path


def chosen(browser: Any) -> int:
    return [*browser.all("#rows button", "e.ariaChecked"), "true"].index("true")


def move(browser: Any, control: str, value: int) -> None:
    browser.value(f"{control}.value = {value}; {control}.dispatchEvent(new Event('input'))")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 768, 1300])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_window(
    browser: Any, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.alive(pages[name], width=width, height=844, dark=dark)
    assert browser.complaints() == []
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.value("document.documentElement.scrollWidth") == width
    small = browser.value(
        "[...document.querySelectorAll('button, select, a, input, summary')].filter((e) => {"
        "const r = e.getBoundingClientRect(); return r.width && (r.width < 23.9 || r.height < 23.9)"
        "&& !e.closest('#tiles, label') }).map((e) => e.outerHTML.slice(0, 90))"
    )
    assert small == []  # targets are at least 24 pixels
    nameless = browser.value(
        "[...document.querySelectorAll('button, input, select, [role]')].filter((e) => "
        "e.checkVisibility() && !(e.innerText || e.ariaLabel || e.labels?.length || "
        "e.getAttribute('aria-labelledby') || e.role === 'status')).map((e) => e.outerHTML)"
    )
    assert nameless == []
    hidden = browser.value(  # what scrolls sideways or down inside of the page must have the focus
        "[...document.querySelectorAll('body *')].filter((e) => /auto|scroll/.test(getComputedStyle"
        "(e).overflow) && e.tabIndex < 0).length"
    )
    assert hidden == 0
    if name != "index" and width < 768:  # the photo stays above the controls
        for control in ("threshold", "hold"):
            browser.value(f"{control}.scrollIntoView({{block: 'center'}})")
            top, bottom = browser.value("(r => [r.top, r.bottom])(frame.getBoundingClientRect())")
            assert -1 <= top < bottom < 422
            x, y = browser.place(f"#{control}")
            assert browser.value(f"document.elementFromPoint({x}, {y}).id") == control


def test_words_by_mouse_keys_and_fingers(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["caption"])
    assert browser.text("#chosen") == "dog"  # a page begins with the last word of a known phrase
    maps = []
    for number in range(len(WORDS)):
        browser.press("ArrowRight" if number else "Home")
        maps.append(browser.shown())
    assert len({*maps, "photo"}) == len(WORDS) + 1
    browser.wait("spoken.textContent.startsWith('runs, Word 4 of 4, peak: ')")
    browser.press("Home")
    browser.hover("#rows button", 2)
    assert (browser.shown(), browser.text("#chosen"), chosen(browser)) == (maps[2], "dog", 0)
    browser.hover("header .name")
    assert browser.shown() == maps[0]
    browser.click("#rows button", 3)
    browser.hover("header .name")
    assert (browser.shown(), chosen(browser)) == (maps[3], 3)
    visited = []
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "ArrowLeft"):
        browser.press(key)
        visited.append(chosen(browser))
    assert visited == [0, 1, 2, 1, 3, 0, 3]
    browser.press("Escape")
    assert (browser.shown(), chosen(browser)) == ("photo", len(WORDS))  # none
    browser.alive(pages["caption"])
    browser.press("Tab")  # a single tab stop for all words
    assert browser.value("document.activeElement.parentElement.className") == "words"
    browser.press("ArrowRight")
    assert browser.value("document.activeElement.innerText").startswith("runs")
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Tab")
    assert browser.value("document.activeElement.id") == "mean"
    browser.hover("#frame")
    strengths = "#rows button", "e.style.cssText"
    assert len({*browser.all(*strengths)}) > 2  # how strongly each word looks there
    browser.hover("header .name")
    assert {*browser.all(*strengths)} == {"--here: 0%;"}
    browser.alive(pages["caption"], width=360, height=740)
    browser.tap("#rows button", 1)
    browser.wait("chosen.innerText === 'red'")
    assert (browser.shown(), chosen(browser)) == (maps[1], 1)


def test_candidates_phrases_and_boxes(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["caption"])
    count = "document.querySelectorAll('#boxes .over').length"
    browser.press("Home")
    assert browser.value(count) == 0
    assert browser.text("#about") == "No boxes are known for this word"
    browser.press("ArrowRight")
    assert browser.value(count) == 2
    corners = "(r => [r.x, r.y, r.width, r.height])({}.getBoundingClientRect())"
    x, y, width, height = browser.value(corners.format("photo"))
    assert browser.value(corners.format("boxes.querySelector('.over')")) == pytest.approx(
        [x + width / 4, y + height / 2, width / 2, height / 2], abs=3
    )
    for part in ("red dog", "0.62", "0.38", "+0.25", "inside"):
        assert part in browser.text("#about")
    browser.click("#outlined")
    assert browser.value(count) == 0
    browser.click("#rows button", 3)
    assert "outside the model's input" in browser.text("#about")
    lines = browser.text("#candidates").splitlines()
    assert lines == ["1", "a red dog runs", "\u22123.25", "2", "a cat \u2026", "\u22124.50"]
    before = browser.shown()
    browser.click("#candidates button", 1)
    assert browser.all(".word") == ["a", "cat"]
    assert chosen(browser) == 1  # there is no fourth word
    assert browser.shown() != before
    browser.press("ArrowUp")
    assert browser.value("title.innerText") == "a red dog runs"


def test_words_of_two_models_have_a_row_each(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["models"])
    assert browser.all("#rows [role=radiogroup]", "e.ariaLabel") == ["soft", "hard"]
    browser.click("#rows button", 1)
    before = browser.shown()
    browser.hover("#rows button", 5)
    assert (browser.text("#chosen"), browser.text("#which")) == ("cat", "Word 2 of 2")
    browser.mouse(0.9, 0.5)
    assert browser.text("#chosen") == "red"  # that which was chosen
    browser.click("#rows button", 5)
    browser.press("ArrowLeft")
    assert browser.text("#chosen") == "one"
    assert browser.shown() != before


def test_steps_of_a_question(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["question"])
    assert browser.text("#answer").split()[:2] == ["Answer", "yes"]
    assert browser.text("#title").split() == ["red", "90", "%", "dog", "10", "%"]
    before = browser.shown()
    browser.press("ArrowRight")
    assert (browser.text("#chosen"), browser.shown() != before) == ("step 2", True)
    assert browser.text("#title").split() == ["red", "20", "%", "dog", "80", "%"]
    assert browser.text("#notes") == "A note."
    assert browser.value("document.querySelector('.unknown .word').innerText") == "dog"
    browser.click("#candidates button", 1)  # a question of a model without maps
    assert browser.shown() == "photo"
    assert browser.text("#chosen") == "This model has no attention map."
    assert not browser.value("scale.checkVisibility() || hold.checkVisibility()")


def test_tiles_and_queries(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["explorer"])
    assert browser.all("#queries button") == ["Class token", "Register token", "All patches"]
    off = "#tiles button", "e.disabled"
    assert browser.all(*off) == [False] * 4 + [True] * 3  # the second layer has no class token
    before = browser.shown()
    browser.hover("#tiles button", 2)
    assert (browser.text("#chosen"), browser.shown() != before) == ("Layer 0, head 2", True)
    browser.hover("header .name")
    assert browser.shown() == before
    browser.mouse(0.05, 0.5, click=True)  # outside of what the model saw
    assert browser.shown() == before
    browser.click("#queries button", 2)
    assert browser.all(*off) == [False] * 7
    browser.click("#tiles button", 0)
    visited = []
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "End", "ArrowUp"):
        browser.press(key)
        visited.append(browser.text("#chosen"))
    assert visited == [
        "Layer 0, head 1", "Layer 1, head 1", "Layer 1, head 0", "Layer 1, mean of all heads",
        "Layer 0, head 2",
    ]  # fmt: skip
    browser.value("frame.focus()")
    browser.press("ArrowLeft", "ArrowLeft")
    assert "query: this patch" in browser.text("#which")
    browser.press("Escape")
    assert browser.shown() == "photo"
    browser.alive(pages["explorer"], width=360, height=740)
    browser.tap("#tiles button", 0)
    browser.wait("chosen.innerText === 'Layer 0, head 0'")
    browser.tap("#frame")
    browser.wait("which.innerText.includes('this patch')")


def test_two_maps_lie_on_both_sides_of_a_line(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["explorer"])
    browser.click("#smooth button", 1)
    held = browser.pixels("#overlay")
    browser.click("#hold")
    browser.click("#rows button", 1)
    assert (browser.pixels("#overlay") != held).any()
    assert (browser.pixels("#second") == held).all()
    for at in (25, 75):
        move(browser, "divider", at)
        clip, border = browser.value(
            "[getComputedStyle(second).clipPath, getComputedStyle(views, '::after').left]"
        )
        assert clip == f"inset(0px 0px 0px {at}%)"
        width = browser.value("frame.getBoundingClientRect().width")
        assert float(border.removesuffix("px")) == pytest.approx(width * at / 100, abs=1)
    assert browser.text("#first-title").startswith("gradients (")
    assert browser.text("#second-title").startswith("Grad-CAM (")
    move(browser, "divider", 50)
    for x, values in ((0.45, MAPS[1].values), (0.55, MAPS[0].values)):
        browser.mouse(x, 0.51)  # the value is that of the map which is seen there
        value = float(browser.text("#value").split(" ")[0].replace("\u2212", "-"))
        rows, columns = values.shape
        cell = values[int(0.51 * rows), int((x * 160 - 30) / 100 * columns)]
        assert value == pytest.approx(float(cell), rel=0.02)
    browser.mouse(0.05, 0.5)
    assert browser.text("#value") == "not seen by the model \u00b7 x 8, y 48"
    browser.press("Escape")  # the photo alone beside the held map
    assert browser.text("#first-title") == "photo alone"
    assert not browser.value("second.hidden")
    browser.click("#hold")
    assert browser.value("second.hidden && divider.hidden && titles.hidden")


def test_forced_colors_and_print(browser: Any, pages: dict[str, Path]) -> None:
    for name in ("caption", "explorer", "question"):
        browser.alive(pages[name])
        forced = [{"name": "forced-colors", "value": "active"}]
        browser.call("Emulation.setEmulatedMedia", features=forced)
        colors = browser.all(
            "[aria-checked=true]:not(#tiles *)",
            "[getComputedStyle(e).backgroundColor, getComputedStyle(e).color].join()",
        )
        assert len({*colors}) == 1  # those of selected text of the system
        other = "getComputedStyle(document.querySelector('#style [aria-checked=false]'))"
        assert browser.value(f"{other}.backgroundColor") not in colors[0]
        assert browser.value(f"{other}.borderTopStyle") == "solid"
        assert browser.value("getComputedStyle(ramp).forcedColorAdjust") == "none"
    browser.alive(pages["caption"])
    browser.call("Emulation.setEmulatedMedia", media="print")
    visible = "document.querySelector({!r}).checkVisibility()"
    assert browser.value(visible.format("#rows .shown .gauge i"))
    assert not any(browser.value(visible.format(each)) for each in ("#drawing", "#mean", "#hold"))
    shown = "getComputedStyle(document.querySelector('#rows .shown'))"
    assert browser.value(f"{shown}.printColorAdjust") == "exact"


def test_cards_are_searched_sorted_and_filtered(
    browser: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    browser.open(pages["index"])
    assert browser.text("#about") == "timm:resnet18 \u00b7 accuracy 66.7% of 3"
    order = "(name) => { sort.value = name; sort.dispatchEvent(new Event('input')); }"
    for name, names in (("probability", "cab"), ("class", "acb"), ("wrong first", "bac")):
        browser.value(f"({order})({name!r})")
        assert "".join(browser.all(LEFT)) == names
    browser.value("label.value = 'rose'; label.dispatchEvent(new Event('input'))")
    assert browser.all(LEFT) == ["a", "c"]
    assert browser.value("location.hash") == "#sort=wrong+first&class=rose"
    browser.value("location.reload()")
    browser.wait("document.getElementById('count')?.textContent === '2 of 3 photos'")
    entries = [Card("<b>", "no.html", "<i>", "data:image/jpeg;base64,")]
    for number, name in enumerate(NAMES):
        write(tmp_path / f"{name}.html", f"<title>{number}</title>")
        image = thumbnail(np.full((30, 40, 3), 50 * number, np.uint8))
        entries.append(Card(name, f"{name}.html", f"a dog and {number} cats", image))
    index = write(tmp_path / "index.html", index_page(entries))
    browser.open(index)
    listed, visited = browser.all(LEFT), []
    assert listed[-2:] == ["photo 9", "photo 10"]
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft", "Home"):
        browser.press(key)
        visited.append(browser.value("document.activeElement.querySelector('.name').textContent"))
    assert visited == [listed[i] for i in (0, 1, 5, 4, 0)]
    browser.press("/")
    assert browser.value("document.activeElement.id") == "filter"
    browser.press(*"DOG 1")
    assert browser.all(LEFT) == ["50 % #1?.jpg", NAMES[1], "photo 10"]
    assert browser.text("#count") == "3 of 6 photos"
    browser.press(*" horse")
    assert not browser.value("none.hidden")
    for number, name in enumerate(NAMES):  # links work for any file name
        browser.open(index)
        browser.press("/", *name, "Tab", "Enter")
        browser.wait(f"document.title === '{number}' && document.readyState === 'complete'")


def test_content_security_policy_is_enforced(browser: Any, pages: dict[str, Path]) -> None:
    browser.alive(pages["caption"])
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
    assert browser.requests() == [pages["caption"].as_uri()]


def test_without_scripts_photo_caption_and_figure_are_there(browser: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.html", caption_page(panel="dog 1.png"))
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(path)
    text, height = browser.text("body"), browser.value("photo.getBoundingClientRect().height")
    link = browser.value("document.querySelector('noscript a').getAttribute('href')")
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "a red dog runs" in text
    assert "scripts are disabled" in text
    assert "Opacity" not in text
    assert height > 100
    assert link == "./dog%201.png"


def embedded(page: Path) -> np.ndarray:
    """Return the photo of a page."""
    content = page.read_text(encoding="utf-8").split("data:image/jpeg;base64,")[1].split('"')[0]
    return np.array(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB"))


def close(actual: np.ndarray, expected: np.ndarray, tolerance: int = 2) -> None:
    distance = np.abs(actual.astype(int) - expected)
    assert distance.max() <= tolerance, f"{(distance.max(2) > tolerance).mean():.2%} of pixels"
    assert distance.mean() <= 1


GEOMETRIES = {
    "crop": ResizeSpec((224, 224)).geometry((211, 653)),
    "tall crop": ResizeSpec((224, 160), shorter=170).geometry((653, 211)),
    "squash": ResizeSpec((224, 224), mode="squash").geometry((211, 653)),
    "pad": ResizeSpec((224, 224), mode="pad").geometry((211, 653)),
    "mirror": ResizeSpec((224, 224)).geometry((211, 653)).flipped(),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_overlays_are_those_of_python(browser: Any, tmp_path: Path, name: str) -> None:
    geometry = GEOMETRIES[name]
    grids = torch.from_numpy(attention(1, 3, (5, 7))[0]).float()
    maps = AttentionMap(grids, "look", "words", geometry, labels=WORDS[:3])
    shown = Caption(WORDS[:3], (), (), maps, -0.5, finished=True)
    path = write(tmp_path / "a.html", caption_html(photo(*geometry.image_size), shown, vmax=0.11))
    browser.alive(path)
    kept, tops = embedded(path), maps.values.amax((1, 2))
    for word, smooth in ((1, True), (2, False)):
        browser.click("#rows button", word)
        browser.click("#smooth button", 0 if smooth else 1)
        placed = maps[word].resize_to_image(kept.shape[:2], smooth=smooth).numpy()
        close(browser.pixels(), overlay(kept, placed, vmax=0.11))
    for button, top in ((1, tops[2]), (2, tops.max())):  # its own scale, and the greatest
        browser.click("#ends button", button)
        close(browser.pixels(), overlay(kept, placed, vmax=float(top)))
        assert float(browser.text("#high")) == pytest.approx(float(top), rel=0.05)
    browser.click("#ends button", 0)
    browser.click("#smooth button", 0)
    browser.click("#mean")
    mean = AttentionMap(maps.values.mean(0), "look", "words", geometry).resize_to_image().numpy()
    assert browser.value("opacity.value") == "80"
    browser.value("opacity.focus()")
    browser.press(*["ArrowRight"] * 3)
    close(browser.pixels(), overlay(kept, mean, vmax=0.11, opacity=0.83))
    move(browser, "threshold", 60)
    close(browser.pixels(), overlay(kept, mean, vmin=0.066, vmax=0.11, opacity=0.83))
    move(browser, "threshold", 0)
    browser.click("#style button", 1)
    close(browser.pixels(), overlay(kept, mean, vmax=0.11, style="light"))
    assert browser.value("opacity.disabled")


def assert_drawn(browser: Any, page: Path, values: np.ndarray, **scale: Any) -> None:
    """Check an overlay: a browser may round a value to the next of its 256 levels."""
    size = tuple(browser.value("[overlay.height, overlay.width]"))
    large = browser.value(
        "(() => { const c = document.createElement('canvas'); c.width = overlay.width;"
        "c.height = overlay.height; const p = c.getContext('2d'); p.imageSmoothingQuality = 'high';"
        "p.drawImage(photo, 0, 0, c.width, c.height); return c.toDataURL() })()"
    )
    pixels = np.array(Image.open(io.BytesIO(base64.b64decode(large.split(",")[1]))).convert("RGB"))
    enlarged = Image.fromarray(embedded(page)).resize(size[::-1], Image.Resampling.BICUBIC)
    assert np.abs(pixels.astype(int) - np.array(enlarged)).mean() < 2
    level = scale["vmax"] * (1 + bool(scale.get("signed"))) / 255
    near = []
    for step in (-level, 0.0, level):
        item = AttentionMap(torch.from_numpy(values + step).float(), "a", "gradient", CROP)
        near.append(overlay(pixels, item.resize_to_image(size).numpy(), **scale))
    drawn = browser.pixels().astype(int)
    assert (drawn >= np.min(near, 0).astype(int) - 2).all()
    assert (drawn <= np.max(near, 0).astype(int) + 2).all()
    assert np.abs(drawn - near[1]).mean() < 0.5  # most are not


def back(layer: int) -> np.ndarray:
    """Return the weights of a layer as the page has them."""
    codes, tops = quantize_weights(LAYERS[layer].weights.numpy())
    return (codes / 255.0) ** 2 * tops[..., None, None]


def test_methods_and_heads_are_drawn_as_python_draws_them(
    browser: Any, pages: dict[str, Path]
) -> None:
    page = pages["explorer"]
    browser.alive(page)
    assert browser.text("#chosen") == "Grad-CAM"
    assert_drawn(browser, page, MAPS[0].values.numpy(), vmax=0.9)
    browser.click("#rows button", 1)
    assert_drawn(browser, page, MAPS[1].values.numpy(), vmax=2.0, signed=True)
    assert browser.text("#low") == "\u2264 \u22122.0"
    assert "Target" not in browser.text("#facts")
    browser.click("#tiles button", 1)
    assert browser.text("#chosen") == "Layer 0, head 1"
    assert "query: the class token" in browser.text("#which")
    rows = back(0)[:, 0]
    shared = np.quantile(rows.max((1, 2)), 0.8, method="lower")
    assert_drawn(browser, page, rows[1], vmax=max(shared, 4 / 15))
    ramp = browser.pixels("#ramp")[7].astype(int)
    tile = browser.pixels("#tiles canvas").reshape(-1, 3).astype(int)
    assert np.abs(tile[:, None] - ramp[None]).sum(2).min(1).max() <= 9  # colors of the scale
    browser.click("#ends button", 1)
    assert_drawn(browser, page, rows[1], vmax=rows[1].max())
    browser.click("#tiles button", 3)
    assert browser.text("#chosen") == "Layer 0, mean of all heads"
    assert_drawn(browser, page, rows.mean(0), vmax=rows.mean(0).max())
    browser.click("#tiles button", 0)
    browser.mouse((30 + 75) / 160, 0.55, click=True)  # the fourth of five columns, the middle row
    outline = "(r => [r.left, r.right])(boxes.querySelector('.over').getBoundingClientRect())"
    start, width = browser.value("(r => [r.left, r.width])(photo.getBoundingClientRect())")
    sides = [(side - start) / width for side in browser.value(outline)]
    assert sides == pytest.approx([(30 + 60) / 160, (30 + 80) / 160], abs=0.02)
    row = back(0)[0, 2 + 5 + 3]
    assert_drawn(browser, page, row, vmax=row.max())
    browser.click("#tiles button", 4)  # another layer, whose grid is finer
    row = back(1)[0, 3 * 10 + 7]
    assert_drawn(browser, page, row, vmax=row.max())
    browser.click("#queries button", 2)
    row = back(1)[0].mean(0)
    assert_drawn(browser, page, row, vmax=row.max())


@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_exif_rotated_photo_is_shown_upright(browser: Any, tmp_path: Path, fit: ResizeMode) -> None:
    encoder = SmallEncoder((24, 40), channels=12)
    model = ShowAttendTell((*SPECIAL_TOKENS, *WORDS), encoder, hidden_size=7).eval()
    exif, upright = Image.Exif(), Image.fromarray(photo(653, 211))
    exif[274] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.png", exif=exif)
    (shown,) = caption(model, tmp_path / "a.png", resize_mode=fit, min_length=3, max_length=3)
    browser.alive(write(tmp_path / "a.html", caption_html(tmp_path / "a.png", shown)))
    browser.click("#rows button", 1)
    expected = np.asarray(draw(upright, shown.maps[1], vmax=shown.maps.display_range()[1]))
    close(browser.pixels(), expected, 20)  # the photo in the page is a JPEG
