"""`visattn compare`: train a config with several blocks and seeds, and compare the test scores."""

import itertools
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import quote

from tyro.conf import arg

from visattn.commands.arguments import EMPTY, Figures, Values, Word
from visattn.commands.loop import csv_table, encode_figure
from visattn.commands.streams import print_lines, print_where
from visattn.io.atomic import atomic_write
from visattn.io.safe_text import print_message, read_json

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from matplotlib.figure import Figure

_NETWORKS = ("classifier", "segmenter")  # arguments of tasks whose networks take blocks


def compare(
    *,
    config: Annotated[str, arg(metavar="NAME|FILE")],
    rows: Annotated[tuple[str, ...], arg(metavar="ROW ...")],
    seeds: Annotated[tuple[int, ...], arg(metavar="SEED ...")] = (0, 1, 2),
    options: Values = (),
    metric: Word = "",
    figures: Figures = "png",
    out: Annotated[Path | None, EMPTY, arg(metavar="FOLDER")] = None,
) -> int:
    """Train a config with several attention blocks and seeds, and compare their test scores.

    The first row is the baseline. For the others, the table has the mean of the paired differences
    from it, seed by seed, with a 95 % interval (Student's t). Writes compare.csv, a line per run
    with all scores; compare.md and compare.tex, the table; a figure; and ROW/SEED, the runs. Tested
    runs are not trained again, and interrupted ones are resumed. The last checkpoint of a run is
    tested, so that the test photos do not choose it.

    Args:
        config: a config of visattn configs, or a file
        rows: blocks to compare, the baseline first, such as none se cbam:reduction=8; or options of
            visattn fit, such as model.label_smoothing=0; or both, joined by commas, as in
            cbam:reduction=8,model.classifier.init=paper; as-is is the config itself
        seeds: seeds of weights, data order and augmentation
        options: options of visattn fit for all rows, such as trainer.max_epochs=30
        metric: the test score to compare (default: the one that selects the best checkpoint, or
            the first one without validation)
        figures: format of the figure
        out: folder of runs and tables (default: runs/compare/CONFIG)
    """
    from visattn.training.command import config_digest, config_file

    file = Path(config_file(config))
    text = file.read_text(encoding="utf-8")
    changes = {row: row_options(row, text) for row in rows}
    out = out or Path("runs/compare", file.stem)
    recipe = {"config": config_digest(text), "options": [*options]}
    if (out / "compare.json").is_file() and read_json(out / "compare.json") != recipe:
        raise ValueError(
            f"{out} compares another version of the config, or other --options: choose another "
            "--out"
        )
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "compare.json", json.dumps(recipe))
    code = 0
    try:
        for seed, row in itertools.product(seeds, rows):
            words = [*changes[row], *options, f"seed_everything={seed}", f"data.seed={seed}"]
            if code := _train(file, _folder(out, row, seed), words):
                print_message(f"{row}, seed {seed}: stopped; the same command resumes it")
                break
    finally:
        runs = [run for row in rows for seed in seeds if (run := read_run(out, row, seed))]
        if runs:
            _write(runs, metric, out, figures)
    return code


def row_options(row: str, config: str) -> list[str]:
    """Return the options of fit, NAME=VALUE, that make a row of a config.

    Raises:
        ValueError: If the block is unknown, or the network takes none.

    Example:
        >>> config = "{model: {init_args: {classifier: {class_path: TimmClassifier}}}}"
        >>> row_options("eca:kernel_size=5,model.classifier.init=paper", config)
        ['model.classifier.block=eca', 'model.classifier.block_kwargs={"kernel_size": 5}',
        'model.classifier.init=paper']
        >>> row_options("data.batch_size=8,data.num_workers=0", config)
        ['data.batch_size=8', 'data.num_workers=0']
    """
    import yaml

    from visattn.blocks.registry import block_class

    if row == "as-is":
        return []
    block, _, rest = row.partition(":")
    if "=" in block:
        block, rest = "", row
    words = re.split(r",(?=[\w.]+=)", rest) if rest else []
    others = [word for word in words if "." in word.partition("=")[0]]
    if not block:
        return others
    arguments = yaml.safe_load(config)["model"]["init_args"]
    name = next((each for each in _NETWORKS if each in arguments), None)
    if name is None:
        raise ValueError(f"the network of this config takes no block; got the row {row!r}")
    if block != "none":
        block_class(block)  # raises if the name is unknown
    parts = [word.partition("=") for word in words if word not in others]
    given = {key: yaml.safe_load(value) for key, _, value in parts}
    kind = arguments[name]["class_path"]
    if (
        kind == "ModuleClassifier"
        or ":" in kind
        or ("." in kind and not kind.startswith("visattn."))
    ):
        # Other networks place each block themselves; here it keeps the position of the config.
        if given:
            raise ValueError(f"blocks of {kind} take no arguments; got the row {row!r}")
        before = arguments[name].get("init_args", {}).get("blocks") or {}
        blocks = {} if block == "none" else {block: next(iter(before.values()), "residual")}
        return [f"model.{name}.blocks={json.dumps(blocks)}", *others]
    made = [f"model.{name}.block={block}", f"model.{name}.block_kwargs={json.dumps(given)}"]
    return [*made, *others]


