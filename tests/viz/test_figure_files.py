"""Figures as pixels of any scale, PDF and SVG."""

import base64
import io
import re
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from PIL import Image

import visattn as va
from visattn.geometry import Geometry
from visattn.results import AttentionMap, Caption
from visattn.results.info import MapInfo
from visattn.viz.canvas import (
    ACCENT,
    BACKGROUND,
    MUTED,
    TEXT,
    TRACK,
    Canvas,
)
from visattn.viz.captions import caption_figure
from visattn.viz.rendering import Figure
from visattn.viz.scanpaths.panel import class_colors
from visattn.viz.text import load_font
from visattn.viz.vector import matplotlib_figure, vector_bytes

SVG = "{http://www.w3.org/2000/svg}"
SIZE = (60, 80)
PHOTO = np.random.default_rng(0).integers(0, 256, (*SIZE, 3)).astype(np.uint8)


def placed(method: str = "gradcam", **info: Any) -> AttentionMap:
    values = torch.arange(12.0).view(3, 4)
    return AttentionMap(values, "x", "gradient", Geometry.identity(SIZE), MapInfo(method, **info))


def two(**options: Any) -> Figure:
    maps = [placed(class_name="dog"), placed("layercam", class_name="dog")]
    return va.figure(maps, PHOTO, **{"width": 600, **options})


def texts(svg: bytes) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}text")]


