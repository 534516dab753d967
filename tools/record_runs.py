r"""Write the scores of training runs to docs/results/runs, the source of the tables in the docs.

    python tools/record_runs.py runs/scenes_demo/1 runs/scenes_demo/2

A tested run becomes a row in the CSV file of its config: settings that differ from the current
config, seed, commit, machine, times and all scores of test.json and validate.json. It replaces an
earlier row with the same settings, seed and split; unknown fields stay empty. Scores that configs
and pages quote from the rows (docs/run_rows.py) are updated. A run of a copied config, or of a
version without run.json, needs --config NAME, the config to compare it with.
"""

import argparse
import contextlib
import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from docs.run_rows import ROOT, RUNS, quoting, read_runs, renewed
from visattn.cli import main as visattn
from visattn.io.atomic import atomic_write
from visattn.models.model_files import find_run, run_config
from visattn.training.callbacks import RUN_RECORD
from visattn.training.command import config_digest, find_config

KEY = ("overrides", "seed", "split")
FIELDS = (
    *KEY, "images", "checkpoint", "step", "steps", "parameters", "wall_seconds", "cpu_seconds",
    "sessions", "cpu", "threads", "device", "processes", "python", "torch", "commit", "scored",
    "settings",
)  # fmt: skip
"""Columns before the scores; `settings` is the digest of the config that `overrides` refers to,
which reveals rows whose config has changed since."""
UNCOMPARED = (
    "config", "run", "seed_everything", "ckpt_path", "save_minutes", "save_steps",
    "trainer.enable_progress_bar", "trainer.enable_model_summary",
    "trainer.log_every_n_steps", "data.init_args.num_workers", "data.init_args.download",
    "data.init_args.feature_cache_dir",
)  # fmt: skip
"""Settings that do not affect the weights."""
SPLITS = {"test": "test", "validate": "validation"}


def resolved(config: Path) -> dict[str, Any]:
    """Return a config completed with the current defaults."""
    text, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(errors):
        code = visattn(["fit", "--config", str(config), "--print_config"])
    if code:
        raise ValueError(f"{config} cannot be read: {errors.getvalue().strip()}")
    return yaml.safe_load(text.getvalue())


def settings(value: Any, name: str = "") -> dict[str, Any]:
    """Flatten nested settings; a path with /, ~ or $ in front is reduced to its file name."""
    if isinstance(value, dict):
        parts = [settings(each, f"{name}.{key}" if name else key) for key, each in value.items()]
        return {key: each for part in parts for key, each in part.items()}
    is_path = isinstance(value, str) and value.startswith(("/", "~", "$"))
    return {name: Path(value).name if is_path else value}


