"""Remove inserted blocks, or turn them into plain modules without hooks."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from visattn.insertion.freezing import unfreeze
from visattn.insertion.inserted_block import (
    CHILD_NAME,
    InsertedBlock,
    detach,
    get_inserted,
    named_modules,
)
from visattn.io.argument_checks import checked_arguments

HOST = "host"
"""Name of the child that holds the original module after `bake`."""


class BakedModule(nn.Module):
    """A module followed by its inserted blocks, without a hook.

    Attributes that it lacks are looked up in its host, so that other code can still read `weight`
    or `stride`. State dicts from before `bake` load: their keys are completed.

    Args:
        host: Original module.
        inserted: Blocks inserted after it.
    """

    def __init__(self, host: nn.Module, inserted: InsertedBlock) -> None:
        super().__init__()
        self.host = host
        self.add_module(CHILD_NAME, inserted)
        self.training = host.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the host after attention."""
        return self.get_submodule(CHILD_NAME)(self.host(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in (HOST, CHILD_NAME):
                raise
            return getattr(self.host, name)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        own_prefixes = (f"{prefix}{HOST}.", f"{prefix}{CHILD_NAME}.")
        for key in [key for key in state_dict if key.startswith(prefix)]:
            if not key.startswith(own_prefixes):
                state_dict[f"{prefix}{HOST}.{key.removeprefix(prefix)}"] = state_dict.pop(key)
        super()._load_from_state_dict(  # pyright: ignore[reportUnknownMemberType]
            state_dict, prefix, *args, **kwargs
        )


@checked_arguments()
def remove(model: nn.Module) -> list[str]:
    """Remove all inserted blocks from a model, baked or not, and return their sites.

    The model is restored completely: modules, names, hooks, order and modes, and what
    `freeze=True` froze.

    Raises:
        ValueError: If there are none.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> _ = insert(model, "se", position="0", example=torch.zeros(1, 3, 5, 7))
        >>> remove(model)
        ['0']
        >>> model
        Sequential(
          (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
        )
    """
    hosts = _find_hosts(model)
    unfreeze(model)
    for host in hosts.values():
        if isinstance(host, BakedModule):
            _replace_module(model, host, host.host)
        else:
            detach(host)
    return [_original_name(name, hosts) for name in hosts]


@checked_arguments()
def bake(model: nn.Module) -> list[str]:
    """Replace the hooks of inserted blocks by plain modules, and return the changed sites.

    For `torch.fx` a host such as a norm layer is one node and its hook invisible, so that graph
    passes (folding norms into convolutions) drop the block silently. After `bake` each site is a
    module of its own, for `torch.export` and exporters built on either. A host `a.b` becomes a
    module that holds it as `a.b.host` and the blocks, as before, as `a.b.visattn`. State dicts from
    before load unchanged; `unbake_state_dict` converts back. In a `Sequential` the block is a child
    anyway and nothing changes.

    Raises:
        ValueError: If nothing was inserted, or if a block takes a gating signal.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> _ = insert(model, "se", position="0", example=torch.zeros(1, 3, 5, 7))
        >>> bake(model)
        ['0']
        >>> [name for name, _ in model.named_parameters()][:2]
        ['0.host.weight', '0.host.bias']
    """
    changed: list[str] = []
    hosts = _find_hosts(model)
    for name, host in hosts.items():
        if (inserted := get_inserted(host)) and inserted.signal:
            raise ValueError(
                f"{' + '.join(inserted.names)} after {name} takes a signal from "
                f"{inserted.signal.name}, "
                "which needs a hook, so that it cannot be baked; torch.export and torch.jit.trace "
                "support the model as it is, and remove(model) removes the blocks"
            )
    for name, host in hosts.items():
        inserted = get_inserted(host)
        if inserted is not None and not isinstance(host, (BakedModule, nn.Sequential)):
            detach(host)
            _replace_module(model, host, BakedModule(host, inserted))
            changed.append(name)
    return changed


def unbake_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of a baked model with the keys from before `bake`.

    Example:
        >>> state_dict = {"a.host.weight": torch.zeros(1), "a.visattn.se_scale": torch.zeros(1)}
        >>> list(unbake_state_dict(state_dict))
        ['a.weight', 'a.visattn.se_scale']
    """
    sites = {key.partition(f".{CHILD_NAME}.")[0] for key in state_dict if f".{CHILD_NAME}." in key}
    return {_original_name(key, sites): value for key, value in state_dict.items()}


def _original_name(name: str, sites: Iterable[str]) -> str:
    """Return a name from before sites were baked, innermost first."""
    for site in sorted(sites, key=len, reverse=True):
        if name.startswith(f"{site}.{HOST}."):
            name = f"{site}.{name.removeprefix(f'{site}.{HOST}.')}"
    return name


def _find_hosts(model: nn.Module) -> dict[str, nn.Module]:
    hosts = {
        name: m
        for name, m in named_modules(model).items()
        if CHILD_NAME in _child_modules(m) and get_inserted(m)
    }
    if not hosts:
        raise ValueError(f"nothing was inserted into this {type(model).__name__}")
    return hosts


def _replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module everywhere in the model."""
    for parent in list(model.modules()):
        if parent is not new:
            children = _child_modules(parent)
            for key in [key for key, child in children.items() if child is old]:
                children[key] = new


def _child_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the children by name, including children registered twice."""
    return cast("dict[str, nn.Module | None]", vars(module)["_modules"])
