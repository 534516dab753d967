"""Tables of how methods fared, from the rows of single images."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

COLUMNS = {
    "point": "point",
    "point_box": "in box",
    "hard": "hard",
    "energy": "energy",
    "lift": "lift",
    "iou": "IoU",
    "insertion": "insert",
    "deletion": "delete",
    "road": "ROAD",
}
"""Names of the numbers, and what stands above them."""

_PLAIN = {"lift"}  # a ratio; all others are shares, printed x 100


def summaries(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean of each number of each method, over the images that have it.

    `hard` is `point` over difficult images, `lift` the energy over what chance would give.

    Args:
        rows: Of single images; those of which the network saw nothing are left out.

    Example:
        >>> row = {"method": "rise", "point": 1.0, "energy": 0.5, "area": 0.25, "difficult": False}
        >>> other = {**row, "point": 0.0, "energy": 0.25, "difficult": True}
        >>> summaries([row, other])["rise"]
        {'count': 2, 'point': 0.5, 'hard': 0.0, 'energy': 0.375, 'lift': 1.5}
    """
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if not row.get("unseen"):
            by_method.setdefault(row["method"], []).append(row)
    return {method: _means(own) for method, own in by_method.items()}


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {"count": len(rows)}
    for name in COLUMNS:
        if name == "hard":
            values = [row["point"] for row in rows if row.get("difficult")]
        elif name == "lift":
            values = []
            if "area" in rows[0]:
                found["lift"] = found["energy"] / fmean(row["area"] for row in rows)
        else:
            values = [row[name] for row in rows if row.get(name) is not None]
        if values:
            found[name] = fmean(values)
    return found


def table(found: Mapping[str, Mapping[str, float]], baselines: Sequence[str]) -> list[str]:
    """Return the lines of a table, the baselines below all others.

    Args:
        found: As `summaries` returns it.
        baselines: Methods that know nothing of the model.

    Example:
        >>> found = {"random": {"count": 2, "point": 0.25}, "rise": {"point": 0.5}}
        >>> lines = table(found, ["random"])
        >>> print(*lines, sep=chr(10))
                point
        rise     50.0
        random   25.0
    """
    names = [name for name in COLUMNS if any(name in own for own in found.values())]
    width = max(map(len, found), default=0) + 1
    order = [method for method in found if method not in baselines]
    order += [method for method in baselines if method in found]
    lines = [" " * width + "".join(f"{COLUMNS[name]:>7}" for name in names)]
    for method in order:
        cells = (_cell(name, found[method].get(name)) for name in names)
        lines.append(f"{method:{width}}" + "".join(f"{cell:>7}" for cell in cells))
    return [line.rstrip() for line in lines]


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if name in _PLAIN else f"{100 * value:.1f}"


def check_table(rows: Iterable[Mapping[str, Any]], baselines: Sequence[str]) -> list[str]:
    """Return the lines of a table of how alike maps stay when what they depend on is destroyed.

    Args:
        rows: Of single images.
        baselines: Methods that know nothing of the model.

    Example:
        >>> row = {"method": "rise", "randomized": [0.5, 0.1], "other_class": 0.2}
        >>> print(*check_table([row], []), sep=chr(10))
              weights shuffled, from the top    other
              50 %  100 %                       class
        rise  0.50   0.10                        0.20
    """
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    order = [method for method in by_method if method not in baselines]
    order += [method for method in baselines if method in by_method]
    if not order:
        return []
    width, lines = max(map(len, by_method)) + 1, list[str]()
    count = len(by_method[order[0]][0]["randomized"])
    shares = "".join(f"{f'{100 * (step + 1) / count:.0f} %':>7}" for step in range(count))
    wide = max(len(shares), 32)
    lines.append(f"{'':{width - 1}}  {'weights shuffled, from the top':{wide}}  other")
    lines.append(f"{'':{width}}{shares:{wide}}  class")
    for method in order:
        own = by_method[method]
        steps = [fmean(step) for step in zip(*(row["randomized"] for row in own), strict=True)]
        cells = "".join(f"{step:7.2f}" for step in steps)
        other = fmean(row["other_class"] for row in own)
        lines.append(f"{method:{width}}{cells:{wide}}  {other:5.2f}")
    return [line.rstrip() for line in lines]
