"""Weights that others trained, under the names that our blocks give them."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from visattn.blocks.combined.cbam import CBAM
from visattn.blocks.registry import name_of
from visattn.insertion.graft import CHILD, InsertedBlock, graft_of, modules_of, scale_name

# Their names, as patterns, and ours. SE: timm, torchvision, pretrained-models; moskomule.
# CBAM: attention-module; timm.
_NAMES: dict[str, dict[str, str]] = {
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
_CALLED = ("se", "se_module", "eca", "cbam", "attn")
"""What a block is called inside a residual block of others."""


def block_state(state: Mapping[str, Tensor], block: nn.Module) -> dict[str, Tensor]:
    """Return the weights of somebody else's block as the state of ours.

    Squeeze-and-excitation of timm and others that end in a sigmoid after a ReLU; efficient channel
    attention of ECANet and timm; CBAM of attention-module and timm, whose spatial gates read mean
    and maximum in another order, which is turned where it differs from the block's. Biases that
    theirs lacks become zero.

    Args:
        state: Of their block, without a prefix.
        block: To load them into, one of `se`, `eca`, `cbam`.

    Raises:
        ValueError: If there is no way from theirs to ours, or if a width differs.

    Example:
        >>> from visattn.blocks.channel.eca import ECA
        >>> theirs = {"conv.weight": torch.tensor([[[0.0, 1.0, 0.0]]])}
        >>> list(block_state(theirs, ECA(8, kernel=3)))
        ['conv.weight']
    """
    name = name_of(block)
    if name is None or name not in _NAMES:
        raise ValueError(f"weights are known of {', '.join(_NAMES)}, not of {name}")
    wanted = block.state_dict()
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        ours = _renamed(key, _NAMES[name])
        if ours is None or ours not in wanted:
            raise ValueError(f"{key} has no place in {name}, which has {', '.join(wanted)}")
        found[ours] = _laid_out(key, value, block, wanted[ours])
        if found[ours].shape != wanted[ours].shape:
            raise ValueError(
                f"{key} is {list(value.shape)}, and {ours} of {name} is "
                f"{list(wanted[ours].shape)}; make the block with another reduction or kernel"
            )
    for key in wanted.keys() - found.keys():
        if not key.endswith(".bias") or key.startswith("norm"):
            raise ValueError(
                f"nothing was given for {key} of {name}; given were {', '.join(state)}"
            )
        found[key] = torch.zeros_like(wanted[key])
    return found


def model_state(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of somebody else's attention network for a plain one with our blocks.

    The rest of both must carry the same names, as timm's and torchvision's ResNets do. Insert
    first, `at="residual"`, with `init="paper"`; with `identity` the scales become one. A `module.`
    that `DataParallel` left at the front of all names is taken away.

    Args:
        state: Of their model, as `layer1.0.se.fc1.weight`.
        model: With blocks inserted.

    Raises:
        ValueError: If nothing was inserted, if theirs has no block where ours has one, or if one
            does not fit.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 1, bias=False)))
        >>> _ = insert(model, "eca", at="0.0", example=torch.zeros(1, 3, 5, 7), kernel=3)
        >>> theirs = {"0.0.weight": torch.ones(8, 3, 1, 1), "0.se.conv.weight": torch.ones(1, 1, 3)}
        >>> model.load_state_dict(model_state(theirs, model))
        <All keys matched successfully>
    """
    if all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): value for key, value in state.items()}
    rest, found = dict(state), dict[str, Tensor]()
    for name, host in modules_of(model).items():
        graft = graft_of(host)
        if graft is not None:
            theirs = _beside(name, state)
            for key in theirs.values():
                rest.pop(key)
            values = {short: state[key] for short, key in theirs.items()}
            found |= {f"{name}.{CHILD}.{key}": v for key, v in _graft_state(values, graft).items()}
    if not found:
        raise ValueError(f"nothing was inserted into this {type(model).__name__}; insert first")
    return rest | found


def _graft_state(values: Mapping[str, Tensor], graft: InsertedBlock) -> dict[str, Tensor]:
    name, block = graft.names[0], graft.get_submodule(graft.names[0])
    if len(graft.names) > 1 or name_of(block) is None:
        raise ValueError(
            "a single block of the catalog must stand at each site, not " + " + ".join(graft.names)
        )
    state = {f"{name}.{key}": value for key, value in block_state(values, block).items()}
    return state | {scale_name(name): torch.ones_like(scale) for scale in graft.scales}


def _beside(host: str, state: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the names of a block's weights beside a host, without and with their prefix."""
    parent = host.rpartition(".")[0]
    prefixes = [f"{parent}.{word}." if parent else f"{word}." for word in _CALLED]
    for prefix in prefixes:
        if found := {key.removeprefix(prefix): key for key in state if key.startswith(prefix)}:
            return found
    raise ValueError(f"there are no weights of a block beside {host}; sought were {prefixes}")


def _renamed(key: str, names: Mapping[str, str]) -> str | None:
    for pattern, ours in names.items():
        if match := re.fullmatch(pattern, key):
            return f"{ours}.{match[1]}"
    return None


def _laid_out(key: str, value: Tensor, block: nn.Module, wanted: Tensor) -> Tensor:
    """Return a weight in the axes of ours: a 1x1 convolution is a linear map.

    The input channels of a spatial kernel come in the order in which the block pools.
    """
    if isinstance(block, CBAM) and key.endswith(".conv.weight"):
        theirs = "max_mean" if key.startswith("SpatialGate") else "mean_max"
        value = value if block.order == theirs else value.flip(1)
    axes = [[n for n in shape if n > 1] for shape in (value.shape, wanted.shape)]
    return value.reshape(wanted.shape) if axes[0] == axes[1] else value
