"""Argument parser of the training commands: safe configs, trusted imports, short errors."""

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
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.trainer.connectors import checkpoint_connector

from visattn.io.safe_text import print_message
from visattn.io.trusted_modules import TRUSTED_MODULES, user_trusted_modules
from visattn.models.saving.config import model_classes
from visattn.training.cli.arguments import option_values
from visattn.training.cli.errors import explain_relative_paths, format_error
from visattn.training.cli.renames import is_own_task, rename_arguments, rename_config
from visattn.training.cli.yaml_safety import check_yaml, read_config
from visattn.training.distributed.launcher import is_peer_lost

_MAX_VALUE = 80  # characters of a value that an error repeats
_MISSING = re.compile(r"is not a (?:file|folder)|no such file|does not exist", re.IGNORECASE)
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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # jsonargparse builds the parser of each class in a config from this class, too.
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

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
        commands = getattr(self._subcommands_action, "choices", None) or {}
        parsers = [getattr(ex, "subcommand_parser", self), *commands.values()]
        actions = [action for parser in parsers for action in parser._actions]  # noqa: SLF001
        options = list(dict.fromkeys(name for action in actions for name in action.option_strings))
        print_message(format_error(message, options=options))
        self.exit(2)

    def dump(self, *args: Any, **options: Any) -> str:
        """Write arguments as YAML; they were checked when they were parsed, which takes as long."""
        if "skip_none" in options:  # as Lightning says it, and jsonargparse did before 4.49
            options["skip_unset"] = options.pop("skip_none")
        return super().dump(*args, **{"skip_validation": True, **options})

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
def report_user_errors(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Turn errors of Lightning and its parser that a user causes into short `ValueError` messages.

    A file of the command line `arguments` that is missing is reported with the folder searched.

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
        if _MISSING.search(message):
            message = explain_relative_paths(message, arguments)
        if isinstance(error, ValueError) and message == str(error):
            raise
        raise ValueError(message) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        # Of the message of the system, the number is left out.
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        message = explain_relative_paths(reason, arguments)
        if message == reason:
            raise
        raise type(error)(message) from error
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