def pdf_streams(pdf: bytes) -> bytes:
    """Return all streams of a PDF file, decompressed where they are."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    plain = []
    for each in streams:
        try:
            plain.append(zlib.decompress(each))
        except zlib.error:
            plain.append(each)
    return b"\n".join(plain)


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


def test_svg_keeps_text_as_text_and_embeds_each_image_once() -> None:
    svg = two(title="a dog $x_1$ & <b>").to_bytes("svg")
    written = texts(svg)
    assert {"a dog $x_1$ & <b>", "Grad-CAM", "LayerCAM", "80 × 60", "0 to 11"} <= {*written}
    images = list(ET.fromstring(svg).iter(f"{SVG}image"))
    assert len(images) == 3  # the photo and two maps; the legend is vectors
    [link] = [value for key, value in images[0].attrib.items() if key.endswith("href")]
    with Image.open(io.BytesIO(base64.b64decode(link.partition(",")[2]))) as photo:
        assert photo.size[0] > 2 * two().image.width / 4  # 300 pixels per inch
        small = np.asarray(photo.convert("RGB").resize((8, 6), Image.Resampling.BOX), float)
    expected = np.asarray(Image.fromarray(PHOTO).resize((8, 6), Image.Resampling.BOX), float)
    assert np.abs(small - expected).mean() < 6


def test_pdf_embeds_its_fonts_and_images_once() -> None:
    pdf = two().to_bytes("pdf")
    assert pdf.startswith(b"%PDF-")
    assert len(re.findall(rb"/Subtype /Image", pdf)) == 3
    assert b"DejaVuSans" in pdf
    assert b"/FontFile2" in pdf  # TrueType, not outlines
    assert b"/Type3" not in pdf
    assert b"beginbfchar" in pdf_streams(pdf) or b"beginbfrange" in pdf_streams(pdf)  # searchable
    [box] = re.findall(rb"/MediaBox \[ 0 0 ([0-9.]+) ", pdf)
    assert float(box) == pytest.approx(600 * 72 / 96)


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_equal_figures_give_equal_files(kind: Any, tmp_path: Path) -> None:
    two().save(tmp_path / f"a.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes() == two().to_bytes(kind)


def test_unknown_formats_and_scales_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf or \.svg, got 'a\.jpg'"):
        two().save(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match="must be png, pdf or svg, got 'eps'"):
        two().to_bytes("eps")  # pyright: ignore[reportArgumentType]
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="the scale of a figure must be above 0"):
            two(scale=scale)


def test_the_figure_of_matplotlib_has_the_same_text() -> None:
    figure = two().matplotlib()
    assert figure.get_size_inches()[0] == pytest.approx(600 / 96)
    assert "Grad-CAM" in [each.get_text() for each in figure.axes[0].texts]


def test_shapes_look_alike_in_pixels_and_vectors() -> None:
    canvas = Canvas(120, 80)
    canvas.rectangle((10, 10, 29, 29), ACCENT)
    canvas.rectangle((40, 10, 69, 19), TRACK, radius=3)
    canvas.circle((90, 20), 8, TEXT)
    canvas.line([(10, 50), (60, 70)], TEXT, 3.0)
    canvas.frame((80, 45, 110, 70), (*ACCENT, 255), 2.0)
    inner = Canvas(20, 20)
    inner.circle((0, 0), 15, (200, 0, 0))  # reaches out of the drawing
    canvas.place(inner, (70, 50))
    pixels = np.asarray(canvas.paint(2), float)
    figure = matplotlib_figure(canvas)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=192)
    with Image.open(buffer) as opened:
        vectors = np.asarray(opened.convert("RGB"), float)
    assert vectors.shape == pixels.shape
    assert np.abs(vectors - pixels).mean() < 2.0
    assert (np.abs(vectors - pixels).max(2) > 90).mean() < 0.01


def test_texts_of_right_to_left_scripts_are_shaped_in_vectors_too() -> None:
    canvas = Canvas(200, 40)
    canvas.text((10, 10), "שלום", TEXT, load_font(17))
    assert b"<image" in vector_bytes(canvas, "svg")
    assert b"<text" not in vector_bytes(canvas, "svg")


def test_words_and_gates_are_text_and_bars_in_vectors() -> None:
    maps = AttentionMap(torch.rand(2, 3, 4), "look", "words", Geometry.identity(SIZE))
    caption = Caption(("a", "dog"), (-0.1, -0.2), (0.9, 0.3), maps, score=-0.1, finished=True)
    svg = caption_figure(PHOTO, caption, width=600).to_bytes("svg")
    assert {"a dog", "dog", "β 0.90", "90 %", "gate β"} <= {*texts(svg)}
    assert len(list(ET.fromstring(svg).iter(f"{SVG}image"))) == 3


def test_photos_are_jpeg_in_pdf_and_svg_and_files_stay_whole() -> None:
    random = np.random.default_rng(1)
    photo = np.asarray(
        Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8)).resize((400, 300))
    )
    canvas = Canvas(240, 180, detail=2)
    canvas.paste(photo[:, :300], (0, 0), (180, 180))
    canvas.paste(np.full((60, 60, 3), 90, np.uint8), (180, 0))  # flat: small as it is
    svg, pdf = vector_bytes(canvas, "svg"), vector_bytes(canvas, "pdf")
    kinds = [each.get("{http://www.w3.org/1999/xlink}href", "")[:15]
             for each in ET.fromstring(svg).iter(f"{SVG}image")]  # fmt: skip
    assert kinds == ["data:image/jpeg", "data:image/png;"]
    [start] = re.findall(rb"startxref\n(\d+)\n%%EOF", pdf)
    table = pdf[int(start) :].splitlines()
    assert table[0] == b"xref"
    for number, row in enumerate(table[3 : 2 + int(table[1].split()[1])], start=1):
        assert pdf[int(row.split()[0]) :].startswith(b"%d 0 obj\n" % number)
    [(length, begin)] = [
        (match[1], match.end())
        for match in re.finditer(rb"/DCTDecode /Length (\d+) 0 R >>\nstream\n", pdf)
    ]
    [size] = re.findall(rb"\n%s 0 obj\n(\d+)\n" % length, pdf)
    coded = pdf[begin : begin + int(size)]
    assert pdf[begin + int(size) :].startswith(b"\nendstream")
    drawn = np.asarray(Image.open(io.BytesIO(coded))).astype(int)
    difference = np.abs(drawn - photo[::-1, :300])  # PDF: from the bottom to the top
    assert difference.mean() < 1.5
    assert difference.max() < 12
    assert len(coded) < 0.6 * len(zlib.compress(photo[:, :300].tobytes()))
