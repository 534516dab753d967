"""Lightning's parser of configs and command lines, with trusted imports, short errors and help."""

import os
import re
import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from jsonargparse import set_parsing_settings
from jsonargparse._parameter_resolvers import get_signature_parameters
from lightning.pytorch import callbacks
from lightning.pytorch.cli import LightningArgumentParser
from torchvision.transforms import v2

from visattn import data, models, training
from visattn.io.messages import did_you_mean
from visattn.io.safe_text import print_message
from visattn.io.trusted_modules import (
    TRUST_VARIABLE,
    TRUSTED_MODULES,
    is_trusted_module,
    user_trusted_modules,
)
from visattn.models.backbones.module_classifier import find_network
from visattn.models.base import ImageClassifier
from visattn.models.config import model_classes
from visattn.training.data_module import DataModule
from visattn.training.old_configs import modernized
from visattn.training.task import Task

_trusted_before: set[str] = set()


def trust_modules() -> None:
    """Restrict imports of configs to `TRUSTED_MODULES` and `VISATTN_TRUST_MODULES`."""
    model_classes()  # imported, since jsonargparse finds short names among existing subclasses
    known_classes()
    trusted = user_trusted_modules()
    # A trusted module may be in the working directory, which jsonargparse leaves to read a config.
    if trusted and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    revoked = sorted(_trusted_before - set(trusted))  # jsonargparse only adds to its lists
    _trusted_before.update(trusted)
    set_parsing_settings(
        import_path_denylist=["*", *revoked],
        import_path_allowlist=[*TRUSTED_MODULES, *trusted],
        instantiate_subclass_spec_in_any=False,
        config_read_mode_urls_enabled=False,  # enabled by importing LightningCLI
        config_read_mode_fsspec_enabled=False,
    )


@cache
def known_classes() -> dict[str, type]:
    """Return the classes that configs can name without their module."""
    modules: tuple[Any, ...] = (v2, callbacks, torch.optim, models, data, training)
    named = {name: getattr(module, name) for module in modules for name in dir(module)}
    return {name: each for name, each in named.items() if isinstance(each, type)}


class Parser(LightningArgumentParser):
    """Lightning's parser with short errors, in which only --config reads files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # jsonargparse also builds the parsers of classes in a config from this class.
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def parse_args(self, args: Any = None, *rest: Any, **options: Any) -> Any:
        """Parse arguments; jsonargparse passes on a null for a class as the text None."""
        if args is not None:
            args = [re.sub("=None$", "=null", word) for word in args]
        return super().parse_args(args, *rest, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the cause of an error as one line, and exit with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)  # raises, so that the outer parser continues
        hint = ""
        if unknown := re.match("unrecognized arguments: (--[^ =]+)", message):
            known = self._option_string_actions
            hint = f"; {did_you_mean(unknown[1], known, otherwise='--help-all lists all')}"
        said = cause(message)
        if said.endswith(":") and ex is not None:  # an error without a message
            said += f" {root_of(ex)!r}"
        print_message(said + hint)
        self.exit(2)

    def dump(self, *args: Any, **options: Any) -> str:
        """Return arguments as YAML without checking them again, which would double the time."""
        if "skip_none" in options:  # Lightning's message, and jsonargparse's before 4.49
            options["skip_unset"] = options.pop("skip_none")
        return super().dump(*args, **{"skip_validation": True, **options})

    def _load_config_parser_mode(
        self, content: str, path: Any = "", *args: Any, **kwargs: Any
    ) -> Any:
        """Read a config; options of older versions that were removed are dropped."""
        try:
            config: Any = yaml.safe_load(content)
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise TypeError(f"{path or 'the config'}{line}: {error.problem}") from None
        if isinstance(config, dict):
            model: Any = config.get("model")
            task = model.get("init_args") if isinstance(model, dict) else None
            if isinstance(task, dict) and "classifier" in task:
                task["classifier"] = _with_network(task["classifier"])
            kept = yaml.safe_dump(modernized(config))
            content = re.sub(r"\$\{(\w+)\}", _variable, kept)
        return super()._load_config_parser_mode(content, path, *args, **kwargs)

    def _add_signature_parameter(self, *args: Any, **kwargs: Any) -> None:
        super()._add_signature_parameter(*args, **{**kwargs, "sub_configs": False})

    def _create_group_if_requested(self, *args: Any, **kwargs: Any) -> Any:
        return super()._create_group_if_requested(*args, **{**kwargs, "config_load": False})


def with_network(words: Sequence[str]) -> list[str]:
    """Replace a classifier that is any network, such as `timm:resnet18`, in arguments.

    Example:
        >>> with_network(["--model.classifier=timm:resnet18"])
        ['--model.classifier', 'ModuleClassifier', '--model.classifier.network', 'timm:resnet18']
    """
    option = "--model.classifier"
    found = list[str]()
    for word in words:
        split = word.startswith(f"{option}=")
        name = word.removeprefix(f"{option}=")
        given: Any = _with_network(name) if split or found[-1:] == [option] else name
        if given == name:
            found.append(word)
        else:
            found += [option] if split else []
            found += [given["class_path"], f"{option}.network", name]
    return found


def _with_network(classifier: Any) -> Any:
    """Return a classifier in a config, as a `ModuleClassifier` if it is any other network."""
    given = classifier if isinstance(classifier, dict) else {"class_path": classifier}
    name, arguments = str(given.get("class_path")), given.get("init_args") or {}
    own = "." in name and name.partition(".")[0] != "visattn" and ":" not in name
    if not (own and is_trusted_module(name.rpartition(".")[0])) and ":" not in name:
        return classifier
    if own:
        network = find_network(name)
        if isinstance(network, type) and issubclass(network, ImageClassifier):
            return classifier
    shared = {key: arguments.pop(key) for key in _SHARED if key in arguments}
    return {
        "class_path": "ModuleClassifier",
        "init_args": {"network": name, "arguments": arguments, **shared},
    }


_SHARED = ("img_size", "mean", "std", "blocks")


def _variable(match: re.Match[str]) -> str:
    """Return the value of the environment variable `${NAME}` in a config."""
    if match[1] not in os.environ:
        raise ValueError(
            f"the config uses {match[0]}, but this environment variable is not set: export "
            f"{match[1]}=... or pass the path on the command line"
        )
    return os.environ[match[1]]


def root_of(error: BaseException) -> BaseException:
    """Return the root cause of an error."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error


