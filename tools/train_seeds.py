r"""Train and test a config with several seeds, and record the rows of its runs.

    python tools/train_seeds.py scenes_demo --seeds 0 7 11 13 1
    python tools/train_seeds.py scenes_demo --seeds 0 7 -- --trainer.max_steps 3000

Runs are written to RUNS/CONFIG/SEED, with the options after `--` appended to the name. Tested runs
are skipped and interrupted runs resumed; rows are written after each run (tools/record_runs.py).
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from docs.run_rows import RUNS
from tools.record_runs import record
from visattn.cli import main as visattn


def train(config: str, seed: int, run: Path, score: str, extra: Sequence[str]) -> None:
    """Train and score a run, unless it is done; resume it if it was interrupted."""
    if (run / f"{score}.json").is_file():
        print(f"{run} is done")
        return
    fit = ["fit", "--config", config, "--seed_everything", str(seed), "--run", str(run)]
    # Without a checkpoint, `last` starts a new run.
    for words in ([*fit, "--ckpt_path", "last", *extra], [score, "--run", str(run)]):
        if visattn(words) != 0:
            raise RuntimeError(f"visattn {' '.join(words)} failed; see its output above")


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONFIG", help="name of a config (visattn configs)")
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument(
        "--score",
        choices=("test", "validate"),
        default="test",
        help="command to run after training (test)",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (runs)")
    parser.add_argument("--out", type=Path, default=RUNS, help="output folder (docs/results/runs)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Train the runs and record them; return 0, or 2 after a failure."""
    words = list(argv)
    first = words.index("--") if "--" in words else len(words)
    args, extra = build_parser().parse_args(words[:first]), words[first + 1 :]
    suffix = re.sub(r"[^\w.=]+", "-", "-".join(["", *extra])).rstrip("-")
    for seed in args.seeds:
        run = args.runs / Path(args.config).stem / f"{seed}{suffix}"
        try:
            train(args.config, seed, run, args.score, extra)
            record([run], out=args.out)
        except (OSError, ValueError, RuntimeError) as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
