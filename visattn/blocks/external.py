"""Blocks that users bring: what such a class must be, and how a text that names it is read."""

import importlib
import inspect
from types import ModuleType
from typing import Any

from torch import nn

from visattn.blocks.base import BlockInfo
from visattn.io.trusted_modules import VARIABLE, is_trusted


def check_class(block: object) -> type[nn.Module]:
    """Return a class of blocks, if it can be one.

    Raises:
        TypeError: If it is no class of `torch.nn.Module` with a forward, if it is a layer of
            torch itself, or if it cannot be made from a number of channels alone.

    Example:
        >>> check_class(nn.ReLU)
        Traceback (most recent call last):
        TypeError: a block is a class of torch.nn.Module, ...; ReLU is a layer of torch itself
    """
    wanted = "a block is a class of torch.nn.Module, made from its number of channels"
    if not isinstance(block, type) or not issubclass(block, nn.Module):
        kind = type(block).__name__ if not isinstance(block, type) else "class"
        raise TypeError(f"{wanted}; got the {kind} {getattr(block, '__name__', block)!s:.60}")
    if block.__module__.startswith("torch."):  # every layer of its kind would count as a block
        raise TypeError(f"{wanted}; {block.__name__} is a layer of torch itself")
    if inspect.isabstract(block) or block.forward is nn.Module.forward:
        raise TypeError(f"{wanted}; {block.__name__} defines no forward")
    try:
        inspect.signature(block).bind(64)
    except TypeError as error:
        raise TypeError(
            f"{wanted}: it takes the channels first, and all other arguments have defaults; "
            f"{block.__name__}{inspect.signature(block)} cannot be called as {block.__name__}(64): "
            f"{error}"
        ) from None
    return block


def path_of(block: type[nn.Module]) -> str:
    """Return a class as `package.module.Class`.

    Example:
        >>> path_of(nn.BatchNorm2d)
        'torch.nn.modules.batchnorm.BatchNorm2d'
    """
    return f"{block.__module__}.{block.__qualname__}"


def plain_card(block: type[nn.Module], name: str) -> BlockInfo:
    """Return what can be said of a class that has no card of its own.

    Example:
        >>> plain_card(nn.BatchNorm2d, "norm").title
        'BatchNorm2d'
    """
    return BlockInfo(
        name=name,
        kind="other",
        title=block.__name__,
        paper=f"from outside: {path_of(block)}",
        equation="not stated",
        parameters="not stated",
    )


def imported(path: str) -> type[nn.Module]:
    """Return the class that `package.module.Class` names, of a module that may be imported.

    Nothing is imported but what configs may import: see `visattn.io.trusted_modules`.

    Raises:
        ValueError: If the module is not trusted or cannot be imported, or has no such class.
        TypeError: If the class cannot be a block.

    Example:
        >>> imported("visattn.blocks.combined.simam.SimAM")
        <class 'visattn.blocks.combined.simam.SimAM'>
    """
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"there is no block {path!r}: a class is named as package.module.Class")
    _check_trust(path, module)
    try:
        thing: Any = getattr(imported_module(module), name)
    except AttributeError:
        raise ValueError(f"there is no block {path!r}: {module} has no {name}") from None
    if isinstance(thing, type):  # something else's class, seen through a module of ours
        _check_trust(path, thing.__module__)
    return check_class(thing)


def imported_module(name: str) -> ModuleType:
    """Return a module that the user trusts.

    Raises:
        ValueError: If it cannot be imported, with the reason in a line.

    Example:
        >>> imported_module("visattn.blocks.base").__name__
        'visattn.blocks.base'
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a module of theirs raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{name} cannot be imported: {reason}; a module of your own must lie in a folder of "
            "PYTHONPATH"
        ) from error


def _check_trust(path: str, module: str) -> None:
    if not is_trusted(module):
        raise ValueError(
            f"{path} may not be imported because a text names it: import its class and call "
            f"va.register(Class), or trust the module by {VARIABLE}={module.split('.')[0]}"
        )
