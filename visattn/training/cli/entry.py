"""Entry point of `visattn fit`, `validate` and `test`: help and usage errors without Lightning."""

import os
from collections.abc import Sequence

from visattn.io.safe_text import print_message
from visattn.training.cli.arguments import (
    complete_args,
    option_values,
    resolve_configs,
    validate_args,
)

_HELP = """\
usage: {usage}

{purpose}

  --config NAME or FILE.yaml
                          config of the experiment: one of `visattn configs`, or a file; a
                          second --config overrides parts of the first
  --run FOLDER            {run}
  --ckpt_path FILE        {checkpoint}
  --dry-run               build everything, process one batch of each split, write nothing
{fit_options}  --print_config          print the whole config with all defaults, and exit
  --model.help CLASS      options of a task, such as CaptioningTask
  --data.help CLASS       options of a data module, such as ScenesDataModule
  --help-all              all options, including those of Lightning's trainer

Command-line arguments override the config:
  --model.optim.optimizer.lr 1e-3  --data.batch_size 64
  --trainer.max_steps 500  --trainer.devices 2
  --data.captions '{{train: captions_train2017.json, val: captions_val2017.json}}'
  --data.photos '{{train: train2017, val: val2017}}'

examples:
{examples}
"""
_EXAMPLES = {
    "fit": (
        "visattn fit --config scenes_demo --run runs/mine",
        "visattn fit --config my_config.yaml --data.batch_size 64 --trainer.max_steps 500",
        "visattn fit --config scenes_demo --dry-run",
    ),
    "validate": (
        "visattn validate --run runs/scenes_demo/1",
        "visattn validate --config my_config.yaml --ckpt_path last.ckpt --run scores",
    ),
    "test": (
        "visattn test --run runs/scenes_demo/1",
        "visattn test --config my_config.yaml --ckpt_path last.ckpt --run scores",
    ),
}
_FIT = """\
visattn fit --config NAME or FILE.yaml [--run FOLDER] [--ckpt_path FILE]
         [--GROUP.OPTION VALUE]"""
_SCORE = """\
visattn {command} --run FOLDER [--GROUP.OPTION VALUE]
       visattn {command} --config NAME or FILE.yaml --ckpt_path FILE [--run FOLDER]
         [--GROUP.OPTION VALUE]"""
_PURPOSES = {
    "fit": "Train a task. The folder of the run gets its config, checkpoints and logs.",
    "validate": "Score a checkpoint on the validation split; writes validate.json.",
    "test": "Score a checkpoint on the test split, beside its controls; writes test.json.",
}
_RUNS = {
    "fit": "folder of the run (runs/CONFIG/NUMBER); it must be new or empty",
    "score": "a run of visattn fit: its config, its best checkpoint, and where the\n"
    "                          scores are written; with --config and --ckpt_path only the last",
}
_FIT_OPTIONS = """\
  --init_from FILE        start from the weights of this checkpoint of another run
"""
_CHECKPOINTS = {
    "fit": "resume from this checkpoint, or from the newest of the run (last), with\n"
    "                          the options of the config, also of the optimizer",
    "score": "checkpoint to score (the best of --run); --config defaults to that of its run",
}


def main(argv: Sequence[str]) -> int:
    """Print help and usage errors of `fit`, `validate` and `test`; pass on everything else.

    Example:
        >>> main(["fit", "--help"])  # doctest: +ELLIPSIS
        usage: visattn fit --config NAME or FILE.yaml ...
        0
    """
    command, *arguments = argv
    if any(argument in {"-h", "--help"} for argument in arguments):
        print(help_text(command), end="")  # noqa: T201
        return 0
    dry_run = "--dry-run" in arguments
    arguments = ["--help" if a == "--help-all" else a for a in arguments if a != "--dry-run"]
    if error := validate_args(command, arguments):
        print_message(error)
        return 2
    arguments = resolve_configs(arguments)
    completed = complete_args(command, arguments)
    if completed != arguments and os.environ.get("LOCAL_RANK", "0") == "0":
        config = option_values(completed, "--config")[0]
        checkpoint = option_values(completed, "--ckpt_path")[-1]
        print_message(f"{command} uses {config} and {checkpoint}")
    from visattn.training.cli import lightning_cli

    return lightning_cli.main([command, *completed], dry_run=dry_run)


def help_text(command: str) -> str:
    """Return the help of `fit`, `validate` or `test`.

    Example:
        >>> "beside its controls" in help_text("test")
        True
    """
    purpose = "fit" if command == "fit" else "score"
    return _HELP.format(
        usage=(_FIT if command == "fit" else _SCORE).format(command=command),
        purpose=_PURPOSES[command],
        run=_RUNS[purpose],
        checkpoint=_CHECKPOINTS[purpose],
        fit_options=_FIT_OPTIONS if command == "fit" else "",
        examples="\n".join(f"  {example}" for example in _EXAMPLES[command]),
    )
