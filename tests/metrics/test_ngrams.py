"""BLEU, ROUGE-L and CIDEr-D beyond the golden values of the official code in test_scores.py."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from visattn.metrics.ngrams import cider_d, lcs_length, ngram_counts, rouge_l

Sample = tuple[str, list[str]]
words = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=11)
lines = words.map(" ".join)
images = st.lists(st.tuples(lines, st.lists(lines, min_size=1, max_size=4)), min_size=1, max_size=5)


def runs(line: str, n: int) -> list[tuple[str, ...]]:
    words = line.split()
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def by_vectors(samples: list[Sample]) -> list[float]:
    """Return CIDEr-D of each image by its equation, over vectors of all n-grams."""
    scores_by_image = []
    for said, refs in samples:
        sims = []
        for n, ref in itertools.product(range(1, 5), refs):
            known = sorted({run for s, rs in samples for line in (s, *rs) for run in runs(line, n)})
            count = [sum(any(run in runs(r, n) for r in rs) for _, rs in samples) for run in known]
            rare = np.log(len(samples)) - np.log(np.maximum(1.0, count))
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
def test_cider_d_equals_its_equation(samples: list[Sample]) -> None:
    said = [ngram_counts(line.split()) for line, _ in samples]
    known = [[ngram_counts(line.split()) for line in refs] for _, refs in samples]
    assert cider_d(said, known) == pytest.approx(by_vectors(samples), abs=1e-12)


def by_table(words: Sequence[str], other: Sequence[str]) -> int:
    table = [[0] * (len(other) + 1) for _ in range(len(words) + 1)]
    for i, word in enumerate(words, 1):
        for j, match in enumerate(other, 1):
            longest = max(table[i - 1][j], table[i][j - 1])
            table[i][j] = table[i - 1][j - 1] + 1 if word == match else longest
    return table[-1][-1]


@given(line=lines, refs=st.lists(lines, min_size=1, max_size=5))
def test_best_precision_and_recall_of_rouge_may_be_of_two_references(
    line: str, refs: list[str]
) -> None:
    precision, recall = (
        max(by_table(line.split(" "), ref.split(" ")) / len(each) for ref, each in pairs)
        for pairs in ([(r, line.split(" ")) for r in refs], [(r, r.split(" ")) for r in refs])
    )
    value = 2.44 * precision * recall / (recall + 1.44 * precision) if precision else 0.0
    assert rouge_l(line, refs) == pytest.approx(value)
    assert lcs_length(["a", "b"] * 503, ["b", "a"] * 503) == 1005  # and long ones are fast
