"""Errors of the config parser: one line, with the key and a name that the user may have meant."""

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from lightning import Callback

from visattn.io.messages import did_you_mean
from visattn.io.trusted_modules import TRUSTED_MODULES
from visattn.models.saving.config import model_classes
from visattn.training.cli.arguments import option_values
from visattn.training.data_module import DataModule
from visattn.training.task import Task

_MAX_MESSAGE = 2_000  # characters of an error
_MAX_VALUE = 80  # characters of a value that an error repeats
_UNION = "Does not validate against any of the Union subtypes"
_NOISE = re.compile(
    r"^\s*(?:- )?(?:Subtypes: |Errors:$|Given value type: |Expected a <class 'NoneType'>$"
    rf"|{_UNION}$|Given value: (?:Namespace\(|NestedArg\(|.{{{_MAX_VALUE}}}))"
)
_DENIED = r"Importing '([\w.]+)' is not allowed"
_CLASS = r"(?:dot import path string|Unexpected import path format): (\S+)"
_OPTION = re.compile(
    r"Option '(?P<option>[\w.]+)' is not accepted"
    r"|(?:Group '(?P<group>[\w.]+)'|Subcommand '\w+') does not accept option '(?P<member>[\w.]+)'"
    r"|unrecognized arguments: --(?P<argument>[\w.]+)"
)
_KEY = re.compile(r'Parser key "([^"]+)"')
_OWNER = re.compile(r"Problem with given class_path '([\w.]+)'")
_TYPE = r"<class '\w+'>|typing\.Literal\[.*?\]"
_EXPECTED = re.compile(rf"Expected a (?P<types>{_TYPE})\. Got value: (?P<value>.*)")
# Nothing but plain types was tried.
_EXPECTED_ANY = re.compile(
    rf"Errors:\n(?P<types>(?:\s*- Expected a (?:{_TYPE})\n)+)\s*Given value type: .*\n"
    r"\s*Given value: (?P<value>.*)"
)
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list": "a list",
    "dict": "a mapping",
}


def format_error(message: str, *, options: Sequence[str] = ()) -> str:
    """Return a parser error in one line for an unknown name, with the closest known name.

    Of a value that fits none of several types, the types that were tried are left out. `options`
    are those of the command line.

    Example:
        >>> format_error('Parser key "encoder": Expected a dot import path string: SmalEncoder')
        'encoder: there is no class SmalEncoder; did you mean SmallEncoder?'
        >>> format_error('''Parser key "data":
        ...   Problem with given class_path 'visattn.training.ScenesDataModule':
        ...     Parser key "batch_size":
        ...       Expected a <class 'int'>. Got value: twenty''')
        "data.batch_size must be an integer, got 'twenty'"
    """
    place = _KEY.search(message)
    key = f"{place[1]}: " if place else ""
    rejected = _OPTION.search(message)
    denied = re.search(_DENIED, message)
    # A callback with an unknown option is tried as a Callback, too, which is denied.
    if denied and not (rejected and rejected.start() < denied.start()):
        trusted = ", ".join(TRUSTED_MODULES)
        package = denied[1].partition(".")[0]
        return (
            f"{key}{denied[1]} may not be imported: configs import from {trusted}; to trust "
            f"another module, set VISATTN_TRUST_MODULES={package}"
        )
    if unknown := re.search(_CLASS, message):
        error = f"{key}there is no class {unknown[1]:.{_MAX_VALUE}}"
        names = list(dict.fromkeys(known.__name__ for known in _config_classes()))
        return _suggest(error, unknown[1], names, otherwise=f"there are {', '.join(names)}")
    if rejected:
        return _rejected_option(message, rejected, options)
    if wrong := _EXPECTED.search(message) or _EXPECTED_ANY.search(message):
        return _wrong_type(message, wrong)
    if _UNION in message:
        lines = [line.strip() for line in message.splitlines() if not _NOISE.match(line)]
        lines = [re.sub(rf"(?:- )?{_UNION}", "", line).strip().removeprefix("- ") for line in lines]
        message = "\n  ".join(dict.fromkeys(filter(None, lines))) or message
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]}\N{HORIZONTAL ELLIPSIS} ({len(message):,} characters)"
    return message


def explain_relative_paths(message: str, arguments: Sequence[str]) -> str:
    """Return an error about a missing file with the folder in which a relative path was searched.

    Args:
        message: The error.
        arguments: The command line, whose configs may hold the path.

    Example:
        >>> message = "a.csv is not a file"
        >>> explain_relative_paths(message, ["--data.captions", "a.csv"])  # doctest: +ELLIPSIS
        'a.csv is not a file; relative paths start at the working directory, ...'
    """
    configs = [Path(name) for name in option_values(arguments, "--config", "-c")]
    configs = [config for config in configs if config.is_file()]
    written = "\n".join([*arguments, *(config.read_text("utf-8", "replace") for config in configs)])
    for word in re.findall(r"[^\s'\",;:()\[\]{}]+", message):
        path = Path(word.rstrip("."))
        if path.is_absolute() or path.exists() or word not in written or "." not in path.name:
            continue
        beside = next((c.parent / path for c in configs if (c.parent / path).exists()), None)
        hint = f"; beside the config is {beside.resolve()}" if beside else ""
        return f"{message}; relative paths start at the working directory, {Path.cwd()}{hint}"
    return message


