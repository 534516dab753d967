"""HTML pages of the attention explorer in a browser: mouse, keys, touch."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from explorer_results import explained_model, layer_of, method_map
from PIL import Image

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.results.attention_map import AttentionMap
from visattn.results.scale import MapScale
from visattn.viz.heatmap import overlay
from visattn.viz.html.explorer_page import explorer_html, quantize_weights

RNG = np.random.default_rng(3)
GRID, SIZE = (3, 5), (96, 160)
GEOMETRY = Geometry.identity(SIZE).cropped(0, 30, (96, 100)).resized((60, 100))
EVIL = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=2>"


def attention(heads: int, askers: int, grid: tuple[int, int]) -> np.ndarray:
    cells = grid[0] * grid[1]
    weights = RNG.random((heads, askers + cells, *grid)) ** 4
    return 0.9 * weights / weights.sum((2, 3), keepdims=True)


LAYERS = (
    layer_of(0, attention(3, 2, GRID), ("class", "register"), 2),
    layer_of(1, attention(2, 0, (6, 10))),
)
DOG = {"class_name": "dog", "target": 0, "probability": 0.91}
MAPS = (
    method_map("Grad-CAM", RNG.random((4, 6)), GEOMETRY, **DOG),
    method_map("gradients", RNG.normal(size=(60, 100)), GEOMETRY, signed=True),
)
SCALES = (MapScale("image", 0.0, 0.9), MapScale("image", 0.0, 2.0, signed=True))


def photo() -> np.ndarray:
    down, along = np.mgrid[: SIZE[0], : SIZE[1]] / max(SIZE)
    layers = (np.sin(9 * down + 3 * along), np.cos(5 * along), np.sin(11 * along * down))
    return np.stack([127 + 90 * layer for layer in layers], axis=-1).astype(np.uint8)


def write(path: Path, **options: Any) -> Path:
    options = {"layers": LAYERS, "maps": MAPS, "scales": SCALES, "name": "dog.jpg",
               "subject": explained_model(), **options}  # fmt: skip
    page = explorer_html(LoadedImage(photo()), GEOMETRY, **options)
    path.write_text(page, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("pages") / "a.html", index="index.html")


def expected(page: Path, browser: Any, values: np.ndarray, **scale: Any) -> np.ndarray:
    """Return Python's overlay on the embedded photo, at the size on the page."""
    embedded = page.read_text(encoding="utf-8").split("data:image/jpeg;base64,")[1].split('"')[0]
    small = Image.open(io.BytesIO(base64.b64decode(embedded))).convert("RGB")
    size = browser.value("[overlay.height, overlay.width]")
    large = browser.value(
        "(() => { const c = document.createElement('canvas'); c.width = overlay.width;"
        "c.height = overlay.height; const p = c.getContext('2d'); p.imageSmoothingQuality = 'high';"
        "p.drawImage(photo, 0, 0, c.width, c.height); return c.toDataURL() })()"
    )
    assert small.size == (SIZE[1], SIZE[0])
    pixels = Image.open(io.BytesIO(base64.b64decode(large.split(",")[1]))).convert("RGB")
    item = AttentionMap(torch.from_numpy(values).float(), "a", "gradient", GEOMETRY)
    return overlay(np.array(pixels), item.resize_to_image(tuple(size)).numpy(), **scale)


def assert_drawn(browser: Any, page: Path, values: np.ndarray, **scale: Any) -> None:
    """Check the overlay on the page: a browser may round a value to the next of its 256 levels."""
    level = scale["vmax"] * (1 + bool(scale.get("signed"))) / 255
    near = [expected(page, browser, values + step, **scale) for step in (-level, 0.0, level)]
    shown = browser.pixels().astype(int)
    assert (shown >= np.min(near, 0).astype(int) - 2).all()
    assert (shown <= np.max(near, 0).astype(int) + 2).all()
    assert np.abs(shown - near[1]).mean() < 0.5  # most are not


def back(weights: np.ndarray) -> np.ndarray:
    codes, tops = quantize_weights(weights)
    return (codes / 255.0) ** 2 * tops[..., None, None]


def test_method_overlay_matches_python(browser: Any, page: Path) -> None:
    browser.alive(page)
    assert browser.text("#shown") == "Grad-CAM"
    assert_drawn(browser, page, MAPS[0].values.numpy(), vmax=0.9)
    browser.click("#maps button", 1)
    assert_drawn(browser, page, MAPS[1].values.numpy(), vmax=2.0, signed=True)
    assert browser.text("#low") == "\u2264 \u22122.0"
    assert "Target" not in browser.text("#facts")


def test_tile_shows_its_head_on_the_shared_scale(browser: Any, page: Path) -> None:
    browser.alive(page)
    browser.click("#tiles button", 1)
    assert browser.text("#shown") == "Layer 0, head 1"
    assert "query: the class token" in browser.text("#query")
    rows = back(LAYERS[0].weights.numpy())[:, 0]
    top = max(sorted(row.max() for row in rows)[1], 4 / 15)
    assert_drawn(browser, page, rows[1], vmax=top)
    browser.click("#shared button", 1)
    assert_drawn(browser, page, rows[1], vmax=rows[1].max())
    browser.click("#tiles button", 3)
    assert browser.text("#shown") == "Layer 0, mean of all heads"
    assert_drawn(browser, page, rows.mean(0), vmax=rows.mean(0).max())


