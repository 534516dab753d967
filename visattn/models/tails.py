"""The part of a backbone that follows what is frozen, as a network of its own."""

import copy
from collections.abc import Collection
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn


def tail_after(backbone: nn.Module, frozen: Collection[nn.Module]) -> nn.Module:
    """Return a backbone in which the frozen modules hand on what they are given.

    All else in it are the very modules of the backbone: what trains one trains both. It takes what
    the last frozen module gives, if the frozen ones form a chain; `continues` tells.

    Example:
        >>> import torch
        >>> whole = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 5)))
        >>> tail = tail_after(whole, {whole[0]})
        >>> tail(torch.zeros(1, 3)).shape, tail[1] is whole[1]
        (torch.Size([1, 5]), True)
    """
    if backbone in frozen:
        return nn.Identity()
    if not any(module in frozen for module in backbone.modules()):
        return backbone
    tail = copy.copy(backbone)
    parts = {name: tail_after(part, frozen) for name, part in backbone.named_children()}
    tail.__dict__["_modules"] = parts
    return tail


def output_of(
    backbone: nn.Module, last: nn.Module, pictures: Float[Tensor, "b 3 y x"]
) -> Float[Tensor, "b c gy gx"]:
    """Return what a module of a backbone gives; nothing after it is run.

    Raises:
        ValueError: If it is not reached, or gives no grid.
    """
    given: list[object] = []

    def keep(_: nn.Module, __: object, output: object) -> None:
        given.append(output)
        raise _ReachedError

    handle = last.register_forward_hook(keep)
    try:
        cast("Any", backbone).forward_features(pictures)
    except _ReachedError:
        pass
    finally:
        handle.remove()
    if not given or not isinstance(given[0], Tensor) or given[0].ndim != 4:
        raise ValueError("the backbone does not pass a grid from its frozen part to the rest")
    return given[0]


class _ReachedError(Exception):
    """What was to run has run."""
