r"""Train one config with several blocks and seeds, and compare their accuracy.

    python tools/compare_blocks.py --config configs/cifar10_resnet20.yaml \
        --rows none wider:cbam cbam se:reduction=4 --seeds 0 1 2 --out runs/compare/cifar10.jsonl

A row is a block with its arguments; `none` is the network without attention, and `wider:BLOCK` is
the plain network with wider residual units and as many parameters as the one with the block
(AttentionResNet only). `init`, `position`, `stages` and `freeze_backbone` are arguments of the
classifier: `cbam:init=paper`. A classifier without blocks is compared by its own arguments: `as-is`
is the config itself, `with:lsa=true` and `with:depth=4,global_pool=mean`
override arguments. So are captioners, with other metrics: `--rows with:score=dot with:score=general
--metrics sequence_error digit_error`. A segmenter has blocks as a classifier has. Arguments of the
task begin with `task.`: `gate:task.gate_loss_weight=0.2`. Options after `--` are passed to every
training, such as `-- --trainer.max_epochs 30`.

Every finished run is a line of the file and is not trained again. Runs are tested at their last
checkpoint, so that test images select nothing. With --table nothing is trained.
"""

import argparse
import hashlib
import itertools
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from visattn.cli import main as visattn
from visattn.models.resnet import STAGES, AttentionResNet
from visattn.models.saving import load
from visattn.training.run_dir import next_run_dir

METRICS = ("accuracy", "calibration_error")
CLASSIFIER_ARGUMENTS = ("init", "position", "stages", "freeze_backbone")
TASK = "task."  # prefix of arguments of the task
# Two-sided 95% quantiles of Student's t-distribution, from 1 degree of freedom.
T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)


class Row(NamedTuple):
    """Row of the comparison: its name, and the changed arguments of the classifier."""

    name: str
    changes: dict[str, Any]


def row_of(name: str, config: dict[str, Any]) -> Row:
    """Parse a row of the command line."""
    block, _, rest = name.partition(":")
    if block == "wider":
        return Row(
            name, {"block": "none", "stage_widths": wider(config, row_of(rest, config).changes)}
        )
    values = yaml.safe_load(f"{{{rest.replace('=', ': ')}}}")
    if block in ("as-is", "with"):
        return Row(name, values)
    own = {
        key: values.pop(key)
        for key in list(values)
        if key in CLASSIFIER_ARGUMENTS or key.startswith(TASK)
    }
    return Row(name, {"block": block, "block_kwargs": values, **own})


def network_name(config: dict[str, Any]) -> str:
    """Return the argument of the task that is its network, such as `classifier`."""
    arguments = config["model"]["init_args"]
    return next(name for name in ("classifier", "captioner", "segmenter") if name in arguments)


def classifier_of(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the class of the config's classifier and its arguments."""
    classifier = config["model"]["init_args"]["classifier"]
    lists = classifier.get("init_args", {})
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in lists.items()}
    return classifier["class_path"], arguments


def count(arguments: dict[str, Any], **changes: Any) -> int:
    """Return the number of parameters of a network with two classes, built on the meta device."""
    with torch.device("meta"):
        model = AttentionResNet(("one", "other"), **{**arguments, **changes})
    return sum(parameter.numel() for parameter in model.parameters())


def wider(config: dict[str, Any], changes: dict[str, Any]) -> list[int]:
    """Return the stage widths of a plain network with as many parameters as another."""
    kind, arguments = classifier_of(config)
    if kind.rpartition(".")[2] != "AttentionResNet":
        raise ValueError(f"only an AttentionResNet can be made wider, got {kind}")
    width = arguments.get("stem_width", 16)
    usual = arguments.get("stage_widths") or [width * 2**stage for stage in range(STAGES)]
    target = count(arguments, **changes)

    def count_plain(widths: Sequence[int]) -> int:
        return count(arguments, block="none", stage_widths=tuple(widths))

    low, high = 1.0, 4.0
    while max(usual) * (high - low) >= 1:
        middle = (low + high) / 2
        fits = count_plain([int(width * middle) for width in usual]) <= target
        low, high = (middle, high) if fits else (low, middle)
    base = [int(width * low) for width in usual]
    missing = target - count_plain(base)
    steps = [
        count_plain([width + (index == stage) for index, width in enumerate(base)])
        - count_plain(base)
        for stage in range(len(base))
    ]
    more = min(
        itertools.product(range(6), repeat=len(base)),
        key=lambda more: abs(sum(map(mul, more, steps)) - missing),
    )
    return [width + extra for width, extra in zip(base, more, strict=True)]


def train_row(
    config: Path, row: Row, seed: int, *, folder: Path, extra: Sequence[str], metric: str
) -> dict[str, Any]:
    """Train and test one row with one seed; return its record."""
    run = next_run_dir(f"{re.sub('[^a-z0-9=.]+', '-', row.name)}-{seed}", folder)
    options = ["--config", str(config), "--seed_everything", str(seed), "--data.seed", str(seed)]
    network = network_name(yaml.safe_load(config.read_text(encoding="utf-8")))
    for key, value in row.changes.items():
        text = value if isinstance(value, str) else json.dumps(value)
        option = key.removeprefix(TASK) if key.startswith(TASK) else f"{network}.{key}"
        options += [f"--model.{option}", text]
    started, started_cpu = time.monotonic(), time.process_time()
    last = run / "checkpoints" / "last.ckpt"
    for command in (["fit", "--run", str(run)], ["test", "--ckpt_path", str(last)]):
        if visattn([*command, *options, *extra]) != 0:
            raise RuntimeError(f"{row.name} with seed {seed} failed in {command[0]}; see above")
    model = load(last)
    return {
        "row": row.name,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "test": json.loads((run / "test.json").read_text(encoding="utf-8")),
        "validation": read_validations(run, metric),
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(time.process_time() - started_cpu, 1),
        "run": str(run),
        "changes": row.changes,
        "recipe": recipe(config, extra),
    }


