"""Argument parser of the training commands: safe configs, trusted imports, short errors."""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace, get_loader, set_loader, set_parsing_settings
from lightning import Callback
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.trainer.connectors import checkpoint_connector

from visattn.io.messages import did_you_mean
from visattn.io.safe_text import print_message
from visattn.io.trusted_modules import TRUSTED_MODULES, user_trusted_modules
from visattn.models.saving.config import model_classes
from visattn.training.cli.arguments import option_values
from visattn.training.cli.renames import is_own_task, rename_arguments, rename_config
from visattn.training.cli.yaml_safety import check_yaml, read_config
from visattn.training.data_module import DataModule
from visattn.training.distributed.launcher import is_peer_lost
from visattn.training.task import Task

_MAX_MESSAGE = 2_000  # characters of an error
_MAX_VALUE = 80  # characters of a value that an error repeats
_UNION = "Does not validate against any of the Union subtypes"
_NOISE = re.compile(
    r"^\s*(?:- )?(?:Subtypes: |Errors:$|Given value type: |Expected a <class 'NoneType'>$"
    rf"|{_UNION}$|Given value: (?:Namespace\(|.{{{_MAX_VALUE}}}))"
)
_DENIED = r"Importing '([\w.]+)' is not allowed"
_UNKNOWN = {
    "class": r"(?:dot import path string|Unexpected import path format): (\S+)",
    "option": r"Option '([\w.]+)' is not accepted",
    "argument": r"unrecognized arguments: (--[\w.]+)",
}
_CALLBACKS = Path(lightning_callbacks.__file__).parent
_yaml_loader = get_loader("yaml")
_trusted_before: set[str] = set()


def configure_jsonargparse() -> None:
    """Restrict what configs import and load, in this process.

    Configs import only from `TRUSTED_MODULES` and the modules in `VISATTN_TRUST_MODULES`; they are
    local files that pass `check_yaml`; where any value is accepted, a class path stays a text.

    Example:
        >>> getfixture("monkeypatch").setenv("VISATTN_TRUST_MODULES", "my_blocks, my_tasks")
        >>> configure_jsonargparse()
    """
    model_classes()  # are imported: jsonargparse finds short names among subclasses that exist
    trusted = user_trusted_modules()
    revoked = sorted(_trusted_before - set(trusted))  # jsonargparse only adds to its lists
    _trusted_before.update(trusted)
    set_parsing_settings(
        import_path_denylist=["*", *revoked],
        import_path_allowlist=[*TRUSTED_MODULES, *trusted],
        instantiate_subclass_spec_in_any=False,
        config_read_mode_urls_enabled=False,  # importing LightningCLI turns these on
        config_read_mode_fsspec_enabled=False,
    )
    set_loader("yaml", _load_yaml, (yaml.YAMLError,))
    # Defaults of Lightning that are members of an enumeration, such as the interval of Timer.
    yaml.SafeDumper.add_multi_representer(
        Enum, lambda dumper, member: dumper.represent_str(str(member.value))
    )


def _load_yaml(text: str, *, own_task: bool = True) -> Any:
    if len(text) > 200 or "\n" in text:  # shorter values expand to few
        check_yaml(text, source="a config value")
    return rename_config(_yaml_loader(text), own_task=own_task)


class Parser(LightningArgumentParser):
    """Lightning's parser with checked configs, and errors without a page of usage."""

    def parse_args(
        self, args: Sequence[str] | None = None, *rest: Any, **options: Any
    ) -> Namespace:  # type: ignore[override]
        """Parse arguments; a usage error exits with code 2."""
        try:
            args = sys.argv[1:] if args is None else args
            files = [Path(name) for name in option_values(args, "--config", "-c")]
            configs = {path: _yaml_loader(read_config(path)) for path in files if path.is_file()}
            for path, config in configs.items():
                if _has_config_key(config):
                    raise ValueError(f"{path} includes another config; pass both with --config")
            own_task = is_own_task(args, list(configs.values()))
            set_loader("yaml", partial(_load_yaml, own_task=own_task), (yaml.YAMLError,))
            args = rename_arguments(args, list(configs.values()))
            parsed = super().parse_args(args, *rest, **options)
            trainer = parsed.get(f"{parsed.get('subcommand')}.trainer", Namespace())
            if not isinstance(trainer, Namespace):
                self.error(f"trainer must be a mapping of options, got {trainer!r:.{_MAX_VALUE}}")
            return parsed
        except ValueError as error:
            self.error(str(error), error)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error and a suggestion, and exit with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)  # raises, for the parser around this one to continue
        actions = getattr(ex, "subcommand_parser", self)._actions  # noqa: SLF001
        options = [option for action in actions for option in action.option_strings]
        print_message(format_error(message, options=options))
        self.exit(2)

    # Only --config reads files: no value of a config is replaced by the content of another file.

    def _add_signature_parameter(self, *args: Any, **kwargs: Any) -> None:
        super()._add_signature_parameter(*args, **{**kwargs, "sub_configs": False})

    def _create_group_if_requested(self, *args: Any, **kwargs: Any) -> Any:
        return super()._create_group_if_requested(*args, **{**kwargs, "config_load": False})


