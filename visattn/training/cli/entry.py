"""The way into training: a short help at once, and Lightning only when there is work for it."""

import os
import sys
from collections.abc import Sequence

from visattn.training.cli.arguments import completed, mistake, values

_HELP = """\
usage: {usage}

{purpose}

  --config FILE.yaml      one experiment; a second --config changes parts of the first
  --run FOLDER            {run}
  --ckpt_path FILE        {checkpoint}
  --dry-run               build everything, look at one batch of each kind, write nothing
  --timeout SECONDS       how long processes wait for each other (300)
  --progress_seconds N    without a terminal: seconds between lines of progress (30)
  --print_config          print the whole config, every default included, and stop
  --model.help CLASS      the options of a task, such as CaptioningTask
  --data.help CLASS       the options of a data module, such as ScenesDataModule
  --help-all              everything that Lightning's command line knows

Every entry of a config can be changed from the command line, which has the last word:
  --model.optimizer.lr 1e-3  --data.batch 64  --trainer.max_steps 500  --trainer.devices 2
  --data.captions '{{train: captions_train2017.json, validation: captions_val2017.json}}'
  --data.photos '{{train: train2017, validation: val2017}}'
"""
_FIT = "visattn fit --config FILE.yaml [--run FOLDER] [--ckpt_path FILE] [--GROUP.OPTION VALUE]"
_SCORE = """\
visattn {word} --run FOLDER [--GROUP.OPTION VALUE]
       visattn {word} --config FILE.yaml --ckpt_path FILE [--run FOLDER] [--GROUP.OPTION VALUE]"""
_PURPOSES = {
    "fit": "Train a task. The run's folder gets its config, checkpoints, logs and images.",
    "validate": "Score a checkpoint on the validation split; writes validate.json.",
    "test": "Score a checkpoint on the test split, beside its controls; writes test.json.",
}
_RUNS = {
    "fit": "where the run is kept (runs/CONFIG/NUMBER); never one that holds a run",
    "score": "a run of visattn fit: its config, its best checkpoint, and where the\n"
    "                          scores go; with --config and --ckpt_path only the last",
}
_CHECKPOINTS = {
    "fit": "go on from here, or from the newest of the last run (last); the\n"
    "                          optimizer keeps the rate at which it stopped",
    "score": "what is scored (the best of --run); without its config that of its run",
}


def main(argv: Sequence[str]) -> int:
    """Answer `--help` and plain mistakes here; hand everything else to the training command line.

    Args:
        argv: `fit`, `validate` or `test`, and its options.

    Raises:
        FileNotFoundError: If the run that is named lacks its config or its checkpoint.
        ValueError: If there are several runs where one was named.

    Example:
        >>> main(["fit", "--help"])  # doctest: +ELLIPSIS
        usage: visattn fit --config FILE.yaml ...
        0
    """
    word, *options = argv
    if any(option in {"-h", "--help"} for option in options):
        print(help_text(word), end="")  # noqa: T201
        return 0
    rehearsing = "--dry-run" in options
    options = ["--help" if o == "--help-all" else o for o in options if o != "--dry-run"]
    if wrong := mistake(word, options):
        print(f"visattn: {wrong}", file=sys.stderr)  # noqa: T201
        return 2
    words = completed(word, options)
    if words != options and os.environ.get("LOCAL_RANK", "0") == "0":
        taken = (*values(words, "--config")[:1], *values(words, "--ckpt_path")[-1:])
        print(f"visattn: {word} takes {' and '.join(taken)}", file=sys.stderr)  # noqa: T201
    if rehearsing:
        from visattn.training.cli.dry_run import rehearse

        return rehearse([word, *words])
    from visattn.training.cli import lightning_cli as training

    return training.main([word, *words])


def help_text(word: str) -> str:
    """Return what `visattn WORD --help` prints.

    Example:
        >>> "beside its controls" in help_text("test")
        True
    """
    kind = "fit" if word == "fit" else "score"
    return _HELP.format(
        usage=(_FIT if word == "fit" else _SCORE).format(word=word),
        purpose=_PURPOSES[word],
        run=_RUNS[kind],
        checkpoint=_CHECKPOINTS[kind],
    )
