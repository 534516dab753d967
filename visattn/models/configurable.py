"""Base class that keeps constructor arguments as attributes, for the configs of saved models."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

from torch import nn

_WITHOUT_NAME = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
ConstructorT = TypeVar("ConstructorT", bound=Callable[..., None])

CLASSES: dict[str, type["Configurable"]] = {}
"""Subclasses of `Configurable` by name; of several with the same name, the last one defined."""


class Configurable:
    """Keeps each argument of the constructor as an attribute; these attributes are saved.

    A constructor sets only attributes that it changes or checks; all others get the value that was
    passed. Later changes of an attribute are saved too. Arguments that are modules must be
    registered by the class itself.

    Example:
        >>> class Scale(Configurable, nn.Module):
        ...     def __init__(self, factor: float, *, bias: int = 0) -> None:
        ...         super().__init__()
        >>> scale = Scale(3)
        >>> scale.bias = 2
        >>> scale.saved_arguments()
        {'factor': 3, 'bias': 2}
    """

    SETTINGS: ClassVar[tuple[str, ...]] = ()
    """Attributes that are saved in addition to the constructor's arguments, if they are set."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _keeping_arguments(cls.__init__)
        CLASSES[cls.__name__] = cls

    @classmethod
    def argument_names(cls) -> list[str]:
        """Return the names of the constructor's arguments.

        Raises:
            TypeError: If it takes unnamed arguments, which a config cannot have.
        """
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if any(parameter.kind in _WITHOUT_NAME for parameter in parameters):
            raise TypeError(
                f"the constructor of {cls.__name__} must name its arguments, or take those of "
                "another with @options_of, so that a config can be saved"
            )
        return [parameter.name for parameter in parameters]

    def saved_arguments(self) -> dict[str, Any]:
        """Return the arguments that rebuild this model, without its weights."""
        names = [*self.argument_names(), *(name for name in self.SETTINGS if getattr(self, name))]
        return {name: getattr(self, name) for name in names}


def _keeping_arguments(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)

    @functools.wraps(init)  # for inspect, the command line and the documentation
    def keep_arguments(self: Any, *args: Any, **kwargs: Any) -> None:
        # Values that the constructor set itself, such as checked ones, are not overwritten.
        init(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        for name, value in list(bound.arguments.items())[1:]:
            if not _is_kept(self, name) and not isinstance(value, nn.Module):
                setattr(self, name, value)

    return keep_arguments


def _is_kept(model: Any, name: str) -> bool:
    """Return whether a constructor set an attribute: a value, a property, a module or a tensor."""
    if name in vars(model) or hasattr(getattr(type(model), name, None), "__set__"):
        return True
    return any(name in vars(model).get(key, ()) for key in ("_modules", "_parameters", "_buffers"))


def options_of(source: Callable[..., Any]) -> Callable[[ConstructorT], ConstructorT]:
    """Replace `**options` in a signature by the keyword-only parameters of another function.

    They come before the constructor's own options.

    Args:
        source: Function or constructor that receives the options.

    Example:
        >>> def draw(size, *, color="red", width=1): ...
        >>> @options_of(draw)
        ... def draw_twice(size, *, gap=3, **options): ...
        >>> inspect.signature(draw_twice)
        <Signature (size, *, color='red', width=1, gap=3)>
    """
    options = _of_kind(source, inspect.Parameter.KEYWORD_ONLY)

    def decorate(init: ConstructorT) -> ConstructorT:
        positional = _of_kind(init, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        own = _of_kind(init, inspect.Parameter.KEYWORD_ONLY)
        shown = cast("Any", init)
        shown.__signature__ = inspect.Signature([*positional, *options, *own])
        shown.__annotations__ |= {option.name: option.annotation for option in options}
        return init

    return decorate


def _of_kind(function: Callable[..., Any], kind: Any) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter for parameter in parameters if parameter.kind is kind]
