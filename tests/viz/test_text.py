"""Text that is truncated or wrapped to a width."""

from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from hypothesis import given, strategies as st

from visattn.viz import text as text_module
from visattn.viz.canvas import Canvas
from visattn.viz.text import ELLIPSIS, load_font, sanitize_text, truncate_text, wrap_text

TEXTS = st.text(max_size=60)


@given(text=TEXTS, width=st.floats(20, 400))
def test_truncated_text_fits_and_ends_with_an_ellipsis(text: str, width: float) -> None:
    whole, short = sanitize_text(" ".join(text.split())), truncate_text(text, load_font(12), width)
    assert load_font(12).getlength(short) <= width
    assert short == whole or short.endswith(ELLIPSIS)
    assert whole.startswith(short.removesuffix(ELLIPSIS))


@given(text=TEXTS, width=st.floats(40, 400), lines=st.integers(1, 4))
def test_wrapped_lines_fit_and_truncation_is_marked(text: str, width: float, lines: int) -> None:
    result = wrap_text(text, load_font(12), width, lines)
    assert len(result) <= lines
    assert all(load_font(12).getlength(line) <= width for line in result)
    if not any(line.endswith(ELLIPSIS) for line in result):
        assert " ".join(result).split() == sanitize_text(" ".join(text.split())).split()


def test_no_room_yields_an_ellipsis() -> None:
    assert truncate_text("word", load_font(12), 0.0) == ELLIPSIS
    assert wrap_text("", load_font(12), 100.0, 3) == []


def small_font(path: Path, letters: str) -> Path:
    """A font whose letters are boxes that are filled, from the baseline to 0.8 of the size."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 800), (900, 800), (900, 0)):
        pen.lineTo(corner)
    pen.closePath()
    names = [".notdef", *(f"letter{number}" for number in range(len(letters)))]
    builder = FontBuilder(1000)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(dict(zip(map(ord, letters), names[1:], strict=True)))
    builder.setupGlyf({names[0]: TTGlyphPen(None).glyph(), **dict.fromkeys(names[1:], pen.glyph())})
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
    builder.setupHorizontalHeader(ascent=1500, descent=-500)
    builder.setupNameTable({"familyName": "Small", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path


def test_letters_come_from_another_font_on_the_same_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = small_font(tmp_path / "small.ttf", "狗")
    fonts = text_module.FallbackFonts(text_module._font_path(), lambda: [other])
    monkeypatch.setattr(text_module, "_fallback_fonts", lambda: fonts)
    canvas = Canvas(60, 30)
    canvas.text((0, 0), "狗", (0, 0, 0), load_font(20))
    drawn = np.array(canvas.paint()).mean(-1) < 128
    rows = np.flatnonzero(drawn.any(1))
    baseline = load_font(20).getmetrics()[0]
    assert (rows[0], rows[-1]) == (baseline - 16, baseline - 1)
    assert drawn[rows[0] : rows[-1] + 1, :18].all()  # no hollow box
    assert text_module.pop_boxed_letters() == ""
    # The whole text is of the font that has the most letters of those that the first one lacks.
    assert load_font(20).getlength("狗犬") > 20
    assert text_module.pop_boxed_letters() == "犬"
    assert text_module.pop_boxed_letters() == ""


def test_without_another_font_letters_are_boxes_that_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fonts = text_module.FallbackFonts(text_module._font_path(), list)
    monkeypatch.setattr(text_module, "_fallback_fonts", lambda: fonts)
    assert text_module.fallback_font("a dog, 狗犬狗, café 🙂") is None
    assert text_module.pop_boxed_letters() == "狗犬"
