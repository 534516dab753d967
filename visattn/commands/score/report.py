"""Report of map scores: tables of means, notes, and a signature of the settings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from visattn.attribution.saliency import BASELINES
from visattn.io.messages import format_names

Row = Mapping[str, Any]


COLUMNS = {
    "point": "point",
    "point_box": "in box",
    "hard": "hard",
    "energy": "energy",
    "other_point": "other p",
    "other_energy": "other e",
    "enrichment": "enrich",
    "iou": "IoU",
    "insertion": "insert",
    "deletion": "delete",
    "road": "ROAD",
}


"""Names of the scores, and their column headings."""


def report_lines(
    rows: Sequence[Row], settings: Mapping[str, Any], missing: Mapping[str, int]
) -> Iterator[str]:
    """Yield the lines of the report.

    Args:
        rows: Scores of single images and methods.
        settings: Settings of the run.
        missing: Objects per category that the model has no class for.
    """
    scores, correct, checks = _split_rows(rows)
    yield from score_table(mean_scores(scores))
    yield ""
    yield _describe_counts(scores, settings)
    if correct:
        yield ""
        yield from score_table(mean_scores(correct))
        yield ""
        yield f"only where the prediction of the model is of the category: {_describe(correct)}"
    if checks:
        yield ""
        yield from sanity_check_table(checks)
        yield ""
        yield f"rank correlation with the map of the intact model, {_describe(checks)}"
    if missing:
        most = sorted(missing, key=lambda name: -missing[name])
        yield f"no class for {format_names(most, 4)}: {sum(missing.values())} objects excluded"
    yield from _notes(scores)
    yield _signature(settings)


def report_numbers(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the means of all methods as plain values.

    Args:
        rows: Scores of single images and methods.

    Example:
        >>> row = {"kind": "score", "image": "a", "category": None, "method": "rise"}
        >>> row["point"] = 1.0
        >>> report_numbers([row])["scores"]
        {'rise': {'count': 1, 'point': 1.0}}
    """
    scores, correct, checks = _split_rows(rows)
    numbers: dict[str, Any] = {"scores": mean_scores(scores)}
    if correct:
        numbers["scores_where_correct"] = mean_scores(correct)
    if checks:
        numbers["sanity_checks"] = {
            method: _mean_check(own) for method, own in _by_method(checks).items()
        }
    return numbers


