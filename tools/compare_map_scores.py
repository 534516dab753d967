r"""Compare two runs of `visattn score maps` map by map, such as both placements of the cells.

    visattn score maps --model MODEL --data DATA --methods gradcam --align edges --out edges
    visattn score maps --model MODEL --data DATA --methods gradcam --align receptive_field \
        --out field
    python tools/compare_map_scores.py --first edges --second field

For each method, and by the share of the image that the boxes of the objects cover: how often the
maximum of the map lies in a box (`in box`, within the tolerance of the runs), how much of the map
lies inside (`energy`), both in percent, and the difference of the second run to the first, with a
95 % interval by bootstrap over images: all maps of an image are drawn together.

Several folders on each side, such as models trained with several seeds, are compared pair by pair:
each number is then the mean over the pairs and its standard deviation.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from visattn.attribution.saliency import BASELINES
from visattn.commands.options import CommandParser

SCORES = {"point_box": "in box, %", "energy_box": "energy, %"}
SHARES = (0.0, 0.1, 0.3, 1.0)
"""Limits of the shares of an image that boxes cover, by which maps are grouped."""
DRAWS = 2000


class Pair(NamedTuple):
    """Scores of one map in both runs."""

    image: str
    share: float
    first: dict[str, float]
    second: dict[str, float]


def read_run(folder: Path) -> tuple[dict[str, Any], dict[tuple[str, str | None, str], Any]]:
    """Return the settings of a run, and its localization scores by image, category and method."""
    head, *lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if "energy_box" in row]
    if not rows:
        raise ValueError(f"{folder} must hold localization scores, but has none")
    keyed = {(row["image"], row["category"], row["method"]): row for row in rows}
    return json.loads(head)["settings"], keyed


def pairs_of(first: Path, second: Path) -> tuple[dict[str, list[Pair]], str]:
    """Return the pairs of each method, and which settings of the runs differ."""
    (settings, rows), (other_settings, others) = read_run(first), read_run(second)
    if rows.keys() != others.keys():
        raise ValueError(
            f"{first} and {second} must score the same maps, but {len(rows.keys() ^ others.keys())}"
            " are in one of them only; finish both runs with the same data and methods"
        )
    changed = [key for key in settings | other_settings
               if settings.get(key) != other_settings.get(key)]  # fmt: skip
    note = ", ".join(f"{key} {settings.get(key)} -> {other_settings.get(key)}" for key in changed)
    pairs: dict[str, list[Pair]] = {}
    for key, row in rows.items():
        scores = ({name: each[name] for name in SCORES} for each in (row, others[key]))
        if row["method"] not in BASELINES:
            pairs.setdefault(row["method"], []).append(Pair(row["image"], row["area_box"], *scores))
    return pairs, note or "none"


def in_group(pairs: Sequence[Pair], low: float, high: float) -> list[Pair]:
    """Return the maps whose boxes cover more than `low` of the image, up to `high`."""
    return [pair for pair in pairs if low < pair.share <= high]


def means(pairs: Sequence[Pair], score: str) -> tuple[float, float, float]:
    """Return the means of a score in both runs and their difference, in percent."""
    first, second = (
        100 * statistics.fmean(getattr(pair, run)[score] for pair in pairs)
        for run in ("first", "second")
    )
    return first, second, second - first


def interval(pairs: Sequence[Pair], score: str) -> tuple[float, float]:
    """Return the 95 % interval of the mean difference, in percent, by bootstrap over images."""
    images: dict[str, list[float]] = {}
    for pair in pairs:
        images.setdefault(pair.image, []).append(100 * (pair.second[score] - pair.first[score]))
    sums = np.array([sum(values) for values in images.values()])
    counts = np.array([len(values) for values in images.values()])
    drawn = np.random.default_rng(0).integers(len(images), size=(DRAWS, len(images)))
    low, high = np.percentile(sums[drawn].sum(1) / counts[drawn].sum(1), [2.5, 97.5])
    return float(low), float(high)


def cells(runs: Sequence[Sequence[Pair]], score: str) -> list[str]:
    """Return the cells of a score: first, second and difference."""
    first, second, difference = zip(*(means(pairs, score) for pairs in runs), strict=True)
    if len(runs) > 1:
        return [
            f"{statistics.fmean(values):{sign}.1f} ± {statistics.stdev(values):.1f}"
            for values, sign in ((first, ""), (second, ""), (difference, "+"))
        ]
    low, high = interval(runs[0], score)
    return [
        f"{first[0]:.1f}",
        f"{second[0]:.1f}",
        f"{difference[0]:+.1f} ({low:+.1f} to {high:+.1f})",
    ]


def table(runs: Sequence[Mapping[str, Sequence[Pair]]]) -> Iterator[str]:
    """Yield the lines of the table.

    Args:
        runs: Pairs of each method, for each pair of runs.
    """
    heads = [f"{name}: first | second | difference" for name in SCORES.values()]
    yield f"| method | boxes cover | maps | {' | '.join(heads)} |"
    yield "|---" * (3 + 3 * len(heads)) + "|"
    groups = [(0.0, 1.0, "all")] + [
        (low, high, f"{low:g} to {high:g}") for low, high in itertools.pairwise(SHARES)
    ]
    for method in runs[0]:
        for low, high, name in groups:
            chosen = [in_group(run[method], low, high) for run in runs]
            if all(chosen):
                scores = (cell for score in SCORES for cell in cells(chosen, score))
                count = sum(map(len, chosen))
                yield f"| {method} | {name} | {count} | {' | '.join(scores)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("first", "second"):
        parser.add_argument(
            f"--{name}", type=Path, nargs="+", required=True, metavar="DIR",
            help="folder of a run of visattn score maps, or several",
        )  # fmt: skip
    args = parser.parse_args(argv)
    if len(args.first) != len(args.second):
        parser.error("--first and --second must have as many folders")
    compared = [pairs_of(*pair) for pair in zip(args.first, args.second, strict=True)]
    print(*table([pairs for pairs, _ in compared]), "", sep="\n")
    print("settings that differ:", "; ".join(dict.fromkeys(note for _, note in compared)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
