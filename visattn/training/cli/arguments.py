"""Command line of training before jsonargparse: configs by name, and what a run supplies.

Only the standard library is imported, so that usage errors are reported before Lightning loads.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from visattn.io.messages import did_you_mean
from visattn.models.model_files import checkpoint_run, find_run, run_checkpoint, run_config

_PACKAGE = Path(__file__).resolve().parents[2]


def config_directory() -> Path:
    """Return the directory of the configs: inside the installed package, or of the checkout.

    Example:
        >>> (config_directory() / "scenes_demo.yaml").is_file()
        True
    """
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def list_configs() -> dict[str, str]:
    """Return the names of all configs with the first line of their heads.

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

    Example:
        >>> find_config("scenes_demo").name
        'scenes_demo.yaml'
    """
    configs = list_configs()
    if name in configs:
        return config_directory() / f"{name}.yaml"
    hint = did_you_mean(name, configs, otherwise="visattn configs lists all")
    raise FileNotFoundError(f"there is no config {name!r}; {hint}")


def config_digest(*texts: str) -> str:
    r"""Return a digest of config files that comments and empty lines do not change.

    Example:
        >>> config_digest("seed: 7  # of the paper") == config_digest("# Scenes.\nseed: 7")
        True
    """
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in "\n".join(texts).splitlines()]
    return hashlib.sha256("\n".join(filter(None, lines)).encode()).hexdigest()[:8]


_CONFIG = ("--config", "-c")
_HELP_OPTIONS = ("--print_config", "--model.help", "--data.help", "--help")  # need no config


def option_values(arguments: Sequence[str], *names: str) -> list[str]:
    """Return all values of an option, which has several spellings, in order.

    Example:
        >>> option_values(["--config", "a.yaml", "--run=here", "-c", "b.yaml"], "--config", "-c")
        ['a.yaml', 'b.yaml']
    """
    values: list[str] = []
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            values += [value] if equals else arguments[index + 1 : index + 2]
    return values


def validate_args(command: str, arguments: Sequence[str]) -> str:
    """Return a usage error that is visible without loading Lightning, or an empty string.

    Example:
        >>> print(validate_args("fit", []))
        fit needs --config NAME or FILE.yaml; visattn configs lists the names
        >>> validate_args("fit", ["--model", "CaptioningTask", "--data", "ScenesDataModule"])
        ''
    """
    configs = option_values(arguments, *_CONFIG)
    if error := next(filter(None, map(_config_error, configs)), ""):
        return error
    helps = any(name.partition("=")[0] in _HELP_OPTIONS for name in arguments)
    built = any(argument.startswith(("--model", "--data")) for argument in arguments)
    scored = command != "fit" and option_values(arguments, "--run", "--ckpt_path")
    if helps or configs or built or scored:
        return ""
    if command == "fit":
        return "fit needs --config NAME or FILE.yaml; visattn configs lists the names"
    return (
        f"{command} needs --run FOLDER, a run of visattn fit, or --config FILE.yaml and "
        "--ckpt_path FILE: without a checkpoint the weights are random"
    )


def resolve_configs(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the names of visattn's own configs replaced by their files.

    Files take precedence: a name is looked up only if it has no suffix and no directory, and there
    is no such file in the working directory. Unknown names stay as they are.

    Example:
        >>> option, file = resolve_configs(["--config", "scenes_demo"])
        >>> option, Path(file).name
        ('--config', 'scenes_demo.yaml')
        >>> resolve_configs(["--config=mine.yaml", "--trainer.max_steps", "7"])
        ['--config=mine.yaml', '--trainer.max_steps', '7']
    """
    resolved: list[str] = []
    previous = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if previous in _CONFIG:
            resolved.append(_resolve_config(argument))
        elif equals and name in _CONFIG:
            resolved.append(f"{name}={_resolve_config(value)}")
        else:
            resolved.append(argument)
        previous = argument
    return resolved


def _resolve_config(name: str) -> str:
    is_known = not Path(name).is_file() and name in list_configs()
    return str(find_config(name)) if is_known else name


def complete_args(command: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `validate` and `test` with the config and checkpoint of their run.

    The config comes first, so that command-line arguments override it. The run and its checkpoint
    come last, because the config holds those of training.

    Raises:
        FileNotFoundError: If the run lacks its config or a checkpoint, and none is given.
        ValueError: If the folder is not a run, or holds several runs.

    Example:
        >>> complete_args("fit", ["--config", "a.yaml", "--run", "here"])
        ['--config', 'a.yaml', '--run', 'here']
    """
    runs = option_values(arguments, "--run")
    checkpoints = option_values(arguments, "--ckpt_path")
    complete = checkpoints and option_values(arguments, *_CONFIG)
    if command == "fit" or complete or not (runs or checkpoints):
        return list(arguments)
    if not runs and not Path(checkpoints[-1]).is_file():
        raise FileNotFoundError(
            f"no checkpoint at {checkpoints[-1]}; `visattn fit` prints where it saves them"
        )
    run = find_run(Path(runs[-1])) if runs else checkpoint_run(Path(checkpoints[-1]))
    completed = ["--config", str(run_config(run)), *arguments, "--run", str(run)]
    return completed if checkpoints else [*completed, "--ckpt_path", str(run_checkpoint(run))]


def _config_error(name: str) -> str:
    """Return an error for a config that does not exist; inline YAML is accepted."""
    if "\n" in name or "{" in name or Path(_resolve_config(name)).is_file():
        return ""
    known = [*list_configs(), *map(str, Path().glob("*.yaml")), *map(str, Path().glob("*/*.yaml"))]
    listed = "visattn configs lists those of visattn"
    return f"there is no config {name}; {did_you_mean(name, known, n=1, otherwise=listed)}"


def expand_env_vars(value: Any) -> Any:
    """Return a config value with each `${NAME}` in its texts replaced from the environment.

    Raises:
        ValueError: If the environment variable is not set.

    Example:
        >>> os.environ["PHOTOS"] = "/data/photos"
        >>> expand_env_vars({"photos": "${PHOTOS}/2026", "sizes": [1, 2]})
        {'photos': '/data/photos/2026', 'sizes': [1, 2]}
    """
    if isinstance(value, str):
        return re.sub(r"\$\{(\w+)\}", _env_var, value)
    if isinstance(value, dict):
        return {key: expand_env_vars(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(expand_env_vars, value))
    return value


def _env_var(match: re.Match[str]) -> str:
    name = match.group(1)
    if name not in os.environ:
        raise ValueError(
            f"the config uses ${{{name}}}, but this environment variable is not set: "
            f"export {name}=... or pass the path on the command line"
        )
    return os.environ[name]
