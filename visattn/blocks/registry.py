"""Registry of attention blocks: create, list, describe and register blocks by name or path."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, get_args, overload

from torch import nn

from visattn.blocks.base import Block, BlockInfo, BlockKind
from visattn.io.messages import did_you_mean
from visattn.io.trusted_modules import TRUST_VARIABLE, is_trusted_module

BlockClass = TypeVar("BlockClass", bound=type[nn.Module])

MODULES = (
    "squeeze_excite",
    "eca",
    "srm",
    "gct",
    "global_context",
    "spatial_gate",
    "attention_gate",
    "spatial_transformer",
    "cbam",
    "bam",
    "scse",
    "coordinate",
    "triplet",
    "simam",
    "selective_kernel",
    "split_attention",
    "non_local",
    "danet",
    "criss_cross",
    "double_attention",
    "botnet",
)
"""The files of `visattn.blocks` with the blocks of this package, in the order of `list_blocks`."""


def _blocks_of(module: ModuleType) -> Iterator[type[Block]]:
    """Yield the blocks that a module defines."""
    for value in vars(module).values():
        if getattr(value, "__module__", "") == module.__name__ and hasattr(value, "info"):
            yield value


BLOCKS: dict[str, type[Block]] = {
    block.info.name: block
    for name in MODULES
    for block in _blocks_of(importlib.import_module(f"visattn.blocks.{name}"))
}


class _Entry(NamedTuple):
    block: type[nn.Module]
    info: BlockInfo


_registered: dict[str, _Entry] = {}
_imported: dict[str, _Entry] = {}
"""Blocks that were created by import path, by that path."""


def create_block(name: str, channels: int, **options: Any) -> nn.Module:
    """Create a block by name.

    Args:
        name: A name from `list_blocks()`; case, hyphens and underscores are ignored. Or the import
            path `package.module.Class` of a block class in a trusted module.
        channels: Number of input channels.
        options: Further arguments of the block, such as `reduction` or `kernel_size`.

    Raises:
        ValueError: If there is no such block, if it has no such argument, or if its module is not
            trusted.
        TypeError: If the class cannot be used as a block.

    Example:
        >>> import torch
        >>> create_block("SE", 32, reduction=8)(torch.zeros(1, 32, 5, 7)).shape
        torch.Size([1, 32, 5, 7])
    """
    block = block_class(name)
    parameters = list(inspect.signature(block).parameters.values())[1:]
    known = [option.name for option in parameters if option.kind != option.VAR_KEYWORD]
    wrong = sorted(set(options) - set(known))
    if wrong and len(known) == len(parameters):
        raise ValueError(
            f"{name} has no argument {', '.join(wrong)}; "
            f"its arguments are {', '.join(known) or 'none'}"
        )
    return block(channels, **options)


def list_blocks(kind: BlockKind | None = None) -> list[str]:
    """Return the names of all blocks, or of the blocks of one kind.

    Args:
        kind: `channel`, `spatial`, `combined`, `branch`, `self_attention` or `other`.

    Raises:
        ValueError: If there is no such kind.

    Example:
        >>> "se" in list_blocks(kind="channel")
        True
    """
    if kind is not None and kind not in get_args(BlockKind):
        raise ValueError(f"kind must be one of {', '.join(get_args(BlockKind))}, got {kind!r}")
    return [name for name, entry in _all_entries().items() if kind in (None, entry.info.kind)]


def block_info(name: str) -> BlockInfo:
    """Return the metadata of a block: paper, equation, number of parameters, deviations.

    Args:
        name: Name or import path, as for `create_block`.

    Raises:
        ValueError: If there is no such block, or if its module is not trusted.
        TypeError: If the class cannot be used as a block.

    Example:
        >>> block_info("SE").equation
        'y = x * s(W2 relu(W1 mean(x) + b1) + b2)'
    """
    return _get_entry(name).info


@overload
def register_block(block: BlockClass, *, name: str | None = None) -> BlockClass: ...


@overload
def register_block(
    block: None = None, *, name: str | None = None
) -> Callable[[BlockClass], BlockClass]: ...


def register_block(
    block: BlockClass | None = None, *, name: str | None = None
) -> BlockClass | Callable[[BlockClass], BlockClass]:
    """Register a block class for this process; also usable as a decorator.

    From then on `create_block`, `insert`, `list_blocks`, `block_info`, the models, the conformance
    suite and `visattn blocks` accept it by name or as `package.module.Class`.

    Args:
        block: Subclass of `torch.nn.Module` that maps features [batch, channels, height, width] to
            features of the same shape. The first argument of its constructor is `channels`; all
            others have defaults. A class attribute `info` of type `BlockInfo` holds its metadata.
        name: Name in the registry; the lowercase class name if None.

    Returns:
        The class, unchanged.

    Raises:
        TypeError: If the class cannot be used as a block.
        ValueError: If the name belongs to another block or is not an identifier.

    Example:
        >>> from visattn.blocks import registry
        >>> getfixture("monkeypatch").setattr(registry, "_registered", {})
        >>> @register_block
        ... class Halved(nn.Module):
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...     def forward(self, x):
        ...         return x / 2
        >>> create_block("halved", 64)
        Halved()
    """
    if block is None:
        return lambda decorated: register_block(decorated, name=name)
    cls = check_block_class(block)
    info = getattr(cls, "info", None)
    info = info if isinstance(info, BlockInfo) else None
    new_name = name or (info.name if info else cls.__name__.lower())
    if not re.fullmatch(r"[A-Za-z](\w|-)*", new_name) or new_name.lower() == "none":
        raise ValueError(f"the name of a block must be an identifier, got {new_name!r}")
    existing = _canonical_names().get(_normalize(new_name))
    registered = _all_entries()[existing].block if existing else None
    # A notebook cell that runs again defines the same class anew.
    if registered is not None and import_path(registered) != import_path(cls):
        raise ValueError(
            f"the name {new_name!r} is taken by the block {existing} ({import_path(registered)}); "
            f"choose another: va.register_block({cls.__name__}, name=...)"
        )
    if existing in BLOCKS:  # a built-in block, registered once more
        return block
    new_info = default_info(cls, new_name)
    if info:
        new_info = replace(info, name=new_name)
    _registered[existing or new_name] = _Entry(cls, new_info)
    return block


def block_class(name: str) -> type[nn.Module]:
    """Return the class of a block by name or import path.

    Raises:
        ValueError: If there is no such block, or if its module is not trusted.
        TypeError: If the class cannot be used as a block.

    Example:
        >>> block_class("CBAM").__name__
        'CBAM'
    """
    return _get_entry(name).block


def is_registered(name: str) -> bool:
    """Return whether a name belongs to a registered block; imports nothing.

    Example:
        >>> is_registered("CBAM"), is_registered("my_package.MyBlock")
        (True, False)
    """
    return _find_entry(name) is not None


def block_name(module: nn.Module) -> str | None:
    """Return the registered name of a block; None if the module is not a block.

    Example:
        >>> block_name(create_block("CBAM", 32)), block_name(nn.ReLU())
        ('cbam', None)
    """
    for name, entry in {**_all_entries(), **_imported}.items():
        if type(module) is entry.block:
            return name
    return type(module).__name__ if isinstance(module, Block) else None


def _all_entries() -> dict[str, _Entry]:
    """Return all blocks by name, built-in blocks first."""
    return {name: _Entry(block, block.info) for name, block in BLOCKS.items()} | _registered


def _normalize(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())


def _canonical_names() -> dict[str, str]:
    """Return the block name for every normalized name."""
    return {_normalize(name): name for name in _all_entries()}


def _find_entry(name: str) -> _Entry | None:
    entries = _all_entries()
    if "." not in name:
        canonical = _canonical_names().get(_normalize(name))
        return entries[canonical] if canonical else None
    paths = {import_path(entry.block): entry for entry in entries.values()}
    return paths.get(name) or _imported.get(name)


def _get_entry(name: str) -> _Entry:
    if entry := _find_entry(name):
        return entry
    if "." in name:
        block = import_block(name)
        _imported[name] = _Entry(block, default_info(block, name))
        return _imported[name]
    choices = f"choose from {', '.join(list_blocks())}"
    hint = did_you_mean(_normalize(name), list_blocks(), otherwise=choices)
    raise ValueError(
        f"there is no block named {name!r}; {hint} (a block of your own: call "
        "va.register_block(MyBlock) first, or pass package.module.Class)"
    )


def check_block_class(block: object) -> type[nn.Module]:
    """Return the class if it can be used as a block.

    Raises:
        TypeError: If it is not a subclass of `torch.nn.Module`, if it is a layer of torch itself,
            or if it cannot be created from a number of channels alone.

    Example:
        >>> check_block_class(nn.ReLU)
        Traceback (most recent call last):
        TypeError: a block is a class of torch.nn.Module; ...; ReLU is a layer of torch itself
    """
    requirement = (
        "a block is a class of torch.nn.Module; the first argument is channels, all others have "
        "defaults"
    )
    if not isinstance(block, type) or not issubclass(block, nn.Module):
        raise TypeError(f"{requirement}; got {block!r:.60}")
    # Otherwise every such layer of a model would count as a block.
    if block.__module__.startswith("torch."):
        raise TypeError(f"{requirement}; {block.__name__} is a layer of torch itself")
    try:
        inspect.signature(block).bind(64)
    except TypeError as error:
        raise TypeError(f"{requirement}; {block.__name__}(64): {error}") from None
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
        >>> import_block("visattn.blocks.simam.SimAM")
        <class 'visattn.blocks.simam.SimAM'>
    """
    module, _, name = path.rpartition(".")
    if not all(word.isidentifier() for word in path.split(".")):
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
