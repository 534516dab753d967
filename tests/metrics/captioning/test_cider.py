"""CIDEr-D: against a plain computation with vectors, and what holds for all captions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from visattn.metrics.captioning.bleu import ngram_counts
from visattn.metrics.captioning.cider import cider_d

lines = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=11).map(" ".join)
Told = tuple[str, list[str]]
images = st.lists(st.tuples(lines, st.lists(lines, min_size=1, max_size=4)), min_size=1, max_size=5)


def scores(told: list[Told]) -> list[float]:
    ours = [ngram_counts(said.split()) for said, _ in told]
    theirs = [[ngram_counts(line.split()) for line in refs] for _, refs in told]
    return cider_d(ours, theirs)


def runs(line: str, n: int) -> list[tuple[str, ...]]:
    words = line.split()
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def by_vectors(told: list[Told]) -> list[float]:
    found = []
    for said, refs in told:
        sims = []
        for n, ref in itertools.product(range(1, 5), refs):
            known = sorted({run for s, rs in told for line in (s, *rs) for run in runs(line, n)})
            seen = [sum(any(run in runs(r, n) for r in rs) for _, rs in told) for run in known]
            rare = np.log(len(told)) - np.log(np.maximum(1.0, seen))
            ours, theirs = (
                rare * [runs(line, n).count(run) for run in known] for line in (said, ref)
            )
            norms = np.linalg.norm(ours) * np.linalg.norm(theirs)
            gap = max(0, len(said.split()) - 1) - max(0, len(ref.split()) - 1)
            cosine = (np.minimum(ours, theirs) * theirs).sum() / norms if norms else 0.0
            sims.append(cosine * math.exp(-(gap**2) / 72))
        found.append(10 * float(np.sum(sims)) / 4 / len(refs))
    return found


@given(told=images)
def test_counts_give_what_vectors_give(told: list[Told]) -> None:
    assert scores(told) == pytest.approx(by_vectors(told), abs=1e-12)


def test_another_length_costs() -> None:
    first, _ = scores([("a", ["a b"]), ("c", ["c d"])])
    assert first == pytest.approx(10 / 4 / math.sqrt(2) * math.exp(-1 / 72))
    first, _ = scores([("a", ["a"]), ("c", ["c d"])])
    assert first == pytest.approx(10 / 4)


def test_rare_words_count_more_and_common_ones_nothing() -> None:
    told = [("a x", ["a x"]), ("a", ["a y"]), ("a", ["a z"])]
    assert scores(told) == [pytest.approx(5.0), 0.0, 0.0]  # of "a x", pairs and single words


def test_saying_it_again_does_not_help() -> None:
    once, _ = scores([("x y", ["x y"]), ("b", ["b"])])
    again, _ = scores([("x y x y", ["x y"]), ("b", ["b"])])
    assert again < once


@given(line=lines, refs=st.lists(lines, min_size=1, max_size=4))
def test_one_image_alone_scores_nothing(line: str, refs: list[str]) -> None:
    assert scores([(line, refs)]) == [0.0]


@given(told=images)
def test_order_and_repetition_of_all_references_do_not_matter(told: list[Told]) -> None:
    turned = [(said, refs[::-1] * 2) for said, refs in told]
    assert scores(turned) == pytest.approx(scores(told), abs=1e-12)
    assert scores(told[::-1])[::-1] == pytest.approx(scores(told), abs=1e-12)


@given(told=images)
def test_scores_lie_between_nothing_and_ten(told: list[Told]) -> None:
    assert all(0 <= score <= 10 + 1e-9 for score in scores(told))
