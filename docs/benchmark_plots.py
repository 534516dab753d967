"""Plots of `benchmarks.md`, drawn from the tables in `results/`.

`python docs/benchmark_plots.py` draws them as SVG files next to the page. Each holds the digest of
the rows that it was drawn from, so that the tests notice a plot that is older than its table.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from result_tables import table  # noqa: E402
from run_rows import Rows  # noqa: E402

WIDTH = 4.6  # inches: as wide as a phone, and not larger on a desk
LIBRARIES = {"grad-cam": "#c2571a", "torchcam": "#1f6fb4", "captum": "#3f8f4f"}
OURS, OTHERS, GRAY = "#b5179e", "#4c566a", "#8a8f98"
STYLE = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "visattn",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "savefig.facecolor": "white",
}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell: of `0.92 ± 0.09 (3 seeds)` 0.92, 0.09 and 3."""
    return [float(number) for number in NUMBER.findall(cell)]


def score(cell: str) -> tuple[float, float]:
    """Return a score and its standard deviation over seeds, 0 for one seed."""
    first, *others = numbers(cell)
    return first, others[0] if "±" in cell else 0.0


def axes(height: float) -> tuple[Figure, Axes]:
    """Return a figure of a height in inches, and its axes."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def rows_from_top(panel: Axes, labels: list[str]) -> None:
    """Label rows from top to bottom, with a faint line for each."""
    panel.set_yticks(range(len(labels)), labels)
    panel.set_ylim(len(labels) - 0.4, -0.6)
    panel.grid(axis="y", color="#e6e8eb", linewidth=0.8)
    panel.tick_params(axis="y", length=0)
    panel.set_axisbelow(True)


def speed(peers: Rows) -> Figure:
    """Draw the time of other libraries divided by ours, a row per method and network."""
    figure, panel = axes(4.2)
    labels = list(dict.fromkeys(f"{row['map']}, {row['network'].split(',')[0]}" for row in peers))
    for row in peers:
        at = labels.index(f"{row['map']}, {row['network'].split(',')[0]}")
        color, [low, high] = LIBRARIES[row["compared with"]], numbers(row["rounds"])
        panel.plot([low, high], [at, at], color=color, linewidth=2, solid_capstyle="round")
        panel.plot(float(row["ratio of times"]), at, "o", color=color, markersize=5)
    panel.axvline(1, color=GRAY, linewidth=1)
    panel.set_xscale("log")
    panel.set_xticks([1, 2, 4, 10, 30], ["1", "2", "4", "10", "30"])
    panel.minorticks_off()
    panel.set_xlabel("time of the library / time of visattn")
    rows_from_top(panel, labels)
    for number, (name, color) in enumerate(LIBRARIES.items()):
        panel.text(0.98, 0.34 - 0.05 * number, name, color=color, ha="right",
                   transform=panel.transAxes, weight="bold")  # fmt: skip
    return figure


def scatter(panel: Axes, points: list[tuple[str, float, float, str, str]]) -> None:
    """Draw named points: name, x, y, color, and on which side the name stands."""
    sides = {"right": (6, -3, "left"), "left": (-6, -3, "right"),
             "above": (0, 6, "center"), "below": (0, -13, "center")}  # fmt: skip
    for name, x, y, color, side in points:
        right, up, align = sides[side]
        panel.plot(x, y, "X" if color == GRAY else "o", color=color, markersize=7)
        panel.annotate(name, (x, y), (right, up), textcoords="offset points", ha=align, color=color)
    panel.grid(color="#eef0f2", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.margins(0.15)


def maps(scores: Rows) -> Figure:
    """Draw methods and controls by how often they point at an object, and how much lies on it."""
    figure, panel = axes(2.8)
    sides = {"Grad-CAM": "left", "Layer-CAM": "below", "gradient × input": "left"}
    points = []
    for row in scores:
        name, color = row["model"].removeprefix("control: "), OTHERS if row["config"] else GRAY
        at = float(row["point"]), float(row["energy"])
        points.append((name, *at, color, sides.get(name, "right")))
    scatter(panel, points)
    panel.set_xlim(15, 39)
    panel.set_xlabel("maximum on the object, % of maps")
    panel.set_ylabel("share of the map on it, %")
    return figure


def blocks(flowers: Rows) -> Figure:
    """Draw the accuracy on flowers, a panel for each way of training."""
    groups = {"fine-tuned, 160 pixels": flowers[:3], "75 steps, 112 pixels": flowers[3:]}
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, height_ratios=[3, 4])
    for panel, (title, rows) in zip(panels, groups.items(), strict=True):
        for at, row in enumerate(rows):
            mean, deviation = score(row["accuracy, %"])
            color = OURS if re.search("CBAM|SE", row["model"]) else OTHERS
            panel.errorbar(mean, at, xerr=deviation, fmt="o", color=color, capsize=2, markersize=5)
        rows_from_top(panel, [row["model"] for row in rows])
        panel.set_title(title, fontsize=9, loc="left", color=GRAY)
    panels[-1].set_xlabel("accuracy, %")
    return figure


def papers(tables: dict[str, Rows]) -> Figure:
    """Draw published scores and ours, errors of glimpse models and BLEU-4 of captioners."""
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    panels = figure.subplots(2, 1, height_ratios=[7, 4])
    known = [[row for row in tables[task] if row["published"]] for task in PLOTS["papers"][1]]
    columns = ("error, %", "lower"), ("BLEU-4", "higher")
    for panel, rows, (column, better) in zip(panels, known, columns, strict=True):
        for at, row in enumerate(rows):
            ours, deviation = score(row[column])
            published = numbers(row["published"])[0]
            panel.plot([ours, published], [at, at], color="#c9cdd3", linewidth=2, zorder=1)
            panel.plot(published, at, "o", color="white", markeredgecolor=OTHERS, markersize=6)
            panel.errorbar(ours, at, xerr=deviation, fmt="o", color=OURS, markersize=6, capsize=2)
        rows_from_top(panel, [row["model"] for row in rows])
        panel.set_xlabel(f"{column} ({better} is better)")
    panels[0].set_xlim(0)
    panels[0].plot([], [], "o", color="white", markeredgecolor=OTHERS, label="published")
    panels[0].plot([], [], "o", color=OURS, label="visattn")
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    return figure


def captions(tables: dict[str, Rows]) -> Figure:
    """Draw captioners of photos by the quality of their captions and of their maps."""
    figure, panel = axes(2.8)
    sides = {"soft attention": "above"}
    cider = {row["model"]: score(row["CIDEr-D"])[0] for row in tables["captions_photos"]}
    points = []
    for row in tables["phrases"]:
        if row["data"] == "its own captions":
            name, is_bundled = row["model"].partition(":")[0], ":" in row["model"]
            color, side = (OURS, "left") if is_bundled else (OTHERS, sides.get(name, "right"))
            points.append((name, cider[row["model"]], 100 * float(row["pointing"]), color, side))
    scatter(panel, points)
    panel.set_xlim(45, 60)
    panel.set_ylim(60, 88)
    panel.set_xlabel("CIDEr-D")
    panel.set_ylabel("maximum in the phrase's box, %")
    return figure


PLOTS: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "speed": (speed, ("peers",)),
    "maps": (maps, ("maps",)),
    "blocks": (blocks, ("classification",)),
    "papers": (papers, ("glimpses", "captions_photos")),
    "captions": (captions, ("captions_photos", "phrases")),
}
"""Each plot, and the tables that it is drawn from."""


def digest(tables: dict[str, Rows]) -> str:
    """Return what a plot carries to say which rows it shows."""
    text = json.dumps(tables, sort_keys=True)
    return "rows " + hashlib.sha256(text.encode()).hexdigest()[:12]


def file_of(name: str) -> Path:
    """Return the file of a plot."""
    return HERE / f"benchmark_{name}.svg"


def main() -> int:
    """Draw all plots."""
    with mpl.rc_context({**mpl.rcParamsDefault, **STYLE, "backend": "agg"}):
        for name, (draw, tasks) in PLOTS.items():
            tables = {task: table(task) for task in tasks}
            figure = draw(tables if len(tasks) > 1 else tables[tasks[0]])
            metadata = {"Description": digest(tables), "Date": None}
            figure.savefig(file_of(name), metadata=metadata)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