def _split_rows(rows: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the scores, those with a correct prediction, and the sanity checks."""
    scores = [row for row in rows if row["kind"] == "score"]
    correct = [row for row in scores if row.get("correct") and not row.get("outside_input")]
    return scores, correct, [row for row in rows if row["kind"] == "check"]


def _by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["method"], []).append(row)
    return groups


def _mean_check(rows: Sequence[Row]) -> dict[str, Any]:
    steps = zip(*(row["randomized"] for row in rows), strict=True)
    return {
        "count": len(rows),
        "randomized": [sum(step) / len(rows) for step in steps],
        "other_class": sum(row["other_class"] for row in rows) / len(rows),
    }


# ------------------------------------------------------------------ tables
def mean_scores(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Return the mean of each score of each method, over the images that have it.

    `hard` is `point` over difficult images; `enrichment` is the ratio of energy to its expected
    value by chance.

    Args:
        rows: Scores of single images; objects outside of the network's input are excluded.

    Example:
        >>> row = {"method": "rise", "point": 1.0, "energy": 0.5, "area": 0.25, "difficult": False}
        >>> other = {**row, "point": 0.0, "energy": 0.25, "difficult": True}
        >>> mean_scores([row, other])["rise"]
        {'count': 2, 'point': 0.5, 'hard': 0.0, 'energy': 0.375, 'enrichment': 1.5}
    """
    inside = (row for row in rows if not (row.get("outside_input") or row.get("missed")))
    return {method: _means(own) for method, own in _by_method(inside).items()}


def _means(rows: Sequence[Row]) -> dict[str, float]:
    means: dict[str, float] = {"count": len(rows)}
    for name in COLUMNS:
        if name == "hard":
            values = [row["point"] for row in rows if row.get("difficult")]
        elif name == "enrichment":
            values = []
            if "area" in rows[0]:
                # A ratio of means, since the smallest objects would dominate a mean of ratios.
                means[name] = means["energy"] / fmean(row["area"] for row in rows)
        else:
            values = [row[name] for row in rows if row.get(name) is not None]
        if values:
            means[name] = fmean(values)
    return means


def score_table(means: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines of a table of means, the baselines below the methods.

    Args:
        means: As `mean_scores` returns them.

    Example:
        >>> means = {"random": {"count": 2, "point": 0.25}, "rise": {"point": 0.5}}
        >>> lines = score_table(means)
        >>> print(*lines, sep=chr(10))
                point
        rise     50.0
        random   25.0
    """
    names = [name for name in COLUMNS if any(name in own for own in means.values())]
    width = max(map(len, means), default=0) + 1
    lines = [" " * width + "".join(f"{COLUMNS[name]:>7}" for name in names)]
    for method in _baselines_last(means):
        cells = (_format(name, means[method].get(name)) for name in names)
        lines.append(f"{method:{width}}" + "".join(f"{cell:>7}" for cell in cells))
    return [line.rstrip() for line in lines]


def _baselines_last(methods: Iterable[str]) -> list[str]:
    order = [*BASELINES]
    return sorted(methods, key=lambda method: order.index(method) if method in order else -1)


def _format(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    # A ratio; all other scores are fractions.
    return f"{value:.2f}" if name == "enrichment" else f"{100 * value:.1f}"


def sanity_check_table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table of rank correlations under weight and class randomization.

    Args:
        rows: Sanity checks of single images; at least one.

    Example:
        >>> row = {"method": "rise", "randomized": [0.5, 0.1], "other_class": 0.2}
        >>> print(*sanity_check_table([row]), sep=chr(10))
              randomized weights, from the top  other
              50 %  100 %                       class
        rise  0.50   0.10                        0.20
    """
    by_method = _by_method(rows)
    width = max(map(len, by_method)) + 1
    count = len(rows[0]["randomized"])
    shares = "".join(f"{f'{100 * (step + 1) / count:.0f} %':>7}" for step in range(count))
    columns = max(len(shares), 32)
    lines = [
        f"{'':{width - 1}}  {'randomized weights, from the top':{columns}} other",
        f"{'':{width}}{shares:{columns}}  class",
    ]
    for method in _baselines_last(by_method):
        means = _mean_check(by_method[method])
        cells = "".join(f"{step:7.2f}" for step in means["randomized"])
        lines.append(f"{method:{width}}{cells:{columns}}  {means['other_class']:5.2f}")
    return [line.rstrip() for line in lines]


# ------------------------------------------------------------------ notes
def _describe_counts(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    inside = [row for row in rows if not row.get("outside_input")]
    predicted = settings["target"] == "predicted"
    target = "prediction of the model, all objects count" if predicted else "class of each category"
    return f"x 100; {_describe(inside)}; target: {target}"


def _describe(rows: Sequence[Row]) -> str:
    """Return how many distinct maps, categories and images there are."""
    pairs = {(row["image"], row["category"]) for row in rows}
    images = len({image for image, _ in pairs})
    categories = len({category for _, category in pairs if category})
    noun = "image" if images == 1 else "images"
    if not categories:
        return f"{images} {noun}"
    plural = "category" if categories == 1 else "categories"
    return f"{len(pairs)} maps of {categories} {plural} on {images} {noun}"


def _notes(rows: Sequence[Row]) -> Iterator[str]:
    for key, text in (
        ("outside_input", "outside of the network's input: {} excluded"),
        ("missed", "not detected by the model: {} excluded"),
        ("difficult", "hard: {}"),
    ):
        if pairs := {(row["image"], row["category"]) for row in rows if row.get(key)}:
            yield text.format(len(pairs))
    for method, own in _by_method(row for row in rows if row.get("constant_map")).items():
        noun = "map is" if len(own) == 1 else "maps are"
        yield f"{method}: {len(own)} {noun} constant, and counted as missing the objects"


def _signature(settings: Mapping[str, Any]) -> str:
    weights = settings["weights"]
    if not isinstance(weights, str):
        weights = weights.get("folder") or f"{weights['file']}@{weights['sha256']}"
    parts = {**settings, "weights": weights}
    names = ("model", "weights", "data", "target", "visattn")
    return "|".join(f"{name}:{parts[name]}" for name in names)
