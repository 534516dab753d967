"""Controls of pages of a photo in a browser: values, zoom, comparing, links, downloads."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from caption_results import caption_of
from explorer_results import explained_model, layer_of, method_map
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.cards import Card
from visattn.results.values import Answer
from visattn.viz.heatmap import overlay
from visattn.viz.html.caption_page import caption_html
from visattn.viz.html.explorer_page import explorer_html
from visattn.viz.html.history_page import HistoryRow, history_page
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
CLASSES = [
    [method_map("Grad-CAM", RNG.random(grid), PLACE, class_name=name, layer=layer,
                probability=share)
     for name, share in (("dog", 0.75), ("cat", 0.25))]
    for grid, layer in (((6, 10), "layer3"), (GRID, "layer4"))
]  # fmt: skip


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
    options = {"layers": layers, "maps": [METHOD, GRADIENT], "class_maps": CLASSES, **options}
    model = explained_model(name)
    return explorer_html(LoadedImage(PHOTO), PLACE, explained=model, name="dog.jpg", **options)


def question_page() -> str:
    values = torch.from_numpy(RNG.random((2, *GRID)))
    maps = AttentionMap(values, "hops", "tokens", PLACE, labels=("1", "2"))
    answer = Answer("Red?", ("red",), (("yes", 0.75), ("no", 0.25)), maps, torch.ones(2, 1))
    return answer_html(PHOTO, [answer], name="dog.jpg")


def history() -> str:
    drawn = [thumbnail(PHOTO)] * 3
    maps = [RNG.random(GRID), None, 3 * RNG.random(GRID)]
    other = RNG.integers(0, 256, (120, 60, 3), dtype=np.uint8)
    rows = [
        HistoryRow("1-dog", PHOTO, drawn, ["dog 1", "no map", "dog 2"], PLACE, maps),
        HistoryRow(
            "2-cat", other, drawn, ["cat", "cat", "cat"], Geometry.identity((120, 60)), maps
        ),
    ]
    return history_page(rows, [0, 500, 1000], num_steps=3, method="Grad-CAM")


def several() -> str:
    """A caption of three photos, of which two have the same size."""
    other = RNG.integers(0, 256, (120, 60, 3), dtype=np.uint8)
    photos = [LoadedImage(each, name=f"{name}.png")
              for name, each in (("a", PHOTO), ("b", 255 - PHOTO), ("c", other))]  # fmt: skip
    maps = [AttentionMap(torch.from_numpy(RNG.random((3, *GRID), np.float32)), "attend", "words",
                         Geometry.identity(each.size)) for each in photos]  # fmt: skip
    said = Caption(WORDS, (), (), maps[0], -0.5, finished=True, further_maps=tuple(maps[1:]))
    return caption_html(photos, said)


def index() -> str:
    return index_page([Card("dog", "dog.html", "a dog", thumbnail(PHOTO))])


PAGES = {
    "caption": caption_page, "explorer": explorer_page, "question": question_page,
    "history": history, "several": several, "index": index,
}  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in PAGES.items():
        (folder / f"{name}.html").write_text(make(), encoding="utf-8")
    (folder / "second.html").write_text(explorer_page("ResNet"), encoding="utf-8")
    return {path.stem: path for path in folder.iterdir()}


def opened(browser: Any, path: Path, **window: Any) -> None:
    browser.open(path, still=True, **window)
    if path.stem != "index":
        browser.wait("document.documentElement.classList.contains('alive')")


def text(browser: Any, selector: str) -> str:
    return browser.value(f"document.querySelector({selector!r}).innerText")


def parts(pattern: str, content: str) -> tuple[str, ...]:
    match = re.search(pattern, content)
    assert match is not None
    return match.groups()


def mouse(browser: Any, x: float, y: float, kind: str = "mouseMoved", **more: Any) -> None:
    """Move the mouse to a position of the photo, in fractions of its frame."""
    left, top, width, height = browser.value(
        "(r => [r.x, r.y, r.width, r.height])(frame.getBoundingClientRect())"
    )
    at = {"x": left + x * width, "y": top + y * height}
    browser.call("Input.dispatchMouseEvent", type=kind, **at, **more)


def pixels(browser: Any, canvas: str) -> np.ndarray:
    content = browser.value(f"document.querySelector({canvas!r}).toDataURL()").split(",")[1]
    return np.array(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB"))


def saved(browser: Any, button: str) -> bytes:
    """Return the file that a button saves."""
    browser.value(
        "window.blob = null;"
        "URL.createObjectURL = (blob) => { window.blob = blob; return 'data:,'; }; 0"
    )
    browser.click(button)
    browser.wait("window.blob !== null")
    content = browser.value(
        "new Promise((done) => { const reader = new FileReader();"
        "reader.onload = () => done(reader.result); reader.readAsDataURL(window.blob) })"
    )
    return base64.b64decode(content.split(",")[1])


def test_the_value_under_the_pointer_is_that_of_the_map(
    browser: Any, pages: dict[str, Path]
) -> None:
    opened(browser, pages["explorer"])
    browser.click("#cells button", 1)
    for row, column in ((0, 0), (2, 4), (1, 2)):
        mouse(browser, (column + 0.5) / 5, (row + 0.5) / 3)
        value, x, y = parts(r"([\d.e]+) \u00b7 x (\d+), y (\d+)", text(browser, "#value"))
        assert float(value) == pytest.approx(float(METHOD.values[row, column]), rel=0.01)
        assert int(x) == pytest.approx(160 * (column + 0.5) / 5, abs=1)
        assert int(y) == pytest.approx(96 * (row + 0.5) / 3, abs=1)
    browser.hover("header .name")
    assert browser.value("value.hidden")
    opened(browser, pages["caption"])
    mouse(browser, 0.9, 0.84)
    assert float(text(browser, "#value").split(" ")[0]) > 0
    browser.press("Escape")
    assert browser.value("value.hidden")


def test_a_link_restores_what_is_shown_and_adds_no_history(
    browser: Any, pages: dict[str, Path]
) -> None:
    opened(browser, pages["caption"])
    steps = browser.value("history.length")
    browser.press("Home", "ArrowRight", "End")
    browser.click("#style button", 1)
    browser.wait("location.hash === '#word=3&style=light'")
    assert browser.value("history.length") == steps
    for hash_, word in (
        ("#word=2&cells=1", "red"),
        ("#word=all", "Mean of all maps"),
        ("#word=none", "Photo alone"),
    ):
        browser.value(f"location.hash = {hash_!r}; 0")
        browser.wait(f"word.innerText === {word!r}")
    browser.value("location.hash = '#word=1&threshold=40'; location.reload(); 0")
    browser.wait("document.documentElement?.classList.contains('alive') && word.innerText === 'a'")
    assert text(browser, "#threshold-out") == "40 %"
    for bad in ("#word=constructor", "#word=99&opacity=x", "#zoom=a,b&with=%ff&mode=no"):
        browser.value(f"location.hash = {bad!r}; 0")
    browser.value("location.hash = '#word=2'; 0")
    browser.wait("word.innerText === 'red'")
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("hash_", "shown"),
    [
        ("layer=1&head=1", "Layer 1, head 1"),
        ("layer=2&head=mean&query=2", "Layer 2, mean of all heads"),
        ("map=2", "gradients"),
        ("class=2&depth=1", "Grad-CAM, layer layer3"),
        ("map=none", "Photo alone"),
    ],
)  # fmt: skip
def test_explorer_links_name_heads_maps_and_classes(
    browser: Any, pages: dict[str, Path], hash_: str, shown: str
) -> None:
    opened(browser, pages["explorer"])
    browser.value(f"location.hash = {hash_!r}; 0")
    browser.wait(f"shown.innerText === {shown!r}")
    fields = "[...new URLSearchParams(location.hash.slice(1))].map(String).sort()"
    browser.value("document.querySelector('#cells button:not([aria-checked=true])').click()")
    browser.wait(f"{fields}.includes('cells,1')")
    wanted = sorted(["cells,1", *(field.replace("=", ",") for field in hash_.split("&"))])
    assert browser.value(fields) == wanted


def test_zoom_by_buttons_keys_and_wheel_and_pan_by_dragging(
    browser: Any, pages: dict[str, Path]
) -> None:
    opened(browser, pages["explorer"])
    scale = "photo.getBoundingClientRect().width / frame.getBoundingClientRect().width"
    mouse(browser, 0.5, 0.5)
    browser.click("#closer")
    assert browser.value(scale) == pytest.approx(1.5)
    browser.press("+")
    assert browser.value(scale) == pytest.approx(2.25)
    browser.press("0")
    assert browser.value(scale) == pytest.approx(1)
    mouse(browser, 0.25, 0.5, "mouseWheel", deltaX=0, deltaY=-100, modifiers=2)
    browser.wait(f"{scale} > 2.5")
    kept = (
        "((p, f) => (p.left - f.left) / f.width)"
        "(photo.getBoundingClientRect(), frame.getBoundingClientRect())"
    )
    assert browser.value(kept) == pytest.approx(0.25 - 0.25 * browser.value(scale), abs=0.01)
    before, query = browser.value(kept), text(browser, "#query")
    browser.click("#cells button", 1)
    mouse(browser, 0.7, 0.5)
    there = text(browser, "#value").split("x ")[1]
    mouse(browser, 0.7, 0.5, "mousePressed", button="left", clickCount=1)
    mouse(browser, 0.5, 0.5, "mouseMoved", button="left", buttons=1)
    mouse(browser, 0.5, 0.5, "mouseReleased", button="left", clickCount=1)
    assert browser.value(kept) == pytest.approx(before - 0.2, abs=0.01)
    assert text(browser, "#value").split("x ")[1].split(",")[0] == there.split(",")[0]
    assert text(browser, "#query") == query  # the end of a drag selects no patch
    browser.value("document.activeElement.blur()")
    left = browser.value(kept)
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight",
                 windowsVirtualKeyCode=39, modifiers=8)  # fmt: skip
    assert browser.value(kept) == pytest.approx(max(left - 0.1, 1 - browser.value(scale)), abs=0.01)
    browser.wait("location.hash.includes('zoom=')")
    browser.click("#whole")
    assert browser.value(scale) == pytest.approx(1)


def test_the_wheel_alone_scrolls_the_page(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["explorer"], height=300)
    mouse(browser, 0.5, 0.5, "mouseWheel", deltaX=0, deltaY=100)
    browser.wait("scrollY > 0")
    assert browser.value("document.querySelector('.pan').style.transform") == ""


def choose(browser: Any, name: str) -> None:
    browser.value(
        f"other.value = [...other.options].findIndex((o) => o.text === {name!r}) - 1;"
        "other.dispatchEvent(new Event('change'))"
    )
    browser.wait("document.getElementById('second') && !second.hidden")


def test_two_maps_side_by_side_behind_a_border_and_in_turns(
    browser: Any, pages: dict[str, Path]
) -> None:
    opened(browser, pages["explorer"])
    first = pixels(browser, "#overlay")
    choose(browser, "gradients")
    assert (pixels(browser, "#overlay") == first).all()
    second = pixels(browser, "#second canvas")
    assert second.shape == first.shape
    assert (second != first).any()
    boxes = "[frame, second].map((e) => (r => [r.left, r.right])(e.getBoundingClientRect()))"
    (_, right), (left, _) = browser.value(boxes)
    assert right <= left
    assert "gradients (" in text(browser, "#second-title")
    mouse(browser, 0.5, 0.5)
    assert text(browser, "#value").count("|") == 1
    browser.click("#mode button", 1)
    places = browser.value(boxes)
    assert places[0] == places[1]
    browser.value("divider.value = 25; divider.dispatchEvent(new Event('input'))")
    assert browser.value("getComputedStyle(second).clipPath") == "inset(0px 0px 0px 25%)"
    browser.click("#mode button", 2)
    browser.wait("getComputedStyle(second).visibility === 'hidden'")
    browser.wait("getComputedStyle(second).visibility === 'visible'")
    browser.wait("location.hash.includes('with=gradients&mode=flicker')")
    browser.value("other.value = -1; other.dispatchEvent(new Event('change'))")
    browser.wait("second.hidden && !views.classList.contains('flicker')")


def test_a_held_head_is_compared_with_another(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["explorer"])
    browser.click("#tiles button", 0)
    kept = pixels(browser, "#overlay")
    browser.click("#hold")
    browser.wait("document.getElementById('second') && !second.hidden")
    browser.value("document.querySelectorAll('#tiles button')[4].click()")
    browser.wait("shown.innerText === 'Layer 1, head 1'")
    assert "held: Layer 0, head 0" in text(browser, "#second-title")
    assert np.abs(pixels(browser, "#second canvas").astype(int) - kept).max() <= 2
    assert (pixels(browser, "#overlay") != kept).any()


def test_maps_of_another_model_come_from_its_page(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["explorer"])
    document = browser.call("DOM.getDocument")["root"]["nodeId"]

    def pick(path: Path) -> None:
        node = browser.call("DOM.querySelector", nodeId=document, selector="#page-file")["nodeId"]
        browser.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    pick(pages["second"])
    browser.wait("opened.innerText.includes('maps of second.html')")
    assert "ResNet: Grad-CAM" in text(browser, "#second-title")
    pick(pages["index"])
    browser.wait("opened.innerText.includes('is not a page of visattn with maps of this photo')")
    assert browser.complaints() == []
    assert browser.requests() == [pages["explorer"].as_uri()]


def test_the_view_is_saved_as_svg_and_png(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["explorer"])
    choose(browser, "gradients")
    figure = saved(browser, "#save-svg").decode()
    assert figure.count("<image ") == 3  # two maps and the scale
    for said in ("Grad-CAM", "gradients (", "dog.jpg", "attribution"):
        assert said in figure
    image = Image.open(io.BytesIO(saved(browser, "#save-png")))
    width, height = parts(r'width="(\d+)" height="(\d+)"', figure)
    assert image.size == (2 * int(width), 2 * int(height))
    photo = np.asarray(image.convert("RGB"))[: int(2 * 640 * 0.6), :1280]
    shown = np.asarray(Image.fromarray(pixels(browser, "#overlay")).resize((1280, 768)))
    assert np.abs(photo.astype(int) - shown).mean() < 6  # the map is in it, resampled
    browser.click("#cite")
    assert "visattn" in browser.value("copied.value")
    assert browser.complaints() == []


def test_class_and_layer_are_selected_and_played(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["explorer"])
    top = max(float(each.values.max()) for each in CLASSES[1])
    browser.click("#class-list button", 1)
    assert text(browser, "#shown") == "Grad-CAM, layer layer4"
    assert text(browser, "#query") == "cat, 25 %"
    photo = np.array(
        Image.open(io.BytesIO(base64.b64decode(browser.value("photo.src").split(",")[1])))
    )
    size = browser.value("[overlay.height, overlay.width]")
    large = np.array(Image.fromarray(photo).resize(size[::-1], Image.Resampling.BICUBIC))
    wanted = overlay(large, CLASSES[1][1].resize_to_image(tuple(size)).numpy(), vmax=top)
    assert np.abs(pixels(browser, "#overlay").astype(int) - wanted).mean() <= 3
    browser.value("depth.focus()")
    browser.press("Home")
    assert text(browser, "#shown") == "Grad-CAM, layer layer3"
    browser.value(
        "window.titles = []; new MutationObserver(() => titles.push(shown.innerText))"
        ".observe(shown, {childList: true})"
    )
    browser.click("#play")
    browser.wait("play.ariaPressed === 'false'")
    assert browser.value("[...new Set(titles)]") == [
        "Grad-CAM, layer layer3",
        "Grad-CAM, layer layer4",
    ]
    assert text(browser, "#query") == "cat, 25 %"


def test_tiles_have_the_colors_of_the_scale(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["explorer"])
    browser.click("#tiles button", 0)
    ramp = pixels(browser, "#ramp")[7].astype(int)
    for style in (0, 1):
        browser.click("#style button", style)
        ramp = pixels(browser, "#ramp")[7].astype(int)
        tile = pixels(browser, "#tiles canvas").reshape(-1, 3).astype(int)
        assert np.abs(tile[:, None] - ramp[None]).sum(2).min(1).max() <= 9


def test_the_page_says_where_the_peak_lies(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["caption"])
    assert browser.value("spoken.getAttribute('role')") == "status"
    browser.press("End")
    browser.wait("spoken.textContent === 'dog, Word 3 of 3, peak: lower right'")
    assert "lower right" in text(browser, "#facts")


def test_steps_of_a_training_are_compared(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["history"])
    assert text(browser, "#shown") == "Step 1,000"
    last = pixels(browser, "#overlay")
    browser.press("ArrowLeft")
    assert browser.value("overlay.hidden")  # no map was kept of this step
    browser.press("ArrowLeft")
    assert (pixels(browser, "#overlay") != last).any()
    choose(browser, "1-dog, step 1,000")
    assert np.abs(pixels(browser, "#second canvas").astype(int) - last).max() <= 2
    browser.click("#images button", 1)
    browser.wait("document.getElementById('step-note').innerText.startsWith('2-cat')")
    assert browser.value("second.hidden && photo.naturalHeight === 120")
    shape = browser.value("(r => r.width / r.height)(frame.getBoundingClientRect())")
    assert shape == pytest.approx(0.5, abs=0.02)


def test_a_photo_of_several_is_compared_with_maps_on_it_alone(
    browser: Any, pages: dict[str, Path]
) -> None:
    opened(browser, pages["several"])
    browser.press("Home")
    first = pixels(browser, "#overlay")
    small = pixels(browser, ".strip figure:nth-child(2) canvas").astype(int)
    browser.click("#hold")
    browser.wait("document.getElementById('second') && !second.hidden")
    assert np.abs(pixels(browser, "#second canvas").astype(int) - first).max() <= 2
    browser.click(".strip button", 1)
    browser.wait("photo.alt === 'b.png'")
    browser.wait("second.hidden")
    assert np.abs(pixels(browser, "#overlay").astype(int) - small).max() <= 2
    listed = browser.value("[...other.options].slice(1).map((each) => each.innerText)")
    assert len(listed) == len(WORDS) + 1  # neither those on a, of the same size, nor what is held
    assert all(name.startswith("b.png, ") for name in listed)
    browser.click(".strip .frame", 2)
    browser.wait("photo.naturalHeight === 120 && location.hash.includes('image=3')")
    browser.click("#closer")
    assert browser.value("frame.classList.contains('zoomed')")
    opened(browser, pages["several"])
    browser.value("location.hash = 'image=2&word=2&with=b.png, word 3: dog&mode=side'")
    browser.wait("document.getElementById('second') && !second.hidden && photo.alt === 'b.png'")
    assert text(browser, "#first-title") == "\u201cred\u201d, b.png: a red dog"
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["caption", "explorer", "question", "history", "several"])
def test_on_a_phone_the_photo_stays_above_the_controls(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    opened(browser, pages[name], width=390, height=844, touch=True)
    for control in ("threshold", "other", "cite"):
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
    opened(browser, pages[name], width=width, height=844, touch=width < 700)
    small = browser.value(
        "[...document.querySelectorAll('button, select, a, input, summary')].filter((e) => {"
        "const r = e.getBoundingClientRect(); return r.width && (r.width < 23.9 || r.height < 23.9)"
        "&& !e.closest('#tiles, label') }).map((e) => e.outerHTML.slice(0, 90))"
    )
    assert small == []
    assert browser.value("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("name", ["caption", "explorer", "question", "history", "several"])
def test_forced_colors_show_what_is_selected(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    opened(browser, pages[name])
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