def _has_config_key(config: Any) -> bool:
    """Return whether a config names another one, whose content errors would show."""
    sections = [config, *config.values()] if isinstance(config, dict) else []
    return any(isinstance(section, dict) and "config" in section for section in sections)


@contextmanager
def report_user_errors() -> Iterator[None]:
    """Turn errors of Lightning and its parser that a user causes into short `ValueError` messages.

    Example:
        >>> with report_user_errors():
        ...     raise MisconfigurationException("No supported gpu backend found!")
        Traceback (most recent call last):
        ValueError: No supported gpu backend found!
    """
    try:
        yield
    except (MisconfigurationException, ValueError) as error:
        message = format_error(str(error))
        if isinstance(error, ValueError) and message == str(error):
            raise
        raise ValueError(message) from error
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        # These errors have no type of their own; the file that raised one says what failed.
        files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if Path(files[-1]).parent == _CALLBACKS and not is_peer_lost(error):
            raise ValueError(
                f"the callback in {Path(files[-1]).name} of Lightning failed ({reason}); correct "
                "its options in trainer.callbacks, or remove it"
            ) from error
        if checkpoint_connector.__file__ not in files or is_peer_lost(error):
            raise
        raise ValueError(
            "the checkpoint cannot be restored: it was written by a run with other callbacks or "
            f"another optimizer, or it is damaged ({reason})"
        ) from error


def format_error(message: str, *, options: Sequence[str] = ()) -> str:
    """Return a parser error in one line for an unknown name, with the closest known name.

    Of a value that fits none of several types, the types that were tried are left out. `options`
    are those of the command line.

    Example:
        >>> format_error('Parser key "encoder": Expected a dot import path string: SmalEncoder')
        'encoder: there is no class SmalEncoder; did you mean SmallEncoder?'
    """
    place = re.search(r'Parser key "([^"]+)"', message)
    key = f"{place[1]}: " if place else ""
    if denied := re.search(_DENIED, message):
        trusted = ", ".join(TRUSTED_MODULES)
        package = denied[1].partition(".")[0]
        return (
            f"{key}{denied[1]} may not be imported: configs import from {trusted}; to trust "
            f"another module, set VISATTN_TRUST_MODULES={package}"
        )
    for kind, pattern in _UNKNOWN.items():
        if match := re.search(pattern, message):
            return f"{key}{_suggest(kind, match[1], message, options)}"
    if _UNION in message:
        lines = [line.strip() for line in message.splitlines() if not _NOISE.match(line)]
        lines = [re.sub(rf"(?:- )?{_UNION}", "", line).strip().removeprefix("- ") for line in lines]
        message = "\n  ".join(dict.fromkeys(filter(None, lines))) or message
    if len(message) > _MAX_MESSAGE:
        message = f"{message[:_MAX_MESSAGE]}\N{HORIZONTAL ELLIPSIS} ({len(message):,} characters)"
    return message


def _suggest(kind: str, name: str, message: str, options: Sequence[str]) -> str:
    """Return a sentence about an unknown name, with known names of similar spelling."""
    classes = {known.__name__: known for known in _config_classes()}
    if kind == "class":
        error = f"there is no class {name:.{_MAX_VALUE}}"
        names = list(classes)
    elif kind == "option":
        owner = next((known for known in classes if re.search(rf"\b{known}\b", message)), None)
        owners = [classes[owner]] if owner else list(classes.values())
        names = [option for known in owners for option in _options(known)]
        error = f"Option '{name}' is not accepted"
    else:
        error = f"unrecognized argument {name}"
        names = list(options)
    listed = f"there are {', '.join(names)}" if kind == "class" else ""
    hint = did_you_mean(name, names, n=1, otherwise=listed)
    return f"{error}; {hint}" if hint else error


def _options(known: type[Any]) -> Iterator[str]:
    """Yield the options of a class, with those that it passes on to its bases."""
    for base in known.__mro__[:-1]:
        if "__init__" in vars(base):
            _, *parameters = inspect.signature(base.__init__).parameters.values()
            named = (own for own in parameters if own.kind != inspect.Parameter.VAR_KEYWORD)
            yield from (parameter.name for parameter in named)


def _config_classes() -> list[type[Any]]:
    """Return the classes of visattn that a config may name without their module."""
    named = [known for base in (Task, DataModule, Callback) for known in _subclasses(base)]
    named = [known for known in named if known.__module__.startswith("visattn")]
    return [*model_classes().values(), *(known for known in named if not inspect.isabstract(known))]


def _subclasses(base: type[Any]) -> list[type[Any]]:
    return [known for own in base.__subclasses__() for known in (own, *_subclasses(own))]
