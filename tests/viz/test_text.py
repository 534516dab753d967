"""Text of figures and pages: sanitizing, line breaks, fonts."""

import unicodedata
from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from hypothesis import given, strategies as st
from matplotlib.text import Text

from visattn.viz import text as text_module
from visattn.viz.text import ELLIPSIS, choose_fonts, fit_text, pop_boxed_letters, sanitize_text

REPLACED = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a dog", "a dog"),
        ("$5 <b> \\frac{1}{2} ${name}", "$5 <b> \\frac{1}{2} ${name}"),
        ("a\0b\x1b[31m\x7f\x9b", f"a{REPLACED}b{REPLACED}[31m{REPLACED}{REPLACED}"),
        ("photo\u202egpj.exe", f"photo{REPLACED}gpj.exe"),
        ("\u2066a\u2069\u200f", f"{REPLACED}a{REPLACED}{REPLACED}"),
        ("\udcff\ud83d", REPLACED * 2),
        ("👨\u200d👩\u200d👧 ❤\ufe0f 犬 כלב", "👨\u200d👩\u200d👧 ❤\ufe0f 犬 כלב"),
        ("a" + "\u0301" * 2000 + "b", "a" + "\u0301" * 4 + "b"),
        ("Ti\u1ebfng Vi\u1ec7t", "Ti\u1ebfng Vi\u1ec7t"),
    ],
)
def test_control_characters_are_replaced_and_text_is_kept(text: str, shown: str) -> None:
    assert sanitize_text(text) == shown


@given(st.text(max_size=80), st.integers(1, 30))
def test_truncated_text_ends_with_an_ellipsis_and_is_valid_utf8(text: str, most: int) -> None:
    whole, short = sanitize_text(text), sanitize_text(text, most)
    assert len(short) <= most
    assert short == whole or short.endswith(ELLIPSIS)
    assert whole.startswith(short.removesuffix(ELLIPSIS).rstrip())
    assert whole.encode().decode() == whole
    assert sanitize_text(whole) == whole
    assert not any(unicodedata.category(sign) == "Cs" for sign in whole)


def test_ten_million_characters_are_truncated_fast() -> None:
    assert sanitize_text("x" * 10**7, 5) == f"xxxx{ELLIPSIS}"
    assert sanitize_text("\u0301" * 10**7, 5) == "\u0301" * 4 + ELLIPSIS


@given(text=st.text(max_size=60), inches=st.floats(0.2, 4), lines=st.integers(1, 4))
def test_lines_are_no_longer_than_their_room_and_cuts_are_marked(
    text: str, inches: float, lines: int
) -> None:
    fitted = fit_text(text, inches, lines=lines).splitlines() if text.strip() else []
    assert len(fitted) <= lines
    most = max(3, int(inches * 72 / (0.55 * 8)))
    assert all(len(line) <= most for line in fitted)


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


def test_letters_come_from_another_font_and_those_of_none_are_counted_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fonts = [*text_module._fonts()[:1], ("Small", str(small_font(tmp_path / "small.ttf", "狗")))]
    monkeypatch.setattr(text_module, "_fonts", lambda: fonts)
    text_module._family_with.cache_clear()
    pop_boxed_letters()
    text = Text(0, 0, "a dog, 狗犬狗, café", fontfamily=["DejaVu Sans"])
    for _ in range(2):  # as often as it is drawn
        choose_fonts(text)
        assert text.get_fontfamily() == ["DejaVu Sans", "Small"]
        assert text.get_text() == "a dog, 狗\N{WHITE SQUARE}狗, café"
    assert pop_boxed_letters() == "犬"
    assert pop_boxed_letters() == ""
    text_module._family_with.cache_clear()
