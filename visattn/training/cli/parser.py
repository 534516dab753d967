"""Argument parser of the training commands: trusted imports, short errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, NoReturn

import yaml
from jsonargparse import set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser

from visattn.io.safe_text import print_message
from visattn.io.trusted_modules import TRUSTED_MODULES, user_trusted_modules
from visattn.models.config import model_classes, without_gone

_trusted_before: set[str] = set()


def configure_jsonargparse() -> None:
    """Restrict what configs import and load, in this process.

    Configs import only from `TRUSTED_MODULES` and the modules in `VISATTN_TRUST_MODULES`; they are
    local files; where any value is accepted, a class path stays a text.

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
    # Defaults of Lightning that are members of an enumeration, such as the interval of Timer.
    yaml.SafeDumper.add_multi_representer(
        Enum, lambda dumper, member: dumper.represent_str(str(member.value))
    )


class Parser(LightningArgumentParser):
    """Lightning's parser with errors without a page of usage."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # jsonargparse builds the parser of each class in a config from this class, too.
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the error, and exit with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)  # raises, for the parser around this one to continue
        hint = ""
        if denied := re.search(r"Importing '(\w+)[\w.]*' is not allowed", message):
            hint = f"\nto trust a module of yours, set VISATTN_TRUST_MODULES={denied[1]}"
        print_message(f"{message}{hint}")
        self.exit(2)

    def dump(self, *args: Any, **options: Any) -> str:
        """Write arguments as YAML; they were checked when they were parsed, which takes as long."""
        if "skip_none" in options:  # as Lightning says it, and jsonargparse did before 4.49
            options["skip_unset"] = options.pop("skip_none")
        return super().dump(*args, **{"skip_validation": True, **options})

    def _load_config_parser_mode(self, content: str, *args: Any, **kwargs: Any) -> Any:
        """Read a config without what left since a run of an older version wrote it."""
        with suppress(yaml.YAMLError):  # which is reported below
            config: Any = yaml.safe_load(content)
            kept = _without_gone(config)
            for key in _GONE_OPTIONS if isinstance(kept, dict) else ():
                kept.pop(key, None)
            content = content if kept == config else yaml.safe_dump(kept)
        return super()._load_config_parser_mode(content, *args, **kwargs)

    # Only --config reads files: no value of a config is replaced by the content of another file.

    def _add_signature_parameter(self, *args: Any, **kwargs: Any) -> None:
        super()._add_signature_parameter(*args, **{**kwargs, "sub_configs": False})

    def _create_group_if_requested(self, *args: Any, **kwargs: Any) -> Any:
        return super()._create_group_if_requested(*args, **{**kwargs, "config_load": False})


_GONE_OPTIONS = ("timeout", "progress_seconds")


def _without_gone(value: Any) -> Any:
    """Return a config without the arguments of models that left."""
    if isinstance(value, list):
        return [_without_gone(each) for each in value]
    if not isinstance(value, dict):
        return value
    value = {key: _without_gone(each) for key, each in value.items()}
    known = model_classes().get(str(value.get("class_path")).rpartition(".")[2])
    if known and isinstance(value.get("init_args"), dict):
        value["init_args"] = without_gone(known, value["init_args"])
    return value


@contextmanager
def report_user_errors() -> Iterator[None]:
    """Turn Lightning's errors about its options into `ValueError`, of which a line is printed.

    Example:
        >>> with report_user_errors():
        ...     raise MisconfigurationException("No supported gpu backend found!")
        Traceback (most recent call last):
        ValueError: No supported gpu backend found!
    """
    try:
        yield
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
