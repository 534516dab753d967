"""Names of earlier versions in configs, saved runs and on the command line, which load on."""

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

OPTIONS = {
    "optimizer": "optim.optimizer",
    "schedule": "optim.schedule",
    "warmup_steps": "optim.warmup_steps",
    "decay_start": "optim.decay_start",
    "encoder_lr_mult": "optim.lr_mults.encoder",
    "backbone_lr_mult": "optim.lr_mults.backbone",
    "block_lr_mult": "optim.lr_mults.blocks",
    "head_lr_mult": "optim.lr_mults.head",
    "policy_lr_mult": "optim.lr_mults.policy",
    "baseline_lr_mult": "optim.lr_mults.baseline",
}
"""Options of the tasks of visattn: the name until November 2026, and that of today."""
_INIT_FROM = "init_from"  # of tasks for captions until November 2026, of the command since
_CLASS = re.compile(r"visattn\.(training|models|data|blocks)\.(?:\w+\.)+(\w+)")
_TASK = re.compile(r"(visattn\.[\w.]+\.)?\w+Task")  # others may have options of the same names
_ARGUMENT = re.compile(rf"--model\.(?:init_args\.)?({'|'.join(OPTIONS)}|{_INIT_FROM})(?=[.=]|$)")


def rename_config(config: Any, *, own_task: bool = True) -> Any:
    """Return the content of a YAML file with today's names of options and classes.

    `own_task` says whether a model without a class, which another config names, is one of visattn.

    Example:
        >>> rename_config({"class_path": "CaptioningTask", "init_args": {"warmup_steps": 3}})
        {'class_path': 'CaptioningTask', 'init_args': {'optim': {'warmup_steps': 3}}}
        >>> rename_config("visattn.training.data.scenes.ScenesDataModule")
        'visattn.training.ScenesDataModule'
    """
    if isinstance(config, str):
        return _CLASS.sub(_public_path, config)
    if isinstance(config, list):
        return [rename_config(value, own_task=own_task) for value in config]
    if not isinstance(config, dict):
        return config
    renamed = {name: rename_config(value, own_task=own_task) for name, value in config.items()}
    if _TASK.fullmatch(str(renamed.get("class_path"))):
        _nest_options(renamed)
    model = renamed.get("model")
    if not isinstance(model, dict) or not _is_own(model, own_task=own_task):
        return renamed
    _nest_options(model)
    options = model.get("init_args")
    start = options.pop(_INIT_FROM, None) if isinstance(options, dict) else None
    return renamed if start is None else {_INIT_FROM: start} | renamed


def _is_own(model: dict[str, Any], *, own_task: bool) -> bool:
    return bool(_TASK.fullmatch(str(model["class_path"]))) if "class_path" in model else own_task


def _public_path(match: re.Match[str]) -> str:
    """Return the path of a class by its room, since classes moved between the modules of a room."""
    room = f"visattn.{match[1]}"
    return f"{room}.{match[2]}" if match[2] in import_module(room).__all__ else match[0]


def _nest_options(task: dict[str, Any]) -> None:
    if isinstance(options := task.get("init_args"), dict):
        task["init_args"] = _nest(options)


def _nest(options: dict[str, Any]) -> dict[str, Any]:
    nested = {name: value for name, value in options.items() if name not in OPTIONS}
    for name in (name for name in OPTIONS if name in options):
        *parents, last = OPTIONS[name].split(".")
        level = nested
        for parent in parents:
            level[parent] = level.get(parent) or {}
            level = level[parent]
        # A config that has both names keeps the value of today's.
        level.setdefault(last, options[name])
    return nested


def rename_arguments(arguments: Sequence[str], configs: Sequence[Any]) -> list[str]:
    """Return command-line arguments with today's names of the options of a task of visattn.

    Example:
        >>> rename_arguments(["--model.optimizer.lr=0.1", "--model.warmup_steps", "3"], [])
        ['--model.optim.optimizer.lr=0.1', '--model.optim.warmup_steps', '3']
    """
    if not is_own_task(arguments, configs):
        return list(arguments)
    return [_ARGUMENT.sub(lambda match: _option(match[1]), argument) for argument in arguments]


def _option(name: str) -> str:
    return f"--{name}" if name == _INIT_FROM else f"--model.{OPTIONS[name]}"


def is_own_task(arguments: Sequence[str], configs: Sequence[Any]) -> bool:
    """Return whether a command line trains a task of visattn; also if it names none.

    Of the contents of the configs, the last one with a task counts.

    Example:
        >>> is_own_task(["--model=mine.MyTask"], [{"model": {"class_path": "CaptioningTask"}}])
        False
    """
    models = [config.get("model") for config in configs if isinstance(config, dict)]
    tasks = [
        model["class_path"] for model in models if isinstance(model, dict) and "class_path" in model
    ]
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, own = option.partition("=")
        tasks += [own or value] if name in ("--model", "--model.class_path") else []
    return not tasks or _TASK.fullmatch(str(tasks[-1])) is not None
