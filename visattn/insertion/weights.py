"""Inserted blocks: removed, and baked into the CNN."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from visattn.blocks.registry import block_name
from visattn.insertion.inserted_block import (
    CHILD_NAME,
    InsertedBlock,
    detach,
    get_inserted,
    named_modules,
)
from visattn.insertion.insertion import unfreeze
from visattn.insertion.sites import compile_pattern
from visattn.io.messages import format_names

ModelT = TypeVar("ModelT", bound=nn.Module)

HOST = "host"
"""Name of the child that holds the original module after `bake`."""


class BakedModule(nn.Module):
    """A module followed by its inserted blocks, without a hook.

    Attributes that it lacks are looked up in its host, so that other code can still read `weight`
    or `stride`. State dicts from before `bake` load: their keys are completed.
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
            # While a copy is made these do not exist yet, and to look for the host in the host does
            # not end.
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


def remove(
    model: nn.Module,
    block: str | type[nn.Module] | None = None,
    *,
    position: str | Sequence[str] | None = None,
) -> list[str]:
    """Remove inserted blocks from a model, baked or not, and return their sites.

    Without its last block the model is restored completely: modules, names, hooks, order and modes,
    and what `freeze=True` froze.

    Args:
        model: Model with inserted blocks.
        block: The blocks that are removed, by name or class; all of a site if None.
        position: Sites, as for `insert`: a pattern of module names or a list of names; all if None.

    Raises:
        ValueError: If there are no such blocks.

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
    sites = {_original_name(name, hosts): host for name, host in hosts.items()}
    chosen = {site: _block_names(sites[site], block) for site in _at_position(sites, position)}
    if not any(chosen.values()):
        wanted = block.__name__ if isinstance(block, type) else block
        raise ValueError(f"there is no {wanted} to remove; {_list_blocks(sites)}")
    if all(chosen.get(site) == _block_names(host, None) for site, host in sites.items()):
        unfreeze(model)
    for site, names in chosen.items():
        host = sites[site]
        if names != _block_names(host, None):
            _inserted(host).remove(names)
        elif isinstance(host, BakedModule):
            _replace_module(model, host, host.host)
        else:
            detach(host)
    return [site for site, names in chosen.items() if names]


def _block_names(host: nn.Module, block: str | type[nn.Module] | None) -> tuple[str, ...]:
    """Return the names of the blocks of a site that are of this name or class."""
    inserted = _inserted(host)
    blocks = {name: inserted.get_submodule(name) for name in inserted.names}
    if isinstance(block, type):
        return tuple(name for name, own in blocks.items() if isinstance(own, block))
    return tuple(
        name
        for name, own in blocks.items()
        if block in (None, name, block_name(own), type(own).__name__)
    )


def _at_position(
    sites: Mapping[str, nn.Module], position: str | Sequence[str] | None
) -> Sequence[str]:
    """Return the sites with a name that is listed, or that has a pattern."""
    if position is None:
        return list(sites)
    if isinstance(position, str):
        names = [site for site in sites if compile_pattern(position).fullmatch(site)]
        missing = [] if names else [position]
    else:
        names = [site for site in sites if site in position]
        missing = [name for name in position if name not in sites]
    if missing or not names:
        wanted = repr(missing[0]) if missing else "an empty list"
        raise ValueError(f"position: there are no blocks at {wanted}; {_list_blocks(sites)}")
    return names


def _list_blocks(sites: Mapping[str, nn.Module]) -> str:
    blocks = [f"{site} ({' + '.join(_inserted(host).names)})" for site, host in sites.items()]
    return f"the model has {format_names(blocks, 8)}"


def bake(model: ModelT) -> ModelT:
    """Replace the hooks of inserted blocks by plain modules, in place, and return the model.

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
        >>> [name for name, _ in bake(model).named_parameters()][:2]
        ['0.host.weight', '0.host.bias']
    """
    hosts = _find_hosts(model)
    # Refused before the first host is replaced.
    for name, host in hosts.items():
        if (inserted := get_inserted(host)) and inserted.signal:
            raise ValueError(
                f"{' + '.join(inserted.names)} after {name} takes a signal from "
                f"{inserted.signal.name}, "
                "which needs a hook, so that it cannot be baked; torch.export and torch.jit.trace "
                "support the model as it is, and remove(model) removes the blocks"
            )
    for host in hosts.values():
        inserted = get_inserted(host)
        if inserted is not None and not isinstance(host, (BakedModule, nn.Sequential)):
            detach(host)
            _replace_module(model, host, BakedModule(host, inserted))
    return model


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


def _inserted(host: nn.Module) -> InsertedBlock:
    """Return the blocks of a module that has some."""
    return cast("InsertedBlock", get_inserted(host))


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
        if parent is not new:  # it holds the old one
            children = _child_modules(parent)
            for key in [key for key, child in children.items() if child is old]:
                children[key] = new


def _child_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the children by name, including children registered twice."""
    return cast("dict[str, nn.Module | None]", vars(module)["_modules"])
