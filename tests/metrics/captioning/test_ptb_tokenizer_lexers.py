"""Where tokens begin and end."""

from hypothesis import given, strategies as st

from visattn.metrics.captioning.ptb_tokenizer import token_spans

shapes = st.text([chr(code) for code in range(32, 127)] + list("é§«’“”–…¬"), max_size=41)


@given(shape=shapes)
def test_spans_follow_each_other_and_leave_out_only_what_separates(shape: str) -> None:
    place, left = 0, ""
    for first, last in token_spans(shape):
        assert place <= first < last <= len(shape)
        left += shape[place:first]
        place = last
    assert not (left + shape[place:]).strip(" ¬")


def test_of_two_rules_the_longer_wins() -> None:
    text = "don't stop"  # neither d', nor don, nor n't alone
    assert [text[first:last] for first, last in token_spans(text)] == ["do", "n't", "stop"]


def test_a_word_of_two_is_cut_only_where_it_ends() -> None:
    text = "cannot cannot's cannotx"
    parts = [text[first:last] for first, last in token_spans(text)]
    assert parts == ["can", "not", "cannot", "'s", "cannotx"]
