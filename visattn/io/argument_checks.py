"""Checks of arguments of public functions: types by the signature, ranges by a table."""

import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from visattn.io.safe_text import short_repr

LARGEST_SEED = 2**63 - 1
"""The largest that the generators of torch and NumPy accept."""
Ranges = Mapping[str, tuple[float, float]]
P = ParamSpec("P")
R = TypeVar("R")

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a string",
    type(None): "None",
    os.PathLike: "a path",
    Mapping: "a dictionary",
    Callable: "a function",
}
_ADVICE = {
    str: "; load a model from a file with visattn.load or visattn.load_model",
    PurePath: "; load a model from a file with visattn.load or visattn.load_model",
    Mapping: "; build the model, and load these weights with its load_state_dict",
}


def checked_arguments(**ranges: tuple[float, float]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that checks the arguments of each call before the function runs.

    Types are those of the signature, as far as these are numbers, strings, classes, and unions or
    sequences of them; other arguments are left to the function.

    Args:
        ranges: Smallest and largest value of arguments that are numbers.

    Example:
        >>> @checked_arguments(size=(1, 9))
        ... def draw(size: int, mode: Literal["a", "b"] = "a") -> int:
        ...     return size
        >>> draw(7)
        7
        >>> draw(12)
        Traceback (most recent call last):
        ValueError: size must be from 1 to 9, got 12
        >>> draw("7")
        Traceback (most recent call last):
        TypeError: size must be a whole number, got '7'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        hints = {
            name: parameter.annotation
            for name, parameter in signature.parameters.items()
            if parameter.kind not in variable and parameter.annotation is not parameter.empty
        }

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = signature.bind(*args, **kwargs).arguments
            for name, hint in hints.items():
                if name in arguments:
                    check_argument(name, arguments[name], hint, ranges.get(name))
            return function(*args, **kwargs)

        return checked

    return decorate


def check_arguments(function: Callable[..., object], arguments: Mapping[str, object]) -> None:
    """Raise unless arguments have the types that a function states.

    Arguments that it does not have are left to it.

    Raises:
        TypeError: If the type of one is another one.
        ValueError: If one is none of several texts.

    Example:
        >>> check_arguments(lambda size: size, {"size": "a"})
    """
    for name, parameter in inspect.signature(function).parameters.items():
        if name in arguments and parameter.annotation is not parameter.empty:
            check_argument(name, arguments[name], parameter.annotation)


def check_argument(
    name: str, value: object, hint: Any, limits: tuple[float, float] | None = None
) -> None:
    """Raise unless an argument has its type and lies in its range.

    A type that cannot be checked is accepted; `limits` are the smallest and largest number.

    Raises:
        TypeError: If the type is another one.
        ValueError: If it is none of several texts, or out of range.

    Example:
        >>> check_argument("mode", "c", Literal["a", "b"])
        Traceback (most recent call last):
        ValueError: mode must be one of a, b, got 'c'
    """
    if fits(value, hint) is False:
        kind = ValueError if isinstance(value, str) and _choices(hint) else TypeError
        raise kind(f"{name} must be {_describe(hint)}, got {_given(value, hint)}")
    number: Any = value if isinstance(value, Real) else None
    if limits is not None and number is not None and not limits[0] <= number <= limits[1]:
        raise ValueError(
            f"{name} must be from {limits[0]:,} to {limits[1]:,}, got {short_repr(value)}"
        )


def fits(value: object, hint: Any) -> bool | None:
    """Return whether a value has a type; None if that cannot be decided.

    Example:
        >>> fits(True, int), fits(3, float | None), fits("a", Sequence[str]), fits(3, Any)
        (False, True, False, None)
    """
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin in (Union, types.UnionType):
        results = [fits(value, inner_hint) for inner_hint in inner]
        if True in results:
            return True
        return None if None in results else False
    if origin is Literal:
        # By type too: True equals 1.
        return any(type(value) is type(choice) and value == choice for choice in inner)
    if hint is int or hint is float:
        number = Integral if hint is int else Real
        # NaN, which alone does not equal itself, is refused.
        return isinstance(value, number) and not isinstance(value, bool) and value == value
    if hint is None:
        return value is None
    if origin in (tuple, list, Sequence, Iterable):
        return _fits_sequence(value, origin, inner)
    if origin in (os.PathLike, Mapping):
        return isinstance(value, origin)
    if origin is Callable:
        return callable(value)
    return isinstance(value, hint) if _is_plain_class(hint) else None


def _fits_sequence(value: object, origin: Any, inner: tuple[Any, ...]) -> bool | None:
    if origin is Iterable and inner[0] not in (int, str):  # such as images: the function knows
        return None
    any_length = origin is not tuple or Ellipsis in inner
    kind = tuple if origin is tuple and any_length else Sequence
    if isinstance(value, str | bytes) or not isinstance(value, kind):
        # Looking into an iterator would use it up, and a set is no Sequence: the function decides.
        return None if origin is Iterable and isinstance(value, Set | Iterator) else False
    kinds = [inner[0]] * len(value) if any_length else list(inner)
    if len(kinds) != len(value):
        return False
    results = [fits(item, kind) for item, kind in zip(value, kinds, strict=True)]
    if False in results:
        return False
    return None if None in results else True


def _is_plain_class(hint: Any) -> bool:
    """Whether `isinstance` decides: a class, no array with a shape and no protocol."""
    if not inspect.isclass(hint) or get_origin(hint) is not None:
        return False
    strange = hint.__module__.startswith(("jaxtyping", "typing"))
    return not (strange or getattr(hint, "_is_protocol", False))


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _choices(hint: Any) -> list[str]:
    literals = (member for member in _members(hint) if get_origin(member) is Literal)
    return [str(choice) for literal in literals for choice in get_args(literal)]


def _describe(hint: Any) -> str:
    """Return a type in words."""
    words: list[str] = []
    for member in _members(hint):
        origin = get_origin(member)
        inner = get_args(member)
        if origin is Literal:
            words.append(f"one of {', '.join(map(str, inner))}")
        elif origin in _WORDS:
            words.append(_WORDS[origin])
        elif origin in (tuple, list, Sequence, Iterable):
            kind = _describe(inner[0]) if inner else "values"
            count = len(inner) if origin is tuple and Ellipsis not in inner else 0
            words.append(f"a list of {f'{count} values, each ' if count else ''}{kind}")
        elif member in _WORDS or member is None:
            words.append(_WORDS.get(member, "None"))
        else:
            words.append(_describe_class(member))
    return " or ".join(dict.fromkeys(words))


def _describe_class(hint: Any) -> str:
    name = getattr(hint, "__name__", str(hint))
    return "a torch module" if _is_module(hint) else f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _is_module(hint: Any) -> bool:
    return getattr(hint, "__module__", "") == "torch.nn.modules.module"


def _given(value: object, hint: Any) -> str:
    """Return a value in words, with advice for what is often passed instead of a model."""
    if not any(map(_is_module, _members(hint))):
        return short_repr(value) if not hasattr(value, "shape") else type(value).__name__
    advice = next((text for kind, text in _ADVICE.items() if isinstance(value, kind)), "")
    shown = f" {short_repr(value)}" if isinstance(value, str | PurePath | int | float) else ""
    return f"{type(value).__name__}{shown}{advice}"
