"""Text that is truncated or wrapped to a width."""

from hypothesis import given, strategies as st

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