def cause(message: str) -> str:
    r"""Return the cause of a jsonargparse error as one line, with its option.

    Example:
        >>> cause("Parser key \"x\":\n  Errors:\n    - Expected a <class 'int'>\n  Given value: y")
        '--x: expected int, got y'
    """
    option = ".".join(re.findall('Parser key "(.+?)":', message))
    lines = [line.strip().removeprefix("- ") for line in message.splitlines()]
    said = [line for line in lines if line and not _FRAME.match(line)] or [message]
    # For an option with several types, the most deeply nested error comes first.
    meant = [line for line in said if _REASON.search(line)]
    reason, *_ = meant or [line for line in said if not _OTHER_TYPE.match(line)] or said
    owners = re.findall(r"class_path[ =]'([\w.]+)'", message.partition(reason)[0] + reason)
    _, _, last = reason.rpartition(" expects a function or a callable class: ")
    reason, _, value = last.partition(". Got value: ")
    given = re.search("Given value: (.*)", message)
    value = value or (given[1] if given else "")
    if named := re.match("Expected a dot import path string: (.*)", reason):
        reason = unknown_class(named[1], option)
    elif owners and (named := re.match(r"Option '([\w.]+)' is not accepted", reason)):
        module, _, owner = owners[-1].rpartition(".")
        described = getattr(sys.modules[module], owner)
        names = [each.name for each in get_signature_parameters(described)]
        reason = f"{owner} has no option {named[1]}; {did_you_mean(named[1], names)}"
    elif named := re.match(r"Importing '(\w+)[\w.]*' is not allowed", reason):
        reason = f"{named[0]}; to trust your own module, set {TRUST_VARIABLE}={named[1]}"
    elif reason.startswith("Expected") and value and not re.match(r"[{\[]|\w+\(", value):
        kind = re.sub(r"Expected a <class '(.*)'>", r"expected \1", reason)
        kind = re.sub(r"Expected a typing\.Literal\[(.*)\]", r"expected one of \1", kind)
        reason = f"{kind}, got {value}"
    return f"--{option}: {reason}" if option else reason


_FRAME = re.compile("Parser key|Does not validate|Subtypes:|Errors:|Given value|Problem with given")
_REASON = re.compile("Importing '|Expected a dot import path|Option '")
_OTHER_TYPE = re.compile("Expected a <class '(NoneType|list|dict)'>")


def unknown_class(name: str, option: str) -> str:
    """Return the message for an unknown class in a config, with suggestions."""
    import timm

    if not timm.is_model(name):
        hint = did_you_mean(
            name, known_classes(), otherwise="name its module, package.module.Class"
        )
        return f"there is no class {name}; {hint}"
    task = "" if "classifier" in option else "--model ClassificationTask --model.classifier "
    return f"{name} is a model of timm: write {task}timm:{name}"


def class_help(words: Sequence[str]) -> str | None:
    """Return the help of a class for `--model.help CLASS` in arguments; None without it.

    Raises:
        ValueError: If the class does not exist.
    """
    pattern = r"(?:^|\0)--([\w.]+)\.help(?:[=\0]([^-\0][^\0]*))?(?:\0|$)"
    if not (asked := re.search(pattern, "\0".join(words))):
        return None
    option, name = asked.groups()
    known = known_classes()
    if name is None:
        base = {"model": Task, "data": DataModule}.get(option, object)
        choices = [k for k, each in known.items() if issubclass(each, base)]
        raise ValueError(f"--{option}.help needs a class, such as {', '.join(choices)}")
    if (described := known.get(name.rpartition(".")[2])) is None:
        raise ValueError(unknown_class(name, option))
    parser = Parser(usage=SUPPRESS, description=None, add_help=False)
    given = {"data_info", "class_names", "words", "answers"}  # set from the data
    parser.add_class_arguments(described, option, skip={*given})
    return parser.format_help()