def read_validations(run: Path, metric: str) -> list[float]:
    """Return a metric at each validation of a run."""
    (table,) = run.glob("csv-*/metrics.csv")
    head, *lines = table.read_text(encoding="utf-8").splitlines()
    column = head.split(",").index(f"val/{metric}")
    values = [line.split(",")[column] for line in lines]
    return [round(float(value), 5) for value in values if value]


def recipe(config: Path, extra: Sequence[str]) -> str:
    """Return a hash of the config and the extra options: other recipes are not compared."""
    text = config.read_text(encoding="utf-8") + "\0".join(extra)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def table(lines: Sequence[dict[str, Any]], metrics: Sequence[str] = METRICS) -> str:
    """Return a table with one line per row; the first row is the baseline of the others.

    Args:
        lines: Records of finished runs.
        metrics: The metric that is compared, and others that are shown beside it.
    """
    metric, *others = metrics
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines:
        rows.setdefault(line["row"], {})[line["seed"]] = line
    control = next(iter(rows.values()), {})
    lines_out = [
        f"| row | parameters | seeds | {heading(metric)} | difference to the first, points | "
        f"{''.join(f'{heading(name)} | ' for name in others)}minutes |",
        "|---|---|---|---|---|" + "---|" * len(others) + "---|",
    ]
    for name, runs in rows.items():
        gains = [
            percentage(run, metric) - percentage(control[seed], metric)
            for seed, run in runs.items()
            if seed in control
        ]
        parts = (
            name,
            f"{next(iter(runs.values()))['parameters']:,}",
            str(len(runs)),
            spread([percentage(run, metric) for run in runs.values()]),
            "" if runs is control else interval(gains),
            *(spread([percentage(run, name) for run in runs.values()]) for name in others),
            f"{statistics.mean(run['seconds'] for run in runs.values()) / 60:.1f}",
        )
        lines_out.append(f"| {' | '.join(parts)} |")
    return "\n".join(lines_out)


def epochs(lines: Sequence[dict[str, Any]]) -> str:
    """Return the mean of the compared metric of each row, validation by validation."""
    rows: dict[str, list[list[float]]] = {}
    for line in lines:
        rows.setdefault(line["row"], []).append(line["validation"])
    length = max((len(run) for runs in rows.values() for run in runs), default=0)
    lines_out = [
        f"| validation | {' | '.join(map(str, range(1, length + 1)))} |",
        f"|---|{'---|' * length}",
    ]
    for name, runs in rows.items():
        means = [f"{100 * statistics.mean(each):.1f}" for each in zip(*runs, strict=False)]
        lines_out.append(f"| {name} | {' | '.join(means)} |")
    return "\n".join(lines_out)


def percentage(run: dict[str, Any], metric: str) -> float:
    """Return a metric of the test of a run, in percent; NaN if the run does not have it."""
    return 100 * float(run["test"].get(f"test/{metric}", "nan"))


def heading(metric: str) -> str:
    """Return the heading of the column of a metric."""
    return f"{metric.replace('_', ' ')}, %"


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation; "" for a metric that the runs do not have."""
    if all(math.isnan(value) for value in values):
        return ""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def interval(gains: Sequence[float]) -> str:
    """Return the mean of paired differences and its 95% confidence interval."""
    if not gains:
        return "no seed in common"
    mean = statistics.mean(gains)
    if len(gains) < 2:
        return f"{mean:+.2f}"
    quantile = T_QUANTILES[len(gains) - 2] if len(gains) - 2 < len(T_QUANTILES) else 1.96
    reach = quantile * statistics.stdev(gains) / len(gains) ** 0.5
    return f"{mean:+.2f} ({mean - reach:+.2f} to {mean + reach:+.2f})"


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config", type=Path, required=True, help="config of a classifier, captioner or segmenter"
    )
    parser.add_argument(
        "--rows", nargs="+", required=True, help="rows to compare, the baseline first"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--out", type=Path, required=True, help="FILE.jsonl with a line per finished run"
    )
    parser.add_argument(
        "--table", action="store_true", help="print the tables of finished runs without training"
    )
    parser.add_argument(
        "--metrics",
        nargs="+",
        default=METRICS,
        help="test metrics of the table; the first is compared",
    )
    parser.add_argument("extra", nargs="*", help="after --, options of every training")
    return parser


def main(argv: Sequence[str], train: Callable[..., dict[str, Any]] = train_row) -> int:
    """Train the missing runs and print the tables."""
    args = build_parser().parse_args(argv)
    config = yaml.safe_load(args.config.read_text(encoding="utf-8"))
    mark = recipe(args.config, args.extra)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    text = args.out.read_text(encoding="utf-8") if args.out.exists() else ""
    done = [line for line in map(json.loads, text.splitlines()) if line["recipe"] == mark]
    known = {(line["row"], line["seed"]) for line in done}
    for seed, name in itertools.product(args.seeds, () if args.table else args.rows):
        if (name, seed) in known:
            continue
        row, folder = row_of(name, config), args.out.with_suffix("")
        line = train(
            args.config, row, seed, folder=folder, extra=args.extra, metric=args.metrics[0]
        )
        done.append(line)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    shown = [line for name in args.rows for line in done if line["row"] == name]
    print(table(shown, args.metrics), epochs(shown), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
