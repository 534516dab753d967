"""CIDEr-D: against a plain implementation with vectors, and invariances."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from visattn.metrics.ngrams import cider_d, ngram_counts

lines = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=11).map(" ".join)
Sample = tuple[str, list[str]]
images = st.lists(st.tuples(lines, st.lists(lines, min_size=1, max_size=4)), min_size=1, max_size=5)


def scores(samples: list[Sample]) -> list[float]:
    ours = [ngram_counts(said.split()) for said, _ in samples]
    theirs = [[ngram_counts(line.split()) for line in refs] for _, refs in samples]
    return cider_d(ours, theirs)


def runs(line: str, n: int) -> list[tuple[str, ...]]:
    words = line.split()
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def by_vectors(samples: list[Sample]) -> list[float]:
    scores_by_image = []
    for said, refs in samples:
        sims = []
        for n, ref in itertools.product(range(1, 5), refs):
            known = sorted({run for s, rs in samples for line in (s, *rs) for run in runs(line, n)})
            document_counts = [
                sum(any(run in runs(r, n) for r in rs) for _, rs in samples) for run in known
            ]
            rare = np.log(len(samples)) - np.log(np.maximum(1.0, document_counts))
            ours, theirs = (
                rare * [runs(line, n).count(run) for run in known] for line in (said, ref)
            )
            norms = np.linalg.norm(ours) * np.linalg.norm(theirs)
            gap = max(0, len(said.split()) - 1) - max(0, len(ref.split()) - 1)
            cosine = (np.minimum(ours, theirs) * theirs).sum() / norms if norms else 0.0
            sims.append(cosine * math.exp(-(gap**2) / 72))
        scores_by_image.append(10 * float(np.sum(sims)) / 4 / len(refs))
    return scores_by_image


@given(samples=images)
def test_matches_an_implementation_with_vectors(samples: list[Sample]) -> None:
    assert scores(samples) == pytest.approx(by_vectors(samples), abs=1e-12)


def test_length_difference_lowers_the_score() -> None:
    first, _ = scores([("a", ["a b"]), ("c", ["c d"])])
    assert first == pytest.approx(10 / 4 / math.sqrt(2) * math.exp(-1 / 72))
    first, _ = scores([("a", ["a"]), ("c", ["c d"])])
    assert first == pytest.approx(10 / 4)


def test_rare_words_weigh_more_and_ubiquitous_words_nothing() -> None:
    samples = [("a x", ["a x"]), ("a", ["a y"]), ("a", ["a z"])]
    assert scores(samples) == [pytest.approx(5.0), 0.0, 0.0]  # of "a x", pairs and single words


def test_repeating_words_does_not_raise_the_score() -> None:
    once, _ = scores([("x y", ["x y"]), ("b", ["b"])])
    again, _ = scores([("x y x y", ["x y"]), ("b", ["b"])])
    assert again < once


@given(line=lines, refs=st.lists(lines, min_size=1, max_size=4))
def test_single_image_scores_zero(line: str, refs: list[str]) -> None:
    assert scores([(line, refs)]) == [0.0]


@given(samples=images)
def test_order_of_images_and_repetition_of_all_references_do_not_matter(
    samples: list[Sample],
) -> None:
    turned = [(said, refs[::-1] * 2) for said, refs in samples]
    assert scores(turned) == pytest.approx(scores(samples), abs=1e-12)
    assert scores(samples[::-1])[::-1] == pytest.approx(scores(samples), abs=1e-12)


@given(samples=images)
def test_scores_are_between_0_and_10(samples: list[Sample]) -> None:
    assert all(0 <= score <= 10 + 1e-9 for score in scores(samples))
