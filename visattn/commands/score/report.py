"""What is said of scored maps: tables, and the line that tells how they were made."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from visattn.attribution.baselines import BASELINES
from visattn.commands.score.tables import check_table, summaries, table


def report_lines(
    rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], lacking: Mapping[str, int]
) -> Iterator[str]:
    """Yield the lines that are printed.

    Args:
        rows: Of single images and methods.
        settings: How they were made.
        lacking: How often a category was met of which the model has no class.
    """
    scored, right, checked = _parts(rows)
    found = summaries(scored)
    yield from table(found, list(BASELINES))
    yield ""
    yield _counted(scored, settings)
    if right:
        yield ""
        yield from table(summaries(right), list(BASELINES))
        yield ""
        yield f"only where the model's own answer is of the category: {_objects(right)}"
    if checked:
        yield ""
        yield from check_table(checked, list(BASELINES))
        yield ""
        yield f"rank correlation with the map itself, {_objects(checked)}"
    if lacking:
        most = sorted(lacking, key=lambda name: -lacking[name])
        more = f" and {len(most) - 4} more" if len(most) > 4 else ""
        yield f"no class of {', '.join(most[:4])}{more}: {sum(lacking.values())} left out"
    yield from _remarks(scored)
    yield _signature(settings)


def report_numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means of all methods, as JSON holds them.

    Args:
        rows: Of single images and methods.

    Example:
        >>> row = {"kind": "score", "image": "a", "category": None, "method": "rise"}
        >>> row["point"] = 1.0
        >>> report_numbers([row])["scores"]
        {'rise': {'count': 1, 'point': 1.0}}
    """
    scored, right, checked = _parts(rows)
    told = {"scores": summaries(scored)}
    if right:
        told["scores_where_right"] = summaries(right)
    if checked:
        told["checks"] = {
            method: _likeness([row for row in checked if row["method"] == method])
            for method in dict.fromkeys(row["method"] for row in checked)
        }
    return told


def _parts(
    rows: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the rows of scores, those where the model is right, and those of checks."""
    scored = [row for row in rows if row["kind"] == "score"]
    right = [row for row in scored if row.get("right") and not row.get("unseen")]
    return scored, right, [row for row in rows if row["kind"] == "check"]


def _likeness(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps = zip(*(row["randomized"] for row in rows), strict=True)
    return {
        "count": len(rows),
        "randomized": [sum(step) / len(rows) for step in steps],
        "other_class": sum(row["other_class"] for row in rows) / len(rows),
    }


def _counted(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    own = [row for row in rows if not row.get("unseen")]
    asked = (
        "the model's own answer, all objects count"
        if settings["target"] == "predicted"
        else "asked for by category"
    )
    return f"x 100; {_objects(own)}; {asked}"


def _objects(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many different things the rows are about."""
    things = {(row["image"], row["category"]) for row in rows}
    images = len({image for image, _ in things})
    kinds = len({category for _, category in things if category})
    word = "image" if images == 1 else "images"
    if not kinds:
        return f"{images} {word}"
    return f"{len(things)} maps of {kinds} categor{'y' if kinds == 1 else 'ies'} on {images} {word}"


def _remarks(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    unseen = {(row["image"], row["category"]) for row in rows if row.get("unseen")}
    if unseen:
        yield f"outside of what the network sees: {len(unseen)} left out"
    hard = {(row["image"], row["category"]) for row in rows if row.get("difficult")}
    if hard:
        yield f"hard: {len(hard)}"
    flat: dict[str, int] = {}
    for row in rows:
        if row.get("flat"):
            flat[row["method"]] = flat.get(row["method"], 0) + 1
    for method, count in flat.items():
        maps = "map is" if count == 1 else "maps are"
        yield f"{method}: {count} {maps} the same everywhere, and counted as missing the objects"


def _signature(settings: Mapping[str, Any]) -> str:
    threshold, weights = settings["threshold"], settings["weights"]
    if not isinstance(weights, str):
        weights = "{file}@{sha256}".format(**weights)
    return "|".join(
        (
            f"model:{settings['model']}",
            f"weights:{weights}",
            f"data:{settings['data']}",
            f"target:{settings['target']}",
            f"peak:{settings['tolerance']:g}px",
            f"iou:{'mean' if threshold is None else threshold}",
            f"steps:{settings['steps']}",
            f"seed:{settings['seed']}",
            f"visattn:{settings['visattn']}",
        )
    )
