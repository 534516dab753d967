"""The way into training: a short help at once, and Lightning only when there is work for it."""

from collections.abc import Sequence

_HELP = """\
usage: visattn {word} --config FILE.yaml [--run FOLDER] [--ckpt_path FILE] [--GROUP.OPTION VALUE]

{purpose}

  --config FILE.yaml      one experiment; a second --config changes parts of the first
  --run FOLDER            {run}
  --ckpt_path FILE        {checkpoint}
  --print_config          print the whole config, every default included, and stop
  --model.help CLASS      the options of a task, such as CaptionTask
  --data.help CLASS       the options of a data module, such as ScenesData
  --help-all              everything that Lightning's command line knows

Every entry of a config can be changed from the command line, which has the last word:
  --model.optimizer.lr 1e-3  --data.batch 64  --trainer.max_steps 500  --trainer.devices 2
"""
_PURPOSES = {
    "fit": "Train a task. The run's folder gets its config, checkpoints, logs and pictures.",
    "validate": "Score a checkpoint on the validation split; writes validate.json.",
    "test": "Score a checkpoint on the test split, beside its controls; writes test.json.",
}


def main(argv: Sequence[str]) -> int:
    """Answer `--help` here, and hand everything else to the training command line.

    Args:
        argv: `fit`, `validate` or `test`, and its options.

    Example:
        >>> main(["fit", "--help"])  # doctest: +ELLIPSIS
        usage: visattn fit --config FILE.yaml ...
        0
    """
    word, *options = argv
    if any(option in {"-h", "--help"} for option in options):
        print(help_text(word), end="")  # noqa: T201
        return 0
    from visattn.tasks import training

    return training.main([word, *("--help" if o == "--help-all" else o for o in options)])


def help_text(word: str) -> str:
    """Return what `visattn WORD --help` prints.

    Example:
        >>> "beside its controls" in help_text("test")
        True
    """
    if word == "fit":
        run = "where the run is kept (runs/CONFIG/NUMBER); never one that holds a run"
        checkpoint = "go on from here; the optimizer keeps the rate at which it stopped"
    else:
        run = "where the scores are written (the folder of the checkpoint's run)"
        checkpoint = "what is scored; without it the weights would be random"
    return _HELP.format(word=word, purpose=_PURPOSES[word], run=run, checkpoint=checkpoint)
