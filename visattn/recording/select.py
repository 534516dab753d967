"""Which parts of a model are listened to, and whether it can be."""

from collections.abc import Sequence
from fnmatch import fnmatch

import torch
from torch import nn


def chosen_sites(sites: Sequence[str], layers: int | str | Sequence[int | str] | None) -> list[str]:
    """Return the sites that are to be listened to.

    Args:
        sites: All of them.
        layers: Numbers, names, or a pattern of names; None for all.

    Raises:
        ValueError: If there is none such.

    Example:
        >>> chosen_sites(["a.attn", "b.attn"], [-1, "a.attn"]), chosen_sites(["a", "b"], "b*")
        (['b.attn', 'a.attn'], ['b'])
    """
    if layers is None:
        return list(sites)
    if isinstance(layers, str):
        found = [site for site in sites if fnmatch(site, layers)]
    else:
        wanted = [layers] if isinstance(layers, int) else layers
        found = perhaps_chosen(sites, wanted)
        if len(found) < len(wanted):
            raise ValueError(f"there are {len(sites)} sites, counted from 0, got layers={layers}")
    if not found:
        raise ValueError(f"no site is called {layers!r}; there are {', '.join(sites)}")
    return found


def perhaps_chosen(
    sites: Sequence[str], layers: int | str | Sequence[int | str] | None
) -> list[str]:
    """Return those of the sites that are wanted, where there may be others that are not known yet.

    Args:
        sites: Those that are known.
        layers: Numbers, names, or a pattern of names; None for all.

    Example:
        >>> perhaps_chosen(["a", "b"], [-1, 7])
        ['b']
    """
    if layers is None or isinstance(layers, str):
        return [site for site in sites if layers is None or fnmatch(site, layers)]
    wanted = [layers] if isinstance(layers, int) else layers
    count = len(sites)
    return [
        sites[one] if isinstance(one, int) else one
        for one in wanted
        if (-count <= one < count if isinstance(one, int) else one in sites)
    ]


def check_runs_hooks(model: nn.Module) -> None:
    """Let a model pass that can be listened to.

    Args:
        model: Any.

    Raises:
        ValueError: If it is compiled or scripted, or its attention runs in kernels of its own.

    Example:
        >>> check_runs_hooks(nn.Linear(1, 1))
    """
    for site, module in model.named_modules():
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        wrapped = type(module).__name__ == "OptimizedModule"
        scripted = isinstance(module, torch.jit.ScriptModule)
        if compiled or wrapped or scripted:
            raise ValueError(
                f"{site or 'the model'} is compiled or scripted and does not show its maps; "
                "record the model that it was made from"
            )
        kernel = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if isinstance(kernel, str) and kernel not in ("sdpa", "eager"):
            raise ValueError(
                f"{site or 'the model'} attends in kernels of its own ({kernel}) and does not show "
                "its maps; call set_attn_implementation('sdpa') or 'eager' on it first"
            )
