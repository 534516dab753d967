"""Statistics of an audit: intervals and p-values of effects, and corrections for many tests."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import digamma, polygamma, stdtr, stdtrit

_DRAWS = 2000
_FLIPS = 50_000  # so that corrected p-values of 1,000 tests can be below 0.05
_FLIPS_AT_ONCE = 2000
_COVERAGE = 0.975
_LEAST_VARIANCE = 1e-6
_MANY = 1e6  # degrees of freedom of a variance that is known


def holm(p_values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return p-values corrected for any of the tests to be wrong.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03]))
        array([0.03, 0.06, 0.06])

    Source:
        Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.maximum.accumulate(p_values[order] * factors).clip(0, 1)
    return corrected[np.argsort(order)]


def benjamini_hochberg(p_values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return p-values corrected for the expected share of wrong ones among the rejected.

    Example:
        >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5]))
        array([0.04      , 0.05333333, 0.05333333, 0.5       ])

    Source:
        Benjamini and Hochberg 1995.
    """
    order = np.argsort(p_values)[::-1]
    ranks = np.arange(len(p_values), 0, -1)
    corrected = np.minimum.accumulate(p_values[order] * len(p_values) / ranks).clip(0, 1)
    return corrected[np.argsort(order)]


def sign_flip_p(
    differences: Float[np.ndarray, "n tests"], generator: np.random.Generator
) -> Float[np.ndarray, " tests"]:
    """Return p-values of a mean above 0 when the sign of each difference is as likely as the other.

    Args:
        differences: Of independent units, in rows; columns are tested one by one.
        generator: Random numbers of the flips.

    Example:
        >>> sign_flip_p(np.ones((9, 1)), np.random.default_rng(0)).round(3)
        array([0.002])
    """
    observed = differences.mean(0)
    extreme = np.zeros_like(observed)
    for _ in range(_FLIPS // _FLIPS_AT_ONCE):
        signs = 2.0 * generator.integers(0, 2, (_FLIPS_AT_ONCE, len(differences))) - 1
        means = signs @ differences / max(len(differences), 1)
        extreme = extreme + (means >= observed - 1e-12).sum(0)
    return (extreme + 1) / (_FLIPS + 1)


def crossed_interval(
    effects: Float[np.ndarray, "n m"], rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> tuple[float, float, float]:
    """Return a 95 % interval of the mean over rows and columns that are both random, and p.

    The variance of the mean is that by rows plus that by columns, minus that by pairs, which is in
    both. A bootstrap of rows and columns would count the noise of pairs three times.

    Args:
        effects: Effect of each row, such as a donor, on each column, such as a recipient; NaN for
            pairs that were not measured.
        rows: Unit of each row, such as a patient; what rows of a unit share counts once.
        columns: Unit of each column.

    Returns:
        Lower and upper end, and the p-value of a mean of 0 against a higher one, by Student's t
        with degrees of freedom of the fewer units.

    Example:
        >>> low, high, p_value = crossed_interval(np.eye(8) + 2)
        >>> 2 <= low < 2.125 < high < 3, p_value < 0.001
        (True, True)

    Source:
        Cameron, Gelbach and Miller 2011, "Robust inference with multiway clustering".
    """
    is_known = np.isfinite(effects)
    mean = float(effects[is_known].mean())
    number = int(is_known.sum())
    deviations = np.where(is_known, effects - mean, 0.0)
    units = [_numbered(names, count) for names, count in zip((rows, columns), effects.shape,
                                                             strict=True)]  # fmt: skip
    pairs = np.add.outer(units[0] * (units[1].max() + 1), units[1])
    by_row, by_column = deviations.sum(1), deviations.sum(0)
    of_rows, of_columns, of_pairs = (
        _variance(each, values, number)
        for each, values in (
            (units[0], by_row), (units[1], by_column), (pairs[is_known], deviations[is_known]),
        )
    )  # fmt: skip
    error = np.sqrt(max(of_rows + of_columns - of_pairs, of_rows, of_columns, of_pairs))
    counts = [count for each in units if (count := len(np.unique(each))) > 1]
    if not counts or error == 0:
        return mean, mean, float(mean <= 0)
    free = min(counts) - 1
    half = float(stdtrit(free, _COVERAGE) * error)
    return mean - half, mean + half, float(stdtr(free, -mean / error))


def _numbered(names: Sequence[str], count: int) -> Int[np.ndarray, " n"]:
    """Return the number of the unit of each row; without names each is one of its own."""
    return np.unique(list(names), return_inverse=True)[1] if names else np.arange(count)


def _variance(
    units: Int[np.ndarray, " n"], deviations: Float[np.ndarray, " n"], number: int
) -> float:
    """Return the variance of a mean of some values, from sums of deviations and their units."""
    _, compact = np.unique(units, return_inverse=True)
    sums = np.bincount(compact, weights=deviations)
    count = len(sums)
    return float((sums**2).sum() * count / (count - 1)) / number**2 if count > 1 else 0.0


def moderated_variances(
    values: Float[np.ndarray, "models tests"],
) -> tuple[Float[np.ndarray, " tests"], float]:
    """Return the variance of each test over a few models, drawn to that of all, and its freedom.

    The variance of three numbers is now and then tiny by chance, and among many tests some are. How
    far single variances are trusted follows from how much they differ between tests.

    Args:
        values: A number of each model, two at least, for each test.

    Returns:
        The variances, and the degrees of freedom of Student's t.

    Example:
        >>> values = np.random.default_rng(0).normal(size=(3, 400))
        >>> variances, free = moderated_variances(values)
        >>> values.var(0, ddof=1).min().round(3), variances.min().round(2)
        (np.float64(0.002), np.float64(0.95))

    Source:
        Smyth 2004, "Linear models and empirical Bayes methods for assessing differential
        expression in microarray experiments", section 6.2.
    """
    free = len(values) - 1
    variances = values.var(0, ddof=1)
    known = np.log(variances.clip(_LEAST_VARIANCE)) - digamma(free / 2) + np.log(free / 2)
    spread = float(known.var(ddof=1) - polygamma(1, free / 2)) if len(known) > 1 else np.inf
    # All tests have one variance if single ones differ no more than by chance.
    prior = 2 * _inverse_trigamma(spread) if spread > 0 else _MANY
    common = np.exp(known.mean() + digamma(prior / 2) - np.log(prior / 2)) if prior else 0.0
    return (prior * common + free * variances) / (prior + free), prior + free


def _inverse_trigamma(value: float) -> float:
    """Return where the trigamma function has a value, by Newton's method; 0 for infinity."""
    if not np.isfinite(value):
        return 0.0
    at = 0.5 + 1 / value
    for _ in range(50):
        known = float(polygamma(1, at))
        at += known * (1 - known / value) / float(polygamma(2, at))
    return at


def within_class_p(
    values: Float[np.ndarray, " n"],
    members: Bool[np.ndarray, " n"],
    classes: Int[np.ndarray, " n"],
    generator: np.random.Generator,
) -> tuple[float, float]:
    """Return the difference of a group to the others within classes, and its p-value.

    Args:
        values: A number of each photo.
        members: Whether it belongs to the group.
        classes: Its class; photos of one class are exchanged with each other only.
        generator: Random numbers of the permutations.

    Example:
        >>> values = np.array([0.0, 1.0, 10.0, 11.0])
        >>> members = np.array([False, True, False, True])
        >>> within_class_p(values, members, np.array([0, 0, 1, 1]), np.random.default_rng(0))[0]
        1.0
    """
    usable = np.zeros(len(values), dtype=bool)
    for each in np.unique(classes):
        rows = classes == each
        usable |= rows & members[rows].any() & (~members[rows]).any()
    if not usable.any():
        return 0.0, 1.0
    values, members, classes = values[usable], members[usable], classes[usable]
    draws = _DRAWS // 4
    totals = np.zeros(1 + draws)  # of the group, then of random groups
    for each in np.unique(classes):
        rows = classes == each
        own = np.repeat(members[rows][None], 1 + draws, axis=0)
        own[1:] = generator.permuted(own[1:], axis=1)
        count = own[0].sum()
        inside = own @ values[rows]
        totals += inside - count * (values[rows].sum() - inside) / (rows.sum() - count)
    differences = totals / members.sum()
    extreme = int((np.abs(differences[1:]) >= np.abs(differences[0]) - 1e-9).sum())
    return float(differences[0]), (extreme + 1) / (draws + 1)
