"""The type checker that pytest puts around every function of visattn; see pyproject.toml."""

from collections.abc import Callable
from typing import Any, Self, get_args

from beartype import BeartypeConf, beartype

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # where a float is asked for, 3 will do


def checked(thing: Callable[..., Any]) -> Callable[..., Any]:
    """Return `thing` with its arguments and result checked when it is called.

    beartype knows `Self` only in classes that it decorates itself, but the hook decorates methods:
    there `Self` is taken as anything, and all the rest is checked.
    """
    hints = getattr(thing, "__annotations__", {})
    unknown = {name for name, hint in hints.items() if Self in (hint, *get_args(hint))}
    if not unknown:
        return _check(thing)
    thing.__annotations__ = {name: Any if name in unknown else hints[name] for name in hints}
    try:
        return _check(thing)
    finally:
        thing.__annotations__ = hints