def test_clicking_the_photo_selects_the_query(browser: Any, page: Path) -> None:
    browser.alive(page)
    browser.click("#tiles button", 0)
    browser.mouse((30 + 75) / 160, 0.55, click=True)  # the fourth of five columns, the middle row
    assert "query: this patch" in browser.text("#query")
    left, right = browser.value(
        "(r => [r.left, r.right])(boxes.querySelector('.over').getBoundingClientRect())"
    )
    start, width = browser.value("(r => [r.left, r.width])(photo.getBoundingClientRect())")
    assert (left - start) / width == pytest.approx((30 + 60) / 160, abs=0.02)
    assert (right - start) / width == pytest.approx((30 + 80) / 160, abs=0.02)
    browser.click("#shared button", 1)
    row = back(LAYERS[0].weights.numpy())[0, 2 + 5 + 3]
    assert_drawn(browser, page, row, vmax=row.max())
    browser.click("#tiles button", 4)  # another layer, whose grid is finer
    assert "this patch" in browser.text("#query")
    row = back(LAYERS[1].weights.numpy())[0, 3 * 10 + 7]
    assert_drawn(browser, page, row, vmax=row.max())


def test_clicking_outside_the_input_selects_no_query(browser: Any, page: Path) -> None:
    browser.alive(page)
    before = browser.shown()
    browser.mouse(0.05, 0.5, click=True)
    assert browser.shown() == before


def test_layers_without_the_query_token_are_disabled(browser: Any, page: Path) -> None:
    browser.alive(page)
    names = "[...document.querySelectorAll('#queries button')].map(e => e.innerText)"
    assert browser.value(names) == ["Class token", "Register token", "All patches"]
    off = "[...document.querySelectorAll('#tiles button')].map(e => e.disabled)"
    assert browser.value(off) == [False] * 4 + [True] * 3
    browser.click("#queries button", 2)
    assert browser.value(off) == [False] * 7
    browser.click("#shared button", 1)
    browser.click("#tiles button", 4)
    row = back(LAYERS[1].weights.numpy())[0].mean(0)
    assert_drawn(browser, page, row, vmax=row.max())


def test_arrow_keys_move_over_tiles_and_photo(browser: Any, page: Path) -> None:
    browser.alive(page)
    browser.click("#queries button", 2)
    browser.click("#tiles button", 0)
    visited = []
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "End", "ArrowUp"):
        browser.press(key)
        visited.append(browser.text("#shown"))
    assert visited == [
        "Layer 0, head 1", "Layer 1, head 1", "Layer 1, head 0", "Layer 1, mean of all heads",
        "Layer 0, head 2",
    ]  # fmt: skip
    browser.value("frame.focus()")
    browser.press("ArrowLeft", "ArrowLeft")
    assert "query: this patch" in browser.text("#query")
    browser.press("Escape")
    assert browser.shown() == "photo"


def test_hovering_previews_a_tile_and_leaving_restores_the_selection(
    browser: Any, page: Path
) -> None:
    browser.alive(page)
    before = browser.shown()
    browser.hover("#tiles button", 2)
    assert browser.text("#shown") == "Layer 0, head 2"
    assert browser.shown() != before
    browser.hover("header .name")
    assert browser.shown() == before


def test_tap_selects_the_query(browser: Any, page: Path) -> None:
    browser.alive(page, width=360, height=740, touch=True)
    browser.tap("#tiles button", 0)
    browser.wait("shown.innerText === 'Layer 0, head 0'")
    browser.tap("#frame")
    browser.wait("query.innerText.includes('this patch')")


@pytest.mark.parametrize("width", [360, 1280])
def test_page_has_no_horizontal_overflow(browser: Any, tmp_path: Path, width: int) -> None:
    wide = layer_of(23, attention(24, 1, GRID), ("class",), 1, "x" * 90)
    subject = explained_model("y" * 250)
    path = write(tmp_path / "a.html", layers=[wide] * 24, name="x" * 250, subject=subject)
    browser.alive(path, width=width, height=740, dark=True)
    assert browser.value("document.documentElement.scrollWidth") == width


def test_model_without_heads_has_methods_only(browser: Any, tmp_path: Path) -> None:
    browser.alive(write(tmp_path / "a.html", layers=()))
    assert browser.value("heads.hidden")
    assert browser.value("queries.children.length") == 0
    before = browser.shown()
    browser.mouse(0.5, 0.5, click=True)
    assert browser.shown() == before
    assert browser.complaints() == []


def test_texts_are_escaped_and_no_request_is_sent(browser: Any, tmp_path: Path) -> None:
    layer = layer_of(0, attention(1, 1, GRID), (EVIL,), 1, EVIL)
    evil = method_map(EVIL, np.ones((2, 2)), GEOMETRY, options={EVIL: EVIL}, class_name=EVIL)
    subject = explained_model(EVIL)
    options = {"layers": [layer], "maps": [evil], "scales": None, "name": EVIL}
    path = write(tmp_path / "a.html", subject=subject, **options)
    browser.alive(path)
    browser.click("#tiles button", 0)
    browser.mouse(0.5, 0.5, click=True)
    browser.click("#queries button", 0)
    assert browser.value("typeof pwned") == "undefined"
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]


def test_without_javascript_the_photo_is_shown(browser: Any, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(page)
    page_data = browser.text("body")
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "dog, 91 %" in page_data
    assert "scripts are off" in page_data
    assert "Opacity" not in page_data
