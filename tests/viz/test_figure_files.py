"""Figures as pixels of any scale."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from figure_texts import texts
from PIL import Image

import visattn as va
from visattn.geometry import Geometry
from visattn.results import AttentionMap, Caption
from visattn.results.info import MapInfo
from visattn.viz.canvas import BACKGROUND, MUTED, TEXT, Canvas
from visattn.viz.captions import caption_figure
from visattn.viz.rendering import Figure
from visattn.viz.scanpaths.panel import class_colors
from visattn.viz.text import load_font

SIZE = (60, 80)
PHOTO = np.random.default_rng(0).integers(0, 256, (*SIZE, 3)).astype(np.uint8)


def placed(method: str = "gradcam", **info: Any) -> AttentionMap:
    values = torch.arange(12.0).view(3, 4)
    return AttentionMap(values, "x", "gradient", Geometry.identity(SIZE), MapInfo(method, **info))


def two(**options: Any) -> Figure:
    maps = [placed(class_name="dog"), placed("layercam", class_name="dog")]
    return va.figure(maps, PHOTO, **{"width": 600, **options})


def luminance(color: tuple[int, ...]) -> float:
    parts = [level / 255 for level in color]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color", [TEXT, MUTED, *class_colors()])
def test_text_has_the_contrast_of_wcag_aa(color: tuple[int, ...]) -> None:
    dark, bright = luminance(color), luminance(BACKGROUND)
    assert (bright + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.parametrize("scale", [2, 3])
def test_text_lines_and_margins_grow_with_the_scale(scale: int) -> None:
    plain, large = (np.asarray(two(scale=each, width=None).image) for each in (1, scale))
    assert large.shape[:2] == (plain.shape[0] * scale, plain.shape[1] * scale)
    ink, large_ink = ((each != BACKGROUND).any(2) for each in (plain, large))
    # every letter, bar and tile lies where it lay, times the scale, within a pixel of rounding
    for axis in (0, 1):
        at, large_at = (np.flatnonzero(each.any(axis)) for each in (ink, large_ink))
        assert large_at[0] / scale == pytest.approx(at[0], abs=1.5)
        assert large_at[-1] / scale == pytest.approx(at[-1], abs=1.5)
    assert large_ink.mean() == pytest.approx(ink.mean(), rel=0.04)


def test_letters_of_12_pixels_have_24_at_scale_2() -> None:
    canvas = Canvas(60, 40)
    canvas.text((10, 30), "H", TEXT, load_font(12), anchor="ls")
    heights = []
    for zoom in (1, 2):
        rows = np.flatnonzero((np.asarray(canvas.paint(zoom)) != BACKGROUND).any((1, 2)))
        heights.append(rows[-1] - rows[0] + 1)
    assert heights[1] == 2 * heights[0]


def test_images_are_drawn_with_the_pixels_of_their_scale_not_enlarged() -> None:
    fine = np.random.default_rng(1).integers(0, 256, (960, 1280, 3)).astype(np.uint8)
    own = placed().with_geometry(Geometry.identity((960, 1280)))
    page = np.asarray(va.figure([own], fine, width=600, scale=1.0).image)
    large = np.asarray(va.figure([own], fine, width=1800, scale=3.0).image)
    enlarged = np.asarray(Image.fromarray(page).resize((large.shape[1], large.shape[0])))
    rough = [np.abs(np.diff(each[300:600, 150:700].astype(int), axis=1)).mean()
             for each in (large, enlarged)]  # fmt: skip
    assert rough[0] > 2 * rough[1]


@pytest.mark.parametrize(("width", "scale"), [(317, 0.7), (1000, 3), (777, 1.3)])
def test_the_width_is_exact_at_any_scale(width: int, scale: float) -> None:
    assert two(width=width, scale=scale).image.width == width


def test_figures_have_their_titles_and_scales() -> None:
    written = texts(two(title="a dog $x_1$ & <b>"))
    assert {"a dog $x_1$ & <b>", "Grad-CAM", "LayerCAM", "80 × 60", "0 to 11"} <= {*written}


def test_equal_figures_give_equal_files(tmp_path: Path) -> None:
    two().save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == two().to_bytes()


def test_other_formats_and_scales_are_refused(tmp_path: Path) -> None:
    for name in ("a.svg", "a.pdf", "a.jpg"):
        with pytest.raises(ValueError, match=f"PNG files, not PDF or SVG for now; got '{name}'"):
            two().save(tmp_path / name)
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="the scale of a figure must be above 0"):
            two(scale=scale)


def test_words_have_their_gates_and_probabilities() -> None:
    maps = AttentionMap(torch.rand(2, 3, 4), "look", "words", Geometry.identity(SIZE))
    caption = Caption(("a", "dog"), (-0.1, -0.2), (0.9, 0.3), maps, score=-0.1, finished=True)
    written = texts(caption_figure(PHOTO, caption, width=600))
    assert {"a dog", "dog", "β 0.90", "90 %", "gate β"} <= {*written}
