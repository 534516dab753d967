"""Command line of training before jsonargparse: configs by name, and clear errors.

Only the standard library is imported, so that usage errors are reported before Lightning loads.
"""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from visattn.io.messages import did_you_mean
from visattn.models.saving.runs import checkpoint_run, find_run, run_checkpoint, run_config

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
_OPTIONS = ("--config", "--run", "--ckpt_path", "--dry-run", "--print_config", "--seed_everything")
_HELP_OPTIONS = ("--print_config", "--model.help", "--data.help", "--help")  # need no config
_OPTION_OF_SUFFIX = {".yaml": "--config", ".yml": "--config", ".ckpt": "--ckpt_path"}


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
        >>> print(validate_args("fit", ["scenes.yaml"]))
        unexpected argument scenes.yaml; did you mean --config scenes.yaml?
        >>> validate_args("fit", ["--model", "CaptioningTask", "--data", "ScenesDataModule"])
        ''
    """
    configs = option_values(arguments, *_CONFIG)
    needs_config = not any(name.partition("=")[0] in _HELP_OPTIONS for name in arguments)
    positional_error = _positional_error(command, arguments) if needs_config else ""
    errors = (positional_error, _empty_error(arguments), _repeated_error(arguments))
    for error in (*errors, *map(_config_error, configs)):
        if error:
            return error
    if not needs_config:
        return ""
    built = any(argument.startswith(("--model", "--data")) for argument in arguments)
    scored = command != "fit" and option_values(arguments, "--run", "--ckpt_path")
    if configs or built or scored:
        return ""
    hint = _option_hint(arguments)
    if command == "fit":
        return f"fit needs --config NAME or FILE.yaml; visattn configs lists the names{hint}"
    return (
        f"{command} needs --run FOLDER, a run of visattn fit, or --config FILE.yaml and "
        f"--ckpt_path FILE: without a checkpoint the weights are random{hint}"
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
    is_known = _is_config_name(name) and name in list_configs()
    return str(find_config(name)) if is_known else name


def _is_config_name(name: str) -> bool:
    """Return whether `--config` names a config that comes with visattn, rather than a file."""
    return re.fullmatch(r"[\w-]+", name) is not None and not Path(name).is_file()


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


def _positional_error(command: str, arguments: Sequence[str]) -> str:
    """Return an error for a file or folder without its option."""
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        if argument.startswith("-") or (previous.startswith("-") and "=" not in previous):
            continue
        option = _OPTION_OF_SUFFIX.get(Path(argument).suffix)
        if option is None and command != "fit" and Path(argument).is_dir():
            option = "--run"
        elif option is None and _resolve_config(argument) != argument:
            option = "--config"
        if option:
            return f"unexpected argument {argument}; did you mean {option} {argument}?"
    return ""


def _empty_error(arguments: Sequence[str]) -> str:
    """Return an error for an empty name, which would mean another folder than was meant."""
    for option in ("--config", "-c", "--run", "--ckpt_path"):
        for value in option_values(arguments, option):
            if not value.strip():
                return f"{option} must name a file or folder, got {value!r}: is a variable unset?"
    return ""


def _repeated_error(arguments: Sequence[str]) -> str:
    """Return an error for an option that is passed twice, of which the last would count."""
    passed: set[str] = set()
    for argument in arguments:
        name = argument.partition("=")[0]
        if not name.startswith("--") or name in (*_CONFIG, *_HELP_OPTIONS):
            continue  # configs are read one after the other
        if name.endswith("+"):  # of a list, to whose last entry the following options belong
            passed = {each for each in passed if not each.startswith(f"{name[:-1]}.")}
        elif name in passed:
            return f"{name} is passed twice: give it one value"
        else:
            passed.add(name)
    return ""


def _config_error(name: str) -> str:
    """Return an error for a config that does not exist; inline YAML is accepted."""
    path = Path(name)
    if "\n" in name or "{" in name or Path(_resolve_config(name)).is_file():
        return ""
    if "://" in name:
        return f"{name} is on another machine; download it, check it, and pass the file"
    if path.is_dir():
        return f"--config {name} is a folder; pass one of the files in it"
    files = {
        file.stem: str(file)
        for folder in (path.parent, Path("configs"), Path())
        for file in folder.glob("*.yaml")
    }
    if _is_config_name(name) and name not in files:
        files = {own: own for own in list_configs()}
    listed = "visattn configs lists those of visattn"
    hint = did_you_mean(path.stem, files, n=1, canonical=files, otherwise=listed)
    return f"there is no config {name}; {hint}"


def _option_hint(arguments: Sequence[str]) -> str:
    """Return a suggestion for a misspelled option, as the end of a sentence."""
    for argument in arguments:
        name = argument.partition("=")[0]
        hint = did_you_mean(name, _OPTIONS, n=1, otherwise="") if "." not in name else ""
        if hint and name not in _OPTIONS:
            return f"; for {name}, {hint}"
    return ""


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
