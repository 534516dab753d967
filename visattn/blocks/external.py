"""User-defined blocks: requirements on their class, and import by path."""

import importlib
import inspect
from types import ModuleType
from typing import Any

from torch import nn

from visattn.blocks.base import BlockInfo
from visattn.io.trusted_modules import TRUST_VARIABLE, is_trusted_module


def check_block_class(block: object) -> type[nn.Module]:
    """Return the class if it can be used as a block.

    Raises:
        TypeError: If it is not a subclass of `torch.nn.Module` with a forward, if it is a layer of
            torch itself, or if it cannot be created from a number of channels alone.

    Example:
        >>> check_block_class(nn.ReLU)
        Traceback (most recent call last):
        TypeError: a block is a class of torch.nn.Module, ...; ReLU is a layer of torch itself
    """
    requirement = "a block is a class of torch.nn.Module, made from its number of channels"
    if not isinstance(block, type) or not issubclass(block, nn.Module):
        kind = type(block).__name__ if not isinstance(block, type) else "class"
        raise TypeError(f"{requirement}; got the {kind} {getattr(block, '__name__', block)!s:.60}")
    if block.__module__.startswith(
        "torch."
    ):  # otherwise every such layer of a model would count as a block
        raise TypeError(f"{requirement}; {block.__name__} is a layer of torch itself")
    if inspect.isabstract(block) or block.forward is nn.Module.forward:
        raise TypeError(f"{requirement}; {block.__name__} defines no forward")
    try:
        inspect.signature(block).bind(64)
    except TypeError as error:
        raise TypeError(
            f"{requirement}: the first argument is channels, and all others have defaults; "
            f"{block.__name__}{inspect.signature(block)} cannot be called as {block.__name__}(64): "
            f"{error}"
        ) from None
    return block


def import_path(block: type[nn.Module]) -> str:
    """Return the import path of a class, `package.module.Class`.

    Example:
        >>> import_path(nn.BatchNorm2d)
        'torch.nn.modules.batchnorm.BatchNorm2d'
    """
    return f"{block.__module__}.{block.__qualname__}"


def default_info(block: type[nn.Module], name: str) -> BlockInfo:
    """Return metadata for a class that defines none.

    Example:
        >>> default_info(nn.BatchNorm2d, "norm").title
        'BatchNorm2d'
    """
    return BlockInfo(
        name=name,
        kind="other",
        title=block.__name__,
        paper=f"user-defined: {import_path(block)}",
        equation="not stated",
        parameters="not stated",
    )


def import_block(path: str) -> type[nn.Module]:
    """Import a block class from `package.module.Class`, if its module is trusted.

    Only modules that configs may import are trusted: see `visattn.io.trusted_modules`.

    Raises:
        ValueError: If the module is not trusted or cannot be imported, or has no such class.
        TypeError: If the class cannot be used as a block.

    Example:
        >>> import_block("visattn.blocks.combined.simam.SimAM")
        <class 'visattn.blocks.combined.simam.SimAM'>
    """
    module, _, name = path.rpartition(".")
    if not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"there is no block {path!r}: a class is named as package.module.Class")
    _check_trust(path, module)
    try:
        attribute: Any = getattr(import_module(module), name)
    except AttributeError:
        raise ValueError(f"there is no block {path!r}: {module} has no {name}") from None
    if isinstance(attribute, type):  # a class that a trusted module imports from elsewhere
        _check_trust(path, attribute.__module__)
    return check_block_class(attribute)


def import_module(name: str) -> ModuleType:
    """Import a trusted module.

    Raises:
        ValueError: If the import fails, with the reason in one line.

    Example:
        >>> import_module("visattn.blocks.base").__name__
        'visattn.blocks.base'
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # user code may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{name} cannot be imported: {reason}; put the folder of a module of your own on "
            "PYTHONPATH"
        ) from error


def _check_trust(path: str, module: str) -> None:
    if not is_trusted_module(module):
        raise ValueError(
            f"{path} may not be imported by name, because its module is not trusted: import the "
            f"class and call va.register_block(Class), or set "
            f"{TRUST_VARIABLE}={module.split('.')[0]}"
        )
