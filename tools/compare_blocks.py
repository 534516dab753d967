r"""Trains one recipe with several blocks and seeds, and says what each block is worth.

    python tools/compare_blocks.py --config configs/cifar10_resnet20_none.yaml \
        --rows none wider:cbam cbam se:reduction=4 --seeds 0 1 2 --out runs/compare/cifar10.jsonl

A row is a block with its options; `none` is the network without attention, and `wider:BLOCK` is
that network made wider inside its units until it has as many parameters as the one with the block
(of AttentionResNet alone). `init`, `at` and `stages` are the classifier's own: `cbam:init=paper`.
A classifier that takes no blocks is compared by its own arguments: `as-is` is the recipe itself,
`with:registers=4` and `with:attend=[window,shifted],extent=4` change them.
What stands after `--` goes to every training, such as `-- --trainer.max_epochs 30`.

Every finished run is a line of the file: what is there already is not trained again. Runs are
scored at their last checkpoint, so that no test image chooses anything. With --table nothing is
trained.
"""

import argparse
import hashlib
import itertools
import json
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
from visattn.models.resnet.attention_resnet import AttentionResNet, layout_of
from visattn.training.checkpoint.reader import read_model
from visattn.training.run_dir.create import next_run

OF_CLASSIFIER = ("init", "at", "stages")
# Of Student's distribution, two-sided, 95 %, for 1 and more degrees of freedom.
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)


class Row(NamedTuple):
    """What is compared: the name it is asked for by, and what it changes in the classifier."""

    name: str
    changes: dict[str, Any]


def row_of(name: str, config: dict[str, Any]) -> Row:
    """Return the row that a name on the command line stands for."""
    block, _, rest = name.partition(":")
    if block == "wider":
        return Row(name, {"block": "none", "inner": wider(config, row_of(rest, config).changes)})
    values = yaml.safe_load(f"{{{rest.replace('=', ': ')}}}")
    if block in ("as-is", "with"):
        return Row(name, values)
    own = {key: values.pop(key) for key in OF_CLASSIFIER if key in values}
    return Row(name, {"block": block, "options": values, **own})


def classifier_of(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the class of a config's classifier and its arguments."""
    classifier = config["model"]["init_args"]["classifier"]
    lists = classifier.get("init_args", {})
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in lists.items()}
    return classifier["class_path"], arguments


def count(arguments: dict[str, Any], **changes: Any) -> int:
    """Return the parameters of a network for two classes, without computing any of them."""
    with torch.device("meta"):
        model = AttentionResNet(("one", "other"), **{**arguments, **changes})
    return sum(parameter.numel() for parameter in model.parameters())


def wider(config: dict[str, Any], changes: dict[str, Any]) -> list[int]:
    """Return the inner widths of the plain network that has as many parameters as another."""
    kind, arguments = classifier_of(config)
    if kind.rpartition(".")[2] != "AttentionResNet":
        raise ValueError(f"only an AttentionResNet can be made wider, the config has a {kind}")
    layout = layout_of(arguments.get("depth", 20))
    width = arguments.get("width") or layout.width
    usual = arguments.get("inner") or [width * 2**stage for stage in range(len(layout.units))]
    wanted = count(arguments, **changes)

    def found(inner: Sequence[int]) -> int:
        return count(arguments, block="none", inner=tuple(inner))

    low, high = 1.0, 4.0
    while max(usual) * (high - low) >= 1:
        middle = (low + high) / 2
        fits = found([int(width * middle) for width in usual]) <= wanted
        low, high = (middle, high) if fits else (low, middle)
    base = [int(width * low) for width in usual]
    missing = wanted - found(base)
    steps = [
        found([width + (one == stage) for one, width in enumerate(base)]) - found(base)
        for stage in range(len(base))
    ]
    more = min(
        itertools.product(range(6), repeat=len(base)),
        key=lambda more: abs(sum(map(mul, more, steps)) - missing),
    )
    return [width + extra for width, extra in zip(base, more, strict=True)]


def trained(
    config: Path, row: Row, seed: int, *, folder: Path, extra: Sequence[str]
) -> dict[str, Any]:
    """Train and test one row with one seed, and return what is to be remembered of it."""
    run = next_run(f"{re.sub('[^a-z0-9=.]+', '-', row.name)}-{seed}", folder)
    words = ["--config", str(config), "--seed_everything", str(seed), "--data.seed", str(seed)]
    for key, value in row.changes.items():
        said = value if isinstance(value, str) else json.dumps(value)
        words += [f"--model.classifier.{key}", said]
    begun = time.monotonic()
    last = run / "checkpoints" / "last.ckpt"
    for command in (["fit", "--run", str(run)], ["test", "--ckpt_path", str(last)]):
        if visattn([*command, *words, *extra]) != 0:
            raise RuntimeError(f"{row.name} with seed {seed} failed in {command[0]}; see above")
    model = read_model(last)
    return {
        "row": row.name,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "test": json.loads((run / "test.json").read_text(encoding="utf-8")),
        "validation": validations(run),
        "seconds": round(time.monotonic() - begun, 1),
        "run": str(run),
        "changes": row.changes,
        "recipe": recipe(config, extra),
    }