def changes(own: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from a base; None for missing ones."""
    new, old = settings(own), settings(base)
    return {key: new.get(key) for key in sorted({*new, *old}) if new.get(key) != old.get(key)}


def overrides(run: Path, config: Path, tested: dict[str, Any]) -> str:
    """Return the settings of a run that differ from a config, as `name=value`.

    Args:
        run: Folder of the run.
        config: File of the config.
        tested: Data settings of the test.
    """
    own, base = resolved(run_config(run)), resolved(config)
    trained = {
        key: value
        for key, value in changes(own, base).items()
        if key not in UNCOMPARED
        and (key, value) != ("data.init_args.seed", own["seed_everything"])
        and not (".lr_mults." in key and value == 1.0)  # written by earlier versions
    }
    words = []
    again = changes({"data": tested}, {"data": own["data"]}) if tested else {}
    for prefix, values in (("", trained), ("test.", again)):
        for key, value in values.items():
            name = key.replace(".init_args", "").removesuffix(".class_path")
            text = value if isinstance(value, str) else json.dumps(value)
            words.append(f"{prefix}{name}={text.replace(' ', '')}")
    return " ".join(words)


def rows_of(folder: Path, name: str | None) -> tuple[str, list[dict[str, str]]]:
    """Return the config of a run, and a row for each scored split.

    Args:
        folder: Folder of the run.
        name: Name of the config; None for the one in the run's record.
    """
    run = find_run(folder)
    files = {part: run / f"{part}.json" for part in SPLITS if (run / f"{part}.json").is_file()}
    if not files:
        raise FileNotFoundError(f"{run} has no test.json; score it with visattn test --run {run}")
    record: dict[str, Any] = {}
    if (run / RUN_RECORD).is_file():
        record = json.loads((run / RUN_RECORD).read_text(encoding="utf-8"))
    name = name or record.get("config")
    if name is None:
        raise ValueError(f"{run} has no config name in {RUN_RECORD}; pass --config NAME")
    config = find_config(name)
    fit = record.get("fit", {})
    seed = record.get("seed", yaml.safe_load(run_config(run).read_text()).get("seed_everything"))
    rows = []
    for part, file in files.items():
        scored = record.get(part, {})
        written = datetime.fromtimestamp(int(file.stat().st_mtime), UTC).isoformat()
        commits = [*fit.get("commits", ()), scored.get("commit")]
        fields = {
            **fit.get("machine", {}),
            **fit.get("versions", {}),
            **{key: fit.get(key) for key in ("steps", "sessions", "parameters")},
            **{key: round(fit[key]) for key in ("wall_seconds", "cpu_seconds") if key in fit},
            **{key: scored.get(key) for key in ("checkpoint", "step")},
            "images": next(iter((scored.get("images") or {"": None}).values())),
            "commit": "+".join(dict.fromkeys(commit for commit in commits if commit)),
            "scored": scored.get("date") or written,
            "overrides": overrides(run, config, scored.get("data", {})),
            "seed": seed,
            "split": SPLITS[part],
            "settings": config_digest(config.read_text(encoding="utf-8")),
        }
        row = {key: "" if fields.get(key) is None else str(fields[key]) for key in FIELDS}
        scores = json.loads(file.read_text(encoding="utf-8"))
        numbers = {key: value for key, value in scores.items() if isinstance(value, int | float)}
        row |= {key: f"{value:.6g}" for key, value in numbers.items() if math.isfinite(value)}
        rows.append(row)
    return name, rows


def write_rows(file: Path, added: Sequence[dict[str, str]]) -> None:
    """Add rows to a file, replacing those with the same key or of the same test."""
    rows: list[dict[str, str]] = []
    if file.is_file():
        with file.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines, strict=True))
    for row in added:
        same = [{key: row[key] for key in keys} for keys in (KEY, ("seed", "split", "scored"))]
        rows = [old for old in rows if not any(each.items() <= old.items() for each in same)]
        rows.append(row)
    rows.sort(key=lambda row: (row["overrides"], row["split"], int(row["seed"] or -1)))
    names = {key for row in rows for key, value in row.items() if value} - {*FIELDS}
    text = io.StringIO()
    table = csv.DictWriter(text, [*FIELDS, *sorted(names)], lineterminator="\n", restval="",
                           extrasaction="ignore")  # fmt: skip
    table.writeheader()
    table.writerows(rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, text.getvalue())


def record(runs: Sequence[Path], config: str | None = None, out: Path = RUNS) -> None:
    """Write and print the rows of runs; if a run cannot be read, nothing is written."""
    results = [rows_of(run, config) for run in runs]
    for name, rows in results:
        write_rows(out / f"{name}.csv", rows)
        for row in rows:
            words = [row["overrides"], f"seed {row['seed']}", row["split"], row["commit"]]
            print(f"{name}: {', '.join(word for word in words if word)}")
    if out == RUNS:
        renew()


def renew() -> None:
    """Update the scores that configs and pages quote from the rows."""
    read_runs.cache_clear()
    for file, config in quoting().items():
        text = file.read_text(encoding="utf-8")
        if (new := renewed(text, config)) != text:
            atomic_write(file, new)
            print(f"{file.relative_to(ROOT)}: scores updated")


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument("--config", metavar="NAME", help="config of runs that do not record it")
    parser.add_argument("--out", type=Path, default=RUNS, help="output folder (docs/results/runs)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the rows; return 0, or 2 if a run cannot be recorded."""
    args = build_parser().parse_args(argv)
    try:
        record(args.runs, args.config, args.out)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
