"""Runtime shape checks of visattn's functions; pyproject.toml names this module."""

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, Self, get_args

import jaxtyping
import pytest
from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray
from torch import Tensor

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is accepted for a float
_around = jaxtyping.jaxtyped
_CHECKED_CALLS = 3
_calls: Counter[Any] = Counter()


def checked(thing: Callable[..., Any]) -> Callable[..., Any]:
    """Return `thing` with its arguments and result checked when it is called.

    The check is made at the first call, since to make it takes milliseconds and a process of the
    tests calls few of the functions that it imports.
    """
    check: Callable[..., Any] | None = None

    @wraps(thing)
    def with_check(*args: Any, **kwargs: Any) -> Any:
        nonlocal check
        check = check or _with_check(thing)
        return check(*args, **kwargs)

    return with_check


def _with_check(thing: Callable[..., Any]) -> Callable[..., Any]:
    """Return `thing` with its check.

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


def check_shapes_alone() -> None:
    """Let jaxtyping skip functions without shapes, and calls like earlier ones of the same test.

    That is most of it: to decorate a function takes a millisecond, to enter it a hundred
    microseconds each time, and loops call the same functions with the same shapes thousands of
    times.
    """
    pytest.MonkeyPatch().setattr(jaxtyping, "jaxtyped", around_shapes)


def around_shapes(*, typechecker: Any) -> Callable[[Any], Any]:
    """Decorate as jaxtyping does, but only functions with shapes."""

    def decorated(thing: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable or not _says_shapes(thing):
            return thing  # JAXTYPING_DISABLE=1: as installed, so that it compiles
        checking = _around(thing, typechecker=typechecker)
        return _at_first(thing, checking) if inspect.isfunction(thing) else checking

    return decorated


def forget_calls() -> None:
    """Check shapes anew, as each test does: what is checked depends on no test before it."""
    _calls.clear()


def _at_first(plain: Callable[..., Any], checking: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose first calls with the same shapes and types are checked."""

    @wraps(plain)
    def checked_at_first(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return plain(*args, **kwargs)
        key = (
            plain,
            *[(x.shape, x.dtype) if type(x) is Tensor else type(x) for x in args],
            *[
                (name, x.shape, x.dtype) if type(x) is Tensor else (name, type(x))
                for name, x in kwargs.items()
            ],
        )
        _calls[key] += 1
        return (checking if _calls[key] <= _CHECKED_CALLS else plain)(*args, **kwargs)

    return checked_at_first


def _says_shapes(thing: Any) -> bool:
    """Whether a function, property, class method or data class has shape annotations."""
    if isinstance(thing, property):
        return any(map(_says_shapes, filter(None, (thing.fget, thing.fset, thing.fdel))))
    if isinstance(thing, type) and not dataclasses.is_dataclass(thing):
        return False
    function = getattr(thing, "__func__", thing)
    return any(map(_is_shape, function.__annotations__.values()))


def _is_shape(hint: Any) -> bool:
    if isinstance(hint, str):  # of a forward reference
        return "[" in hint
    inner = hint if isinstance(hint, list) else get_args(hint)  # a list: arguments of a Callable
    own = isinstance(hint, type) and issubclass(hint, AbstractArray)
    return own or any(map(_is_shape, inner))