def validations(run: Path) -> list[float]:
    """Return the accuracy at each validation of a run."""
    (table,) = run.glob("csv-*/metrics.csv")
    head, *lines = table.read_text(encoding="utf-8").splitlines()
    column = head.split(",").index("val/accuracy")
    found = [line.split(",")[column] for line in lines]
    return [round(float(value), 5) for value in found if value]


def recipe(config: Path, extra: Sequence[str]) -> str:
    """Return a short mark of everything but row and seed: other recipes are not compared."""
    text = config.read_text(encoding="utf-8") + "\0".join(extra)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return runs as a table, a line per row, the first of them the control of the others."""
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines:
        rows.setdefault(line["row"], {})[line["seed"]] = line
    control = next(iter(rows.values()), {})
    told = [
        "| row | parameters | seeds | accuracy, % | against the first, points "
        "| calibration error, % | minutes |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in rows.items():
        gains = [100 * (accuracy(run) - accuracy(control[seed])) for seed, run in runs.items()
                 if seed in control]  # fmt: skip
        parts = (
            name,
            f"{next(iter(runs.values()))['parameters']:,}",
            str(len(runs)),
            spread([100 * accuracy(run) for run in runs.values()]),
            "" if runs is control else interval(gains),
            spread([100 * run["test"]["test/calibration"] for run in runs.values()]),
            f"{statistics.mean(run['seconds'] for run in runs.values()) / 60:.1f}",
        )
        told.append(f"| {' | '.join(parts)} |")
    return "\n".join(told)


def epochs(lines: Sequence[dict[str, Any]]) -> str:
    """Return the mean validation accuracy of each row, validation by validation."""
    rows: dict[str, list[list[float]]] = {}
    for line in lines:
        rows.setdefault(line["row"], []).append(line["validation"])
    length = max((len(run) for runs in rows.values() for run in runs), default=0)
    told = [
        f"| validation | {' | '.join(map(str, range(1, length + 1)))} |",
        f"|---|{'---|' * length}",
    ]
    for name, runs in rows.items():
        means = [f"{100 * statistics.mean(each):.1f}" for each in zip(*runs, strict=False)]
        told.append(f"| {name} | {' | '.join(means)} |")
    return "\n".join(told)


def accuracy(run: dict[str, Any]) -> float:
    """Return the share of test images that a run told right."""
    return float(run["test"]["test/accuracy"])


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation."""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def interval(gains: Sequence[float]) -> str:
    """Return the mean of gains that belong together seed by seed, and its 95 % interval."""
    if not gains:
        return "no seed in common"
    mean = statistics.mean(gains)
    if len(gains) < 2:
        return f"{mean:+.2f}"
    student = STUDENT[len(gains) - 2] if len(gains) - 2 < len(STUDENT) else 1.96
    reach = student * statistics.stdev(gains) / len(gains) ** 0.5
    return f"{mean:+.2f} ({mean - reach:+.2f} to {mean + reach:+.2f})"


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--config", type=Path, required=True, help="the recipe, of a classifier")
    made.add_argument("--rows", nargs="+", required=True, help="the control first")
    made.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    made.add_argument("--out", type=Path, required=True, help="FILE.jsonl, a line per finished run")
    made.add_argument("--table", action="store_true", help="train nothing, show what is there")
    made.add_argument("extra", nargs="*", help="after --, options for every training")
    return made


def main(argv: Sequence[str], train: Callable[..., dict[str, Any]] = trained) -> int:
    """Train what is missing, and print the tables."""
    asked = parser().parse_args(argv)
    config = yaml.safe_load(asked.config.read_text(encoding="utf-8"))
    mark = recipe(asked.config, asked.extra)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    text = asked.out.read_text(encoding="utf-8") if asked.out.exists() else ""
    done = [line for line in map(json.loads, text.splitlines()) if line["recipe"] == mark]
    known = {(line["row"], line["seed"]) for line in done}
    for seed, name in itertools.product(asked.seeds, () if asked.table else asked.rows):
        if (name, seed) in known:
            continue
        row, folder = row_of(name, config), asked.out.with_suffix("")
        line = train(asked.config, row, seed, folder=folder, extra=asked.extra)
        done.append(line)
        with asked.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    wanted = [one for name in asked.rows for one in done if one["row"] == name]
    print(table(wanted), epochs(wanted), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