def _folder(out: Path, row: str, seed: int) -> Path:
    return out / quote(row.replace(":", ","), safe="=,") / str(seed)


def _train(config: Path, run: Path, options: Sequence[str]) -> int:
    """Train and test a run, unless it has been tested; return the exit code."""
    from visattn.training.command import main as training

    if (run / "test.json").is_file():
        return 0
    words = [f"--{each}" for each in options]
    # With `last`, a run without a checkpoint starts from scratch.
    fit = ["fit", "--config", str(config), "--run", str(run), "--ckpt_path", "last", *words]
    last = str(run / "checkpoints" / "last.ckpt")
    return training(fit) or training(["test", "--run", str(run), "--ckpt_path", last])


class Run(NamedTuple):
    """A tested run; `shared` is the number of test photos that are also validation photos."""

    row: str
    seed: int
    parameters: int
    minutes: float
    scores: Mapping[str, float]
    monitor: str = ""
    shared: int = 0


def read_run(out: Path, row: str, seed: int) -> Run | None:
    """Return a run of the folder; None if it has not been tested."""
    run = _folder(out, row, seed)
    if not (run / "test.json").is_file():
        return None
    record, scores = read_json(run / "run.json"), read_json(run / "test.json")
    return Run(
        row,
        seed,
        record["fit"]["parameters"],
        round(record["fit"]["wall_seconds"] / 60, 2),
        {
            name.removeprefix("test/"): value
            for name, value in scores.items()
            if isinstance(value, float)
        },
        next(iter(record["fit"]["best"] or {"": 0})).removeprefix("val/"),
        record["test"]["shared"],
    )


class Line(NamedTuple):
    """A row of the table: scores of its seeds, and their differences from the first row."""

    row: str
    parameters: int
    minutes: float
    scores: Sequence[float]
    gains: Sequence[float]


def lines_of(runs: Sequence[Run], metric: str) -> list[Line]:
    """Return the rows of the table, the baseline first."""
    rows: dict[str, dict[int, Run]] = {}
    for run in runs:
        rows.setdefault(run.row, {})[run.seed] = run
    scale = _scale(runs, metric)
    baseline = next(iter(rows.values()))
    lines: list[Line] = []
    for row, made in rows.items():
        scores = {seed: scale * run.scores[metric] for seed, run in made.items()}
        pairs = [seed for seed in made if seed in baseline and made is not baseline]
        gains = [scores[seed] - scale * baseline[seed].scores[metric] for seed in pairs]
        minutes = statistics.mean(run.minutes for run in made.values())
        parameters = next(iter(made.values())).parameters
        lines.append(Line(row, parameters, minutes, [*scores.values()], gains))
    return lines


