"""Overlays in the browser equal those of Python, pixel by pixel."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.images.resize import ResizeSpec
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.pipelines.captioning import ResizeMode, caption
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.results.kinds import SPECIAL_TOKENS
from visattn.viz.heatmap import Style, overlay
from visattn.viz.html.caption_page import caption_html
from visattn.viz.maps import overlay as draw

WORDS = ("a", "red", "dog")
TOLERANCE = 2  # of 255


def photo(y: int, x: int) -> np.ndarray:
    """Return a landscape with soft edges, on which decoders agree."""
    down, along = np.mgrid[:y, :x] / max(y, x)
    layers = (np.sin(9 * down + 3 * along), np.cos(5 * along - down), np.sin(11 * along * down))
    return np.stack([127 + 120 * layer for layer in layers], axis=-1).astype(np.uint8)


def grids(y: int, x: int) -> torch.Tensor:
    maps = torch.rand(3, y, x, generator=torch.Generator().manual_seed(5)) ** 4
    return maps / maps.sum((1, 2), keepdim=True)


def write(path: Path, pixels: np.ndarray, maps: AttentionMap, **options: Any) -> Image.Image:
    """Write a page and return the embedded photo."""
    shown = Caption(WORDS, (), (), maps, -0.5, finished=True)
    page = caption_html(pixels, shown, **options)
    path.write_text(page, encoding="utf-8")
    embedded = page.split("data:image/jpeg;base64,")[1].split('"')[0]
    return Image.open(io.BytesIO(base64.b64decode(embedded))).convert("RGB")


GEOMETRIES = {
    "crop": ResizeSpec((224, 224)).geometry((211, 653)),
    "tall crop": ResizeSpec((224, 160), shorter=170).geometry((653, 211)),
    "squash": ResizeSpec((224, 224), mode="squash").geometry((211, 653)),
    "pad": ResizeSpec((224, 224), mode="pad").geometry((211, 653)),
    "mirror": ResizeSpec((224, 224)).geometry((211, 653)).flipped(),
}


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    distance = np.abs(actual.astype(int) - expected)
    assert distance.max() <= TOLERANCE, f"{(distance.max(2) > TOLERANCE).mean():.2%} of pixels"


@pytest.mark.parametrize("name", GEOMETRIES)
def test_map_positions_match_python(browser: Any, tmp_path: Path, name: str) -> None:
    geometry = GEOMETRIES[name]
    maps = AttentionMap(grids(5, 7), "look", "words", geometry, labels=WORDS)
    kept = write(tmp_path / "a.html", photo(*geometry.image_size), maps, vmax=0.11)
    browser.alive(tmp_path / "a.html")
    for word, smooth in ((1, True), (2, False)):
        browser.click("#words button", word)
        browser.click("#cells button", 0 if smooth else 1)
        placed = maps[word].resize_to_image((kept.height, kept.width), smooth=smooth).numpy()
        close(browser.pixels(), overlay(np.array(kept), placed, vmax=0.11))


def test_controls_match_the_python_options(browser: Any, tmp_path: Path) -> None:
    geometry = GEOMETRIES["pad"]
    maps = AttentionMap(grids(5, 7), "look", "words", geometry, labels=WORDS)
    kept = np.array(write(tmp_path / "a.html", photo(*geometry.image_size), maps, vmax=0.09))
    mean = AttentionMap(maps.values.mean(0), "look", "words", geometry).resize_to_image()
    browser.alive(tmp_path / "a.html")
    browser.click("#mean")
    assert browser.value("document.getElementById('opacity').value") == "80"
    browser.value("document.getElementById('opacity').focus()")
    browser.press(*["ArrowRight"] * 3)
    close(browser.pixels(), overlay(kept, mean.numpy(), vmax=0.09, opacity=0.83))
    browser.value("document.getElementById('threshold').focus()")
    browser.press("End", *["ArrowLeft"] * 35)
    close(browser.pixels(), overlay(kept, mean.numpy(), vmin=0.6 * 0.09, vmax=0.09, opacity=0.83))
    browser.press("Home")
    browser.click("#style button", 1)
    close(browser.pixels(), overlay(kept, mean.numpy(), vmax=0.09, style="light"))
    assert browser.value("document.getElementById('opacity').disabled")


def test_scale_of_the_words_can_be_switched(browser: Any, tmp_path: Path) -> None:
    geometry = GEOMETRIES["squash"]
    values = (
        torch.tensor([0.3, 0.5, 0.9])[:, None, None]
        * grids(5, 7)
        / grids(5, 7).amax((1, 2), keepdim=True)
    )
    maps = AttentionMap(values, "look", "words", geometry, labels=WORDS)
    kept = np.array(write(tmp_path / "a.html", photo(*geometry.image_size), maps, vmax=0.2))
    browser.alive(tmp_path / "a.html")
    placed = maps[0].resize_to_image().numpy()
    for button, top, label in ((0, 0.2, "\u2265 0.20"), (1, 0.3, "0.30"), (2, 0.9, "0.90")):
        browser.click("#words button", 0)
        browser.click("#ends button", button)
        close(browser.pixels(), overlay(kept, placed, vmax=top))
        assert browser.value("document.getElementById('high').textContent") == label
        assert browser.value("document.getElementById('low').textContent") == "0"


@pytest.mark.parametrize("style", ["heat", "light"])
def test_small_photo_is_enlarged(browser: Any, tmp_path: Path, style: Style) -> None:
    geometry = ResizeSpec((32, 32)).geometry((61, 107))
    maps = AttentionMap(grids(3, 3), "look", "words", geometry, labels=WORDS)
    kept = write(tmp_path / "a.html", photo(61, 107), maps, style=style, opacity=0.9, vmax=0.3)
    browser.alive(tmp_path / "a.html")
    browser.press("Home")
    size = (8 * 61, 8 * 107)
    larger = np.array(kept.resize((size[1], size[0]), Image.Resampling.BICUBIC))
    expected = overlay(
        larger, maps[0].resize_to_image(size).numpy(), style=style, opacity=0.9, vmax=0.3
    )
    distance = np.abs(browser.pixels().astype(int) - expected)
    assert distance.max() <= 40  # resampling differs at the borders
    assert distance.mean() <= 1


@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_exif_rotated_photo_is_shown_upright(browser: Any, tmp_path: Path, fit: ResizeMode) -> None:
    encoder = SmallEncoder((24, 40), channels=12)
    model = ShowAttendTell((*SPECIAL_TOKENS, *WORDS), encoder, hidden_size=7).eval()
    exif, upright = Image.Exif(), Image.fromarray(photo(653, 211))
    exif[274] = 6
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.png", exif=exif)
    (said,) = caption(model, tmp_path / "a.png", resize_mode=fit, min_length=3, max_length=3)
    text = caption_html(tmp_path / "a.png", said)
    (tmp_path / "a.html").write_text(text, encoding="utf-8")
    browser.alive(tmp_path / "a.html")
    browser.click("#words button", 1)
    expected = np.asarray(draw(upright, said.maps[1], vmax=said.maps.display_range()[1]))
    distance = np.abs(browser.pixels().astype(int) - expected)
    assert distance.max() <= 20  # the photo in the page is a JPEG
    assert distance.mean() <= 1
