"""Training of the inserted blocks alone: the rest of the network is frozen."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import cast

from torch import Tensor, nn

from visattn.insertion.inserted_block import InsertedBlock, named_modules

_FROZEN = "visattn_frozen"
"""Attribute of a module: the names of its own parameters that `freeze_except_blocks` froze."""
_SAVED = "visattn_saved_buffers"


def freeze_except_blocks(model: nn.Module, trainable: Sequence[str] = ()) -> list[str]:
    """Freeze a network with inserted blocks, except for these; return the trainable parameters.

    Training then changes no parameter and no buffer outside of the blocks and of `trainable`, so
    that the network without its blocks remains the pretrained one. Parameters get
    `requires_grad=False`. Modules with statistics of their own, batch norms above all, stay in
    evaluation mode during `model.train()`, also if they host a block; other buffers are restored
    after each forward pass. A norm of which only the weight is trainable keeps its
    statistics. `remove` reverses this.

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
    trained = trained_tensors(model, trainable)
    buffers = dict(model.named_buffers(remove_duplicate=False))  # also those that are not saved
    trained |= {name: buffers[name] for name in _trained_names(model, trainable, buffers)}
    kept = {id(tensor) for tensor in trained.values()}
    unfreeze(model)
    for module in model.modules():
        _freeze_parameters(module, kept)
        _freeze_buffers(module, kept)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def unfreeze(model: nn.Module) -> None:
    """Reverse `freeze_except_blocks`; nothing happens to a model that was not frozen by it.

    Example:
        >>> unfreeze(nn.Linear(2, 3))
    """
    for module in model.modules():
        for name in vars(module).pop(_FROZEN, ()):
            module.get_parameter(name).requires_grad_()
        for kind in ("_forward_pre_hooks", "_forward_hooks"):
            hooks = cast("dict[int, object]", vars(module)[kind])
            for key in [key for key, hook in hooks.items() if hook in _HOOKS]:
                del hooks[key]


def _freeze_parameters(module: nn.Module, kept: set[int]) -> None:
    own = dict(module.named_parameters(recurse=False))
    for parameter in own.values():
        if id(parameter) in kept:
            parameter.requires_grad_()
    frozen = {n: p for n, p in own.items() if p.requires_grad and id(p) not in kept}
    for parameter in frozen.values():
        parameter.requires_grad = False
        # An optimizer would still apply a gradient from before.
        parameter.grad = None
    if frozen:
        # A tuple of names, so that a copy of the model can be unfrozen, too.
        vars(module)[_FROZEN] = tuple(frozen)


def _freeze_buffers(module: nn.Module, kept: set[int]) -> None:
    """Let training change no buffer of the module itself, unless all of them are trained."""
    own = {name: buffer for name, buffer in _own_buffers(module).items() if id(buffer) not in kept}
    if not own:
        return
    children = [child for child in module.children() if not isinstance(child, InsertedBlock)]
    statistics = any(name.startswith("running_") for name in own)
    if statistics or (not children and any(b.is_floating_point() for b in own.values())):
        # First of all hooks, since that of `spectral_norm` updates its vectors in training mode.
        module.register_forward_pre_hook(_stay_in_eval, prepend=True)
    if not statistics:  # it may change its buffers in any mode
        module.register_forward_pre_hook(_save_buffers, prepend=True)
        module.register_forward_hook(_restore_buffers)


def trained_tensors(model: nn.Module, trainable: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return parameters and buffers of the inserted blocks and of the modules named `trainable`.

    Raises:
        ValueError: If a name matches nothing.

    Example:
        >>> sorted(trained_tensors(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["1"]))
        ['1.bias', '1.weight']
    """
    state = cast("Mapping[str, Tensor]", model.state_dict(keep_vars=True))
    for pattern in trainable:
        if not any(_matches(name, pattern) for name in state):
            raise ValueError(
                f"trainable must name modules or parameters of the model, but {pattern!r} matches "
                f"none; its modules are {', '.join(name for name, _ in model.named_children())}"
            )
    return {name: state[name] for name in _trained_names(model, trainable, state)}


def check_all_saved(model: nn.Module, trainable: Sequence[str]) -> None:
    """Raise if something else was trained in a network that `freeze_except_blocks` froze.

    Raises:
        ValueError: If parameters outside of the blocks and of `trainable` are not frozen.

    Example:
        >>> check_all_saved(nn.Linear(2, 3), [])
    """
    if not any(_FROZEN in vars(module) for module in model.modules()):
        return
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    missing = sorted(set(names) - set(_trained_names(model, trainable, names)))
    if missing:
        raise ValueError(
            "trainable must name all that was trained beside the blocks, but "
            f"{', '.join(missing[:3])} {'is' if len(missing) == 1 else 'are'} not frozen and would "
            f"be missing in the file; pass the names that insert got, such as "
            f"{[missing[0].rpartition('.')[0] or missing[0]]!r}"
        )


def _trained_names(
    model: nn.Module, trainable: Sequence[str], names: Iterable[str]
) -> Iterator[str]:
    """Return the names that are inside of the inserted blocks or match `trainable`."""
    modules = named_modules(model).items()
    prefixes = [name for name, module in modules if isinstance(module, InsertedBlock)]
    return (
        name
        for name in names
        if any(_is_inside(name, prefix) for prefix in prefixes)
        or any(_matches(name, pattern) for pattern in trainable)
    )


def _is_inside(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}." if prefix else "")


def _matches(name: str, pattern: str) -> bool:
    parents = _parents(name)
    return any(fnmatchcase(parent, pattern) for parent in parents)


def _parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _own_buffers(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_buffers(recurse=False))


def _stay_in_eval(norm: nn.Module, _: object) -> None:
    """Forward pre-hook of frozen norms; a function of the module, so that it can be copied."""
    norm.training = False


def _save_buffers(module: nn.Module, _: object) -> None:
    """Forward pre-hook: remember the buffers of a frozen module in training mode."""
    if module.training:
        buffers = _own_buffers(module).items()
        vars(module)[_SAVED] = {name: (buffer, buffer.clone()) for name, buffer in buffers}


def _restore_buffers(module: nn.Module, _: object, __: object) -> None:
    """Forward hook: undo what the module did to its buffers, in place or by assignment."""
    own = cast("dict[str, Tensor]", vars(module)["_buffers"])
    for name, (buffer, saved) in vars(module).pop(_SAVED, {}).items():
        # `data`, since a version that counts up would forbid the backward pass.
        buffer.data.copy_(saved)
        own[name] = buffer


_HOOKS = (_stay_in_eval, _save_buffers, _restore_buffers)