def _scale(runs: Sequence[Run], metric: str) -> int:
    """Return 100 for scores from 0 to 1, which the table shows in percent; 1 for others."""
    return 100 if all(0 <= run.scores[metric] <= 1 for run in runs) else 1


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of a mean, by Student's t-distribution.

    Example:
        >>> low, high = interval([1.0, 3.0])  # 2 ± 12.71 · √2 / √2
        >>> round(low, 2), round(high, 2)
        (-10.71, 14.71)
    """
    from scipy.special import stdtrit

    count = len(values)
    reach = float(stdtrit(count - 1, 0.975)) * statistics.stdev(values) / count**0.5
    return statistics.mean(values) - reach, statistics.mean(values) + reach


def _cells(line: Line) -> list[str]:
    """Return the cells of a row, with ± as the standard deviation over the seeds."""
    several = len(line.scores) > 1
    deviation = f" ± {statistics.stdev(line.scores):.2f}" if several else ""
    gain = f"{statistics.mean(line.gains):+.2f}" if line.gains else ""
    if len(line.gains) > 1:
        low, high = interval(line.gains)
        gain += f" ({low:+.2f} to {high:+.2f})"
    score = f"{statistics.mean(line.scores):.2f}{deviation}"
    counts = f"{line.parameters:,}", str(len(line.scores))
    return [line.row, *counts, score, gain, f"{line.minutes:.1f}"]


def _write(runs: Sequence[Run], metric: str, out: Path, figures: str) -> None:
    """Write and print the tables, and draw the figure."""
    metric = metric or runs[0].monitor or next(iter(runs[0].scores))
    if metric not in runs[0].scores:
        raise ValueError(f"--metric must be one of {', '.join(runs[0].scores)}; got {metric!r}")
    note = ""
    if shared := max(run.shared for run in runs):
        note = (
            f"{shared:,} of the test photos are also validation photos: for unbiased scores, "
            "use a separate test split."
        )
    lines = lines_of(runs, metric)
    unit = ", %" if _scale(runs, metric) == 100 else ""
    heading = f"{metric.replace('_', ' ')}{unit}"
    first = lines[0].row
    head = ["row", "parameters", "seeds", heading, f"difference to {first} (95 % interval)"]
    table = [[*head, "minutes"], *map(_cells, lines)]
    markdown = markdown_table(table, note)
    atomic_write(out / "compare.md", markdown)
    atomic_write(out / "compare.tex", latex_table(table, note))
    columns = ("row", "seed", "parameters", "minutes")
    records = [{key: getattr(run, key) for key in columns} | dict(run.scores) for run in runs]
    atomic_write(out / "compare.csv", csv_table(records))
    picture = f"compare.{figures}"
    atomic_write(out / picture, encode_figure(_figure(lines, heading), picture))
    print_lines(markdown.splitlines())
    print_where(out / picture)


def markdown_table(table: Sequence[Sequence[str]], note: str) -> str:
    """Return a table in Markdown; the first row is the header.

    Example:
        >>> print(markdown_table([["a", "b"], ["1", "2"]], "few"))
        | a | b |
        |---|---|
        | 1 | 2 |
        <BLANKLINE>
        few
    """
    rows = [f"| {' | '.join(row)} |" for row in table]
    rows.insert(1, "|" + "---|" * len(table[0]))
    return "\n".join([*rows, *(["", note] if note else [])]) + "\n"


def latex_table(table: Sequence[Sequence[str]], note: str) -> str:
    r"""Return a table in LaTeX with the rules of booktabs.

    Example:
        >>> print(latex_table([["a", "b, %"], ["x_1", "2 ± 1"]], ""))
        \begin{tabular}{lr}
        \toprule
        a & b, \% \\
        \midrule
        x\_1 & 2 $\pm$ 1 \\
        \bottomrule
        \end{tabular}
    """
    rows = [" & ".join(map(_latex, row)) + r" \\" for row in table]
    columns = len(table[0])
    if note:
        rows.append(rf"\multicolumn{{{columns}}}{{l}}{{\footnotesize {_latex(note)}}} \\")
    begin = rf"\begin{{tabular}}{{l{'r' * (columns - 1)}}}"
    body = [begin, r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"]
    return "\n".join([*body, r"\end{tabular}"]) + "\n"


def _latex(text: str) -> str:
    return re.sub(r"([%&#_{}$])", r"\\\1", text).replace("±", r"$\pm$")


def _figure(lines: Sequence[Line], heading: str) -> "Figure":
    """Return a figure: per row a bar (mean difference), its interval, and a dot per seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 0.8 + 0.4 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for y, line in enumerate(lines):
        axes.barh(y, statistics.mean(line.gains or [0.0]), height=0.6, color="#9ec3de")
        axes.plot(line.gains, [y] * len(line.gains), "o", color="0.2", markersize=4)
        if len(line.gains) > 1:
            axes.plot(interval(line.gains), [y, y], color="0.2")
    axes.axvline(0, color="0.2", linewidth=0.8)
    axes.set_xlabel(f"difference to {lines[0].row}: {heading}")
    axes.set_yticks(range(len(lines)), [line.row for line in lines])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    return figure
