"""`visattn fit`, `validate` and `test`: help, configs and runs, without importing Lightning."""

import gc
import hashlib
import inspect
import os
import re
from collections.abc import Sequence
from pathlib import Path

from visattn.io.messages import did_you_mean
from visattn.io.safe_text import print_message, print_text
from visattn.models.model_files import checkpoint_run, find_run, run_checkpoint, run_config

_PACKAGE = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str]) -> int:
    """Train a task, or score a checkpoint on the validation or test split.

    usage: visattn fit --config NAME or FILE.yaml [--run FOLDER] [--ckpt_path FILE]
                       [--GROUP.OPTION VALUE]
           visattn validate --run FOLDER [--GROUP.OPTION VALUE]
           visattn test --run FOLDER [--GROUP.OPTION VALUE]

      --config NAME or FILE.yaml
                         config of the experiment: one of `visattn configs`, or a file; a second
                         --config overrides parts of the first
      --run FOLDER       fit: folder of the run (runs/CONFIG/NUMBER), new or empty; it gets the
                         config, checkpoints and logs. validate and test: a run of fit; its config
                         and its best checkpoint are read, and validate.json or test.json, with
                         the controls of the test, are written there
      --ckpt_path FILE   fit: resume from this checkpoint, or from `last` of the run, with the
                         options of the config, also of the optimizer. validate and test: score
                         this checkpoint
      --init_from FILE   fit: start from the weights of this checkpoint of another run
      --dry-run          build everything, process one batch of each split, write nothing
      --print_config     print the whole config with all defaults, and exit
      --model.help CLASS options of a task, such as CaptioningTask, and so of the other classes of
                         a config: --data.help CaptionData, --model.captioner.help ShowAttendTell
      --help-all         all options, including those of Lightning's trainer

    Command-line arguments override the config:
      --model.optim.optimizer.lr 1e-3  --data.batch_size 64
      --trainer.max_steps 500  --trainer.devices 2
      --data.source.captions '{train: train2017.json, val: val2017.json}'

    For example:
      visattn fit --config scenes_demo --run runs/mine
      visattn fit --config my_config.yaml --data.batch_size 64 --trainer.max_steps 500
      visattn test --run runs/scenes_demo/1
      visattn validate --config my_config.yaml --ckpt_path last.ckpt --run scores
    """
    command, *words = argv
    if "--help" in words or "-h" in words:
        print_text(str(inspect.getdoc(main)))
        return 0
    words = ["--help" if word == "--help-all" else word for word in words]
    if "--dry-run" in words:
        words = [*(word for word in words if word != "--dry-run"), "--trainer.fast_dev_run", "1"]
    needed, message = _NEEDED if command == "fit" else _SCORED
    if not any(word.startswith(needed) for word in words):
        print_message(f"{command} needs {message}")
        return 2
    try:
        words = with_configs(words)
    except FileNotFoundError as error:
        print_message(str(error))
        return 2
    words = with_run(command, words)
    gc.disable()  # imports leave no garbage, and collecting it takes a sixth of their time
    try:
        from visattn.training.cli import run_cli

        gc.freeze()  # objects of the imports live until the end
    finally:
        gc.enable()
    try:
        return run_cli([command, *words])
    finally:
        gc.unfreeze()


_HELPS = ("--help", "--print_config", "--model.help", "--data.help")
_NEEDED = (
    ("--config", "-c", "--model", "--data", *_HELPS),
    "--config NAME or FILE.yaml; visattn configs lists the names",
)
_SCORED = (
    ("--run", "--ckpt_path", *_HELPS),
    "--run FOLDER, a run of visattn fit, or --config FILE.yaml and --ckpt_path FILE: without a "
    "checkpoint the weights are random",
)


def with_configs(words: Sequence[str]) -> list[str]:
    """Return the arguments with the names of visattn's own configs replaced by their files.

    Example:
        >>> option, file = with_configs(["--config", "scenes_demo"])
        >>> option, Path(file).name
        ('--config', 'scenes_demo.yaml')
    """
    replaced = list(words)
    for index, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in ("--config", "-c") and equals:
            replaced[index] = f"{option}={config_file(value)}"
        elif index and words[index - 1] in ("--config", "-c"):
            replaced[index] = config_file(word)
    return replaced


def config_file(name: str) -> str:
    """Return the file of a config; a file in the working directory has priority over a name."""
    return name if Path(name).is_file() or "\n" in name else str(find_config(name))


def with_run(command: str, words: Sequence[str]) -> list[str]:
    """Return the arguments of `validate` and `test` with the config and checkpoint of their run.

    The config comes first, so that command-line arguments override it. The run and its checkpoint
    come last, because the config has those of training.

    Raises:
        FileNotFoundError: If the run lacks its config or a checkpoint.
        ValueError: If the folder is not a run, or has several runs.
    """
    runs, checkpoints, configs = (
        re.findall(rf"(?:^|\0){option}[=\0]([^\0]*)", "\0".join(words))
        for option in ("--run", "--ckpt_path", "--config")
    )
    if command == "fit" or (checkpoints and configs) or not (runs or checkpoints):
        return list(words)
    run = find_run(Path(runs[-1])) if runs else checkpoint_run(Path(checkpoints[-1]))
    checkpoint = checkpoints[-1] if checkpoints else str(run_checkpoint(run))
    config = run_config(run)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print_message(f"{command} uses {config} and {checkpoint}")
    return ["--config", str(config), *words, "--run", str(run), "--ckpt_path", checkpoint]


def config_directory() -> Path:
    """Return the directory of the configs: inside the installed package, or of the checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def list_configs() -> dict[str, str]:
    """Return the names of all configs, with the first line of their header comments.

    Example:
        >>> list_configs()["scenes_demo"].startswith("Captioning on rendered scenes")
        True
    """
    files = sorted(config_directory().glob("*.yaml"))
    return {file.stem: file.read_text().partition("\n")[0].removeprefix("# ") for file in files}


def find_config(name: str) -> Path:
    """Return the file of a config that comes with visattn.

    Raises:
        FileNotFoundError: If there is none; the message lists close matches.
    """
    configs = list_configs()
    if name in configs:
        return config_directory() / f"{name}.yaml"
    known = [*configs, *map(str, Path().glob("*.yaml")), *map(str, Path().glob("*/*.yaml"))]
    hint = did_you_mean(name, known, n=1, otherwise="visattn configs lists all")
    raise FileNotFoundError(f"there is no config {name}; {hint}")


def config_digest(*texts: str) -> str:
    r"""Return a digest of config files that ignores comments and empty lines.

    Example:
        >>> config_digest("seed: 7  # of the paper") == config_digest("# Scenes.\nseed: 7")
        True
    """
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in "\n".join(texts).splitlines()]
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).hexdigest()[:8]
