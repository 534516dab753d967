"""Training of the inserted blocks alone: the rest of the network is frozen."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import cast

from torch import Tensor, nn

from visattn.insertion.inserted_block import InsertedBlock, named_modules


def freeze_except_blocks(model: nn.Module, trainable: Sequence[str] = ()) -> list[str]:
    """Freeze a network with inserted blocks, except for these; return the trainable parameters.

    Parameters outside of the blocks get `requires_grad=False`. Norms with running statistics
    outside of the blocks, batch norms above all, stay in evaluation mode during `model.train()`, so
    that the network without its blocks remains the pretrained one.

    Args:
        model: The network, after `insert`.
        trainable: Names of further modules or parameters that are trained, such as the classifier
            `fc`; `*` matches any characters.

    Raises:
        ValueError: If the model has no inserted blocks, or a name matches nothing.

    Example:
        >>> import torch, visattn
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> x = torch.randn(1, 3, 11, 13)
        >>> _ = visattn.insert(model, "eca", position="1", example=x)
        >>> freeze_except_blocks(model)
        ['1.visattn.eca_scale', '1.visattn.eca.conv.weight']
        >>> model.train()[1].weight.requires_grad
        False

    Source:
        Houlsby et al. 2019, arXiv:1902.00751, trains small inserted modules in a frozen network.
    """
    if not any(isinstance(module, InsertedBlock) for module in model.modules()):
        raise ValueError(
            f"{type(model).__name__} must have inserted blocks, got none; call visattn.insert first"
        )
    kept = {id(tensor) for tensor in trained_tensors(model, trainable).values()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in kept)
    for norm in model.modules():
        if hasattr(norm, "running_mean") and not _holds(norm, kept):
            norm.register_forward_pre_hook(_stay_in_eval)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def trained_tensors(model: nn.Module, trainable: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return parameters and buffers of the inserted blocks and of the modules named `trainable`.

    Raises:
        ValueError: If a name matches nothing.

    Example:
        >>> sorted(trained_tensors(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["1"]))
        ['1.bias', '1.weight']
    """
    modules = named_modules(model).items()
    prefixes = [name for name, module in modules if isinstance(module, InsertedBlock)]
    state = cast("Mapping[str, Tensor]", model.state_dict(keep_vars=True))
    chosen = {name for name in state if any(_is_inside(name, prefix) for prefix in prefixes)}
    for pattern in trainable:
        matches = {name for name in state if _matches(name, pattern)}
        if not matches:
            raise ValueError(
                f"trainable must name modules or parameters of the model, but {pattern!r} matches "
                f"none; its modules are {', '.join(name for name, _ in model.named_children())}"
            )
        chosen |= matches
    return {name: tensor for name, tensor in state.items() if name in chosen}


def _is_inside(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}." if prefix else "")


def _matches(name: str, pattern: str) -> bool:
    parents = _parents(name)
    return any(fnmatchcase(parent, pattern) for parent in parents)


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _holds(module: nn.Module, kept: set[int]) -> bool:
    return any(id(tensor) in kept for tensor in (*module.parameters(), *module.buffers()))


def _stay_in_eval(norm: nn.Module, _: object) -> None:
    """Forward pre-hook of frozen norms; a function of the module, so that it can be copied."""
    norm.training = False
