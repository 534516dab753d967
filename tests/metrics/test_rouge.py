"""ROUGE-L: longest common subsequence against dynamic programming, and the rules of COCO."""

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from visattn.metrics.ngrams import lcs_length, rouge_l

words = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=13)
lines = words.map(" ".join)


def by_table(words: Sequence[str], other: Sequence[str]) -> int:
    table = [[0] * (len(other) + 1) for _ in range(len(words) + 1)]
    for i, word in enumerate(words, 1):
        for j, match in enumerate(other, 1):
            longest = max(table[i - 1][j], table[i][j - 1])
            table[i][j] = table[i - 1][j - 1] + 1 if word == match else longest
    return table[-1][-1]


@given(words=words, other=words)
def test_bit_parallel_lcs_matches_dynamic_programming(words: list[str], other: list[str]) -> None:
    assert lcs_length(words, other) == by_table(words, other)


def test_long_captions_are_fast() -> None:
    assert lcs_length(["a", "b"] * 503, ["b", "a"] * 503) == 1005


def test_best_precision_and_best_recall_may_be_of_different_references() -> None:
    # "a b" is all precision, "a" all recall
    both = rouge_l("a b", ["a b c d e f", "a"])
    assert both == pytest.approx((1 + 1.44) * 1 * 1 / (1 + 1.44 * 1))
    assert rouge_l("a b", ["a b c d e f"]) == pytest.approx(2.44 * (1 / 3) / (1 / 3 + 1.44))


def test_empty_captions_are_a_single_empty_token() -> None:
    assert rouge_l("", ["a b"]) == 0
    assert rouge_l("", ["a", ""]) == 1


@given(line=lines, refs=st.lists(lines, min_size=1, max_size=5))
def test_rouge_ignores_order_and_repetition_of_references(line: str, refs: list[str]) -> None:
    score = rouge_l(line, refs)
    assert rouge_l(line, [*refs[::-1], refs[0]]) == score
    assert 0 <= score <= 1
    assert rouge_l(line, [*refs, line]) == pytest.approx(1)