def _enclosing(message: str, position: int) -> str:
    """Return what encloses a position of a message: the lines above that are indented less.

    Parser key "model":
      Problem with given class_path 'CaptioningTask':     kept
        Parser key "captioner":                           kept
          Option 'hiden_size' is not accepted             the position
        Parser key "optim":                               another branch
    """
    *lines, last = message[:position].splitlines() or [""]
    kept = [last]
    for line in reversed(lines):
        if _indentation(line) < _indentation(kept[-1]):
            kept.append(line)
    return "\n".join(reversed(kept))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _rejected_option(message: str, match: re.Match[str], options: Sequence[str]) -> str:
    """Return the error of a key that its class, its group or the command line rejects."""
    around = _enclosing(message, match.start())
    # What a parameter of a callable type builds is named behind the option, everything else before.
    if around.endswith("callable class: "):
        owner = _namespace_class(message[match.end() :])
    else:
        owner = next(iter(_OWNER.findall(around)[-1:]), "")
    if match["argument"] and not owner:
        name = f"--{match['argument']}"
        return _suggest(f"unrecognized argument {name}", name, options)
    name = match["option"] or match["member"] or match["argument"]
    known = _class_options(owner) if owner else [own.removeprefix("--") for own in options]
    levels = _KEY.findall(around)
    group = match["group"] or ("" if owner else name.rpartition(".")[0])
    members = [own.removeprefix(f"{group}.") for own in known if own.startswith(f"{group}.")]
    if group and members:
        name, known = name.removeprefix(f"{group}."), members
        levels.append(group)
    elif group:
        name = group
    section = name.partition(".")[0]
    if not any(own.startswith(f"{section}.") for own in known):
        name = section  # of `trainner.accelerator`, the first part is unknown
        known = list(dict.fromkeys(own.partition(".")[0] for own in known))
    level = f"{'.'.join(levels)}: " if levels else ""
    return _suggest(f"{level}Option '{name}' is not accepted", name, known)


def _namespace_class(text: str) -> str:
    """Return the class of a printed namespace, not those of the namespaces inside of it."""
    depth = 0
    for part in re.finditer(r"(\()|(\))|\bclass_path='([\w.]+)'", text):
        depth += bool(part[1]) - bool(part[2])
        if part[3] and depth == 1:
            return part[3]
    return ""


def _wrong_type(message: str, match: re.Match[str]) -> str:
    """Return the error of a value that has another type than its parameter."""
    level = ".".join(_KEY.findall(_enclosing(message, match.start("types"))))
    types: list[str] = [
        (_TYPES.get(named) or named) if named else f"one of {choices}"
        for named, choices in re.findall(
            r"<class '(\w+)'>|typing\.Literal\[(.*?)\]", match["types"]
        )
        if named != "NoneType"
    ]
    # Around a callable, jsonargparse repeats the whole object behind the value.
    value = match["value"].partition(". Got value: ")[0]
    value = re.sub(r"^NestedArg\(.*?val='?(.*?)'?\)$", r"\1", value)
    value = value if value[:1] in ("[", "{") else f"'{value}'"
    return f"{level or 'the value'} must be {' or '.join(types)}, got {value:.{_MAX_VALUE}}"


def _suggest(error: str, name: str, names: Sequence[str], *, otherwise: str = "") -> str:
    """Return an error with the known name of the most similar spelling, or that continues it."""
    continued = [known for known in names if known.startswith(name)]
    hint = did_you_mean(
        name, continued or names, n=1, cutoff=0 if continued else 0.6, otherwise=otherwise
    )
    return f"{error}; {hint}" if hint else error


def _class_options(path: str) -> list[str]:
    """Return the options of a class that the parser has imported, those of its bases too."""
    module, _, name = path.rpartition(".")
    known: Any = getattr(sys.modules.get(module), name, None)
    if not inspect.isclass(known):
        return []
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(known, fail_untyped=False, sub_configs=False)
    options = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001
    return [option.removeprefix("--") for option in options]


def _config_classes() -> list[type[Any]]:
    """Return the classes of visattn that a config may name without their module."""
    named = [known for base in (Task, DataModule, Callback) for known in _subclasses(base)]
    named = [known for known in named if known.__module__.startswith("visattn")]
    return [*model_classes().values(), *(known for known in named if not inspect.isabstract(known))]


def _subclasses(base: type[Any]) -> list[type[Any]]:
    return [known for own in base.__subclasses__() for known in (own, *_subclasses(own))]
