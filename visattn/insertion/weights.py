"""Weights of inserted blocks: of other implementations, and baked into the CNN."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from visattn.blocks.cbam import CBAM
from visattn.blocks.registry import block_name
from visattn.insertion.inserted_block import (
    CHILD_NAME,
    InsertedBlock,
    detach,
    get_inserted,
    named_modules,
    scale_name,
)
from visattn.insertion.insertion import unfreeze
from visattn.insertion.sites import compile_pattern
from visattn.io.argument_checks import checked_arguments
from visattn.io.messages import format_names

ModelT = TypeVar("ModelT", bound=nn.Module)

# Patterns of foreign keys and the names of visattn modules. SE: timm, torchvision,
# pretrained-models, moskomule.
# CBAM: attention-module; timm.
_KEY_PATTERNS: dict[str, dict[str, str]] = {
    "se": {
        r"(?:fc1|conv_reduce|fc\.0)\.(\w+)": "squeeze",
        r"(?:fc2|conv_expand|fc\.2)\.(\w+)": "excite",
    },
    "eca": {r"conv\.(weight)": "conv"},
    "cbam": {
        r"(?:ChannelGate\.mlp\.1|channel\.fc1)\.(\w+)": "squeeze",
        r"(?:ChannelGate\.mlp\.3|channel\.fc2)\.(\w+)": "excite",
        r"(?:SpatialGate\.spatial|spatial\.conv)\.conv\.(weight)": "conv",
        r"(?:SpatialGate\.spatial|spatial\.conv)\.bn\.(\w+)": "norm",
    },
}
_ATTRIBUTE_NAMES = ("se", "se_module", "eca", "cbam", "attn")
"""Attribute names of an attention block in the residual blocks of other libraries."""


def convert_block_state_dict(
    state_dict: Mapping[str, Tensor], block: nn.Module
) -> dict[str, Tensor]:
    """Convert the state dict of another library's block to the keys and shapes of a visattn block.

    Supported: squeeze-and-excitation of timm and others (ReLU, then sigmoid); ECA of ECANet and
    timm; CBAM of attention-module and timm. The pooling order of the CBAM spatial gate differs
    between these and is converted. Missing biases are set to zero.

    Args:
        state_dict: State dict of their block, without a prefix.
        block: Block to load it into, one of `se`, `eca`, `cbam`.

    Raises:
        ValueError: If there is no conversion, or if a shape differs.

    Example:
        >>> from visattn.blocks.eca import ECA
        >>> weights = {"conv.weight": torch.tensor([[[0.0, 1.0, 0.0]]])}
        >>> list(convert_block_state_dict(weights, ECA(8, kernel_size=3)))
        ['conv.weight']
    """
    name = block_name(block)
    if name is None or name not in _KEY_PATTERNS:
        raise ValueError(f"weights can be converted for {', '.join(_KEY_PATTERNS)}, not for {name}")
    target = block.state_dict()
    converted: dict[str, Tensor] = {}
    for key, value in state_dict.items():
        new_key = _map_key(key, _KEY_PATTERNS[name])
        if new_key is None or new_key not in target:
            raise ValueError(
                f"{key} has no counterpart in {name}, whose keys are {', '.join(target)}"
            )
        converted[new_key] = _convert_layout(key, value, block, target[new_key])
        if converted[new_key].shape != target[new_key].shape:
            raise ValueError(
                f"{key} is {list(value.shape)}, and {new_key} of {name} is "
                f"{list(target[new_key].shape)}; create the block with a matching reduction or "
                "kernel_size"
            )
    for key in target.keys() - converted.keys():
        if not key.endswith(".bias") or key.startswith("norm"):
            raise ValueError(
                f"{key} of {name} is missing from the weights; their keys are "
                f"{', '.join(state_dict)}"
            )
        converted[key] = torch.zeros_like(target[key])
    return converted


def convert_model_state_dict(
    state_dict: Mapping[str, Tensor], model: nn.Module
) -> dict[str, Tensor]:
    """Convert the state dict of another library's attention network for inserted blocks.

    All other parameters must have the same names, as in the ResNets of timm and torchvision. Insert
    the blocks first, with `position="residual"` and `init="paper"`; with `identity` the scales
    become one. A `module.` prefix of `DataParallel` is removed.

    Args:
        state_dict: State dict of their model, with keys such as `layer1.0.se.fc1.weight`.
        model: Model with inserted blocks.

    Raises:
        ValueError: If nothing was inserted, if the state dict has no block at a site, or if a shape
            differs.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 1, bias=False)))
        >>> x = torch.zeros(1, 3, 5, 7)
        >>> _ = insert(model, "eca", position="0.0", example=x, kernel_size=3)
        >>> weights = {"0.0.weight": torch.ones(8, 3, 1, 1)}
        >>> weights["0.se.conv.weight"] = torch.ones(1, 1, 3)
        >>> model.load_state_dict(convert_model_state_dict(weights, model))
        <All keys matched successfully>
    """
    if all(key.startswith("module.") for key in state_dict):
        state_dict = {key.removeprefix("module."): value for key, value in state_dict.items()}
    rest = dict(state_dict)
    converted = dict[str, Tensor]()
    for name, host in named_modules(model).items():
        inserted = get_inserted(host)
        if inserted is not None:
            source_keys = _source_keys(name, state_dict)
            for key in source_keys.values():
                rest.pop(key)
            values = {short: state_dict[key] for short, key in source_keys.items()}
            converted |= {
                f"{name}.{CHILD_NAME}.{key}": v
                for key, v in _convert_inserted(values, inserted).items()
            }
    if not converted:
        raise ValueError(
            f"nothing was inserted into this {type(model).__name__}; call insert first"
        )
    return rest | converted


def _convert_inserted(values: Mapping[str, Tensor], inserted: InsertedBlock) -> dict[str, Tensor]:
    name = inserted.names[0]
    block = inserted.get_submodule(inserted.names[0])
    if len(inserted.names) > 1 or block_name(block) is None:
        raise ValueError(
            "each site must hold a single registered block, not " + " + ".join(inserted.names)
        )
    state = {
        f"{name}.{key}": value for key, value in convert_block_state_dict(values, block).items()
    }
    return state | {scale_name(name): torch.ones_like(scale) for scale in inserted.identity_scales}


def _source_keys(host: str, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the keys of a block's weights next to a host, by name without prefix."""
    parent = host.rpartition(".")[0]
    prefixes = [f"{parent}.{word}." if parent else f"{word}." for word in _ATTRIBUTE_NAMES]
    for prefix in prefixes:
        if converted := {key.removeprefix(prefix): key for key in state if key.startswith(prefix)}:
            return converted
    raise ValueError(f"there are no block weights next to {host}; expected a prefix of {prefixes}")


def _map_key(key: str, names: Mapping[str, str]) -> str | None:
    for pattern, new_key in names.items():
        if match := re.fullmatch(pattern, key):
            return f"{new_key}.{match[1]}"
    return None


def _convert_layout(key: str, value: Tensor, block: nn.Module, target: Tensor) -> Tensor:
    """Return a weight in the layout of the visattn block.

    A 1x1 convolution becomes a linear layer, and the input channels of a spatial kernel follow the
    pooling order of the block.
    """
    if isinstance(block, CBAM) and key.endswith(".conv.weight"):
        source_keys = "max_mean" if key.startswith("SpatialGate") else "mean_max"
        value = value if block.pool_order == source_keys else value.flip(1)
    axes = [[n for n in shape if n > 1] for shape in (value.shape, target.shape)]
    return value.reshape(target.shape) if axes[0] == axes[1] else value


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


@checked_arguments()
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


@checked_arguments()
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
