"""Runs of words, counted."""

from hypothesis import given, strategies as st

from visattn.metrics.captioning.bleu import ngram_counts

captions = st.lists(st.sampled_from(["a", "b", "c"]), max_size=11)


@given(words=captions)
def test_there_is_a_run_at_every_place_where_one_fits(words: list[str]) -> None:
    grams = ngram_counts(words)
    assert grams.length == len(words)
    sums = [counts.total() for counts in grams.counts]
    assert sums == [max(0, len(words) - n) for n in range(4)]


def test_runs_by_hand() -> None:
    one, two, three, four = ngram_counts(["on", "and", "on", "and"]).counts
    assert one == {("on",): 2, ("and",): 2}
    assert two == {("on", "and"): 2, ("and", "on"): 1}
    assert three == {("on", "and", "on"): 1, ("and", "on", "and"): 1}
    assert four == {("on", "and", "on", "and"): 1}
