"""Take inserted blocks out again, or make them plain modules."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from visattn.insertion.graft import CHILD, InsertedBlock, displace, graft_of, modules_of

HOST = "host"
"""The name of the child that holds what stood there before `bake`."""


class Baked(nn.Module):
    """A module and the blocks after it, without a hook.

    What it has not itself it looks up at its host, so that code around it may go on to ask for
    `weight` or `stride`. Checkpoints from before `bake` load: the names in them are completed.

    Args:
        host: What stood there.
        graft: What was inserted after it.
    """

    def __init__(self, host: nn.Module, graft: InsertedBlock) -> None:
        super().__init__()
        self.host = host
        self.add_module(CHILD, graft)
        self.training = host.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the host gives, under attention."""
        return self.get_submodule(CHILD)(self.host(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in (HOST, CHILD):
                raise
            return getattr(self.host, name)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        ours = (f"{prefix}{HOST}.", f"{prefix}{CHILD}.")
        for key in [key for key in state_dict if key.startswith(prefix)]:
            if not key.startswith(ours):
                state_dict[f"{prefix}{HOST}.{key.removeprefix(prefix)}"] = state_dict.pop(key)
        super()._load_from_state_dict(  # pyright: ignore[reportUnknownMemberType]
            state_dict, prefix, *args, **kwargs
        )


def remove(model: nn.Module) -> list[str]:
    """Take all inserted blocks out of a model, baked or not, and return where they stood.

    Nothing of them stays: modules, names, hooks, order and modes are those from before.

    Raises:
        ValueError: If there are none.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> _ = insert(model, "se", at="0", example=torch.zeros(1, 3, 5, 7))
        >>> remove(model)
        ['0']
        >>> model
        Sequential(
          (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
        )
    """
    hosts = _hosts(model)
    for host in hosts.values():
        if isinstance(host, Baked):
            _replace(model, host, host.host)
        else:
            displace(host)
    return [_plain(name, hosts) for name in hosts]


def bake(model: nn.Module) -> list[str]:
    """Make the hooks of inserted blocks plain modules, and return the sites that changed.

    To `torch.fx` a host such as a norm is one node, its hook unseen, and what rewrites the graph
    (folding norms into convolutions) drops the block without a word. After this each site is a node
    of its own, for `torch.export` and exporters that stand on either too. A host `a.b` becomes a
    module that holds it as `a.b.host` and the blocks, as before, as `a.b.visattn`. Checkpoints from
    before load as they are; `unbaked` brings one from after back. A `Sequential` holds its block as
    a part anyway.

    Raises:
        ValueError: If nothing was inserted, or if a block takes a signal, which a hook must carry.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3))
        >>> _ = insert(model, "se", at="0", example=torch.zeros(1, 3, 5, 7))
        >>> bake(model)
        ['0']
        >>> [name for name, _ in model.named_parameters()][:2]
        ['0.host.weight', '0.host.bias']
    """
    changed: list[str] = []
    hosts = _hosts(model)
    for name, host in hosts.items():
        if (graft := graft_of(host)) and graft.signal:
            raise ValueError(
                f"{' + '.join(graft.names)} after {name} takes a signal from {graft.signal.name}, "
                "which only a hook can carry, so that it cannot be baked; torch.export and "
                "torch.jit.trace take the model as it is, and remove(model) takes the blocks out"
            )
    for name, host in hosts.items():
        graft = graft_of(host)
        if graft is not None and not isinstance(host, (Baked, nn.Sequential)):
            displace(host)
            _replace(model, host, Baked(host, graft))
            changed.append(name)
    return changed


def unbaked(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of a baked model under the names that it had before `bake`.

    Example:
        >>> state = {"a.host.weight": torch.zeros(1), "a.visattn.se_scale": torch.zeros(1)}
        >>> list(unbaked(state))
        ['a.weight', 'a.visattn.se_scale']
    """
    sites = {key.partition(f".{CHILD}.")[0] for key in state if f".{CHILD}." in key}
    return {_plain(key, sites): value for key, value in state.items()}


def _plain(name: str, sites: Iterable[str]) -> str:
    """Return a name as it was before sites were baked, the inner ones first."""
    for site in sorted(sites, key=len, reverse=True):
        if name.startswith(f"{site}.{HOST}."):
            name = f"{site}.{name.removeprefix(f'{site}.{HOST}.')}"
    return name


def _hosts(model: nn.Module) -> dict[str, nn.Module]:
    found = {
        name: m for name, m in modules_of(model).items() if CHILD in _children(m) and graft_of(m)
    }
    if not found:
        raise ValueError(f"nothing was inserted into this {type(model).__name__}")
    return found


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of another, wherever that stands."""
    for parent in list(model.modules()):
        if parent is not new:
            children = _children(parent)
            for key in [key for key, child in children.items() if child is old]:
                children[key] = new


def _children(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the children by name; a child that has two names is there twice."""
    return cast("dict[str, nn.Module | None]", vars(module)["_modules"])
