"""Checks that weights are finite before they are saved, exported or trained further."""

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from visattn.io.messages import format_names


def all_finite(tensors: list[Tensor]) -> bool:
    """Return whether all tensors are free of NaN and infinity.

    Example:
        >>> all_finite([torch.ones(3), torch.tensor([1e38, -1e38])])
        True
        >>> all_finite([torch.ones(3), torch.tensor([0.0, torch.nan])])
        False
    """
    floating = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floating:
        return True
    largest = torch.nn.utils.get_total_norm(floating, norm_type=torch.inf)
    return bool(largest.isfinite())


def nonfinite_weights(state: Mapping[str, Tensor], parameters: Collection[str] = ()) -> list[str]:
    """Return the names of tensors that hold NaN, or infinity where it is not allowed.

    Args:
        state: Weights and buffers by name.
        parameters: Names of the parameters. Buffers, such as attention masks, may be infinite,
            except for running statistics.

    Example:
        >>> mask = torch.tensor([0.0, -torch.inf])
        >>> nonfinite_weights({"mask": mask, "weight": mask, "bias": mask.log()}, {"weight"})
        ['weight', 'bias']
    """
    return [
        name
        for name, tensor in state.items()
        if not all_finite([tensor])
        and (name in parameters or "running_" in name or bool(tensor.isnan().any()))
    ]


def check_weight_types(
    expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: object
) -> None:
    """Refuse weights of another kind of number, which loading would cast without a word.

    Floating-point numbers of 16, 32 and 64 bits are cast to each other. Integers are quantized
    weights, complex numbers would lose a part, and numbers of 8 bits need their scale.

    Args:
        expected: Weights and buffers of the model.
        weights: Those to be loaded.
        source: Name of the file, for the message.

    Raises:
        ValueError: If the kinds differ.

    Example:
        >>> check_weight_types({"w": torch.ones(3)}, {"w": torch.ones(3, dtype=torch.int8)}, "a")
        Traceback (most recent call last):
        ValueError: a holds w as int8, but the model has float32 there: quantized weights ...
    """
    for name, tensor in weights.items():
        own = expected.get(name)
        if own is None or _kind(own) == _kind(tensor):
            continue
        types = [str(each.dtype).removeprefix("torch.") for each in (tensor, own)]
        raise ValueError(
            f"{source} holds {name} as {types[0]}, but the model has {types[1]} there: quantized "
            "weights need their scales; convert them to floating-point numbers first"
        )


def _kind(tensor: Tensor) -> str:
    """Return `float` for numbers that may be cast to each other, else the kind of number."""
    if tensor.is_floating_point():
        return "float" if tensor.element_size() > 1 else str(tensor.dtype)
    if tensor.is_complex():
        return "complex"
    return "bool" if tensor.dtype == torch.bool else "integer"


def check_weights_before_saving(
    state: Mapping[str, Tensor],
    parameters: Collection[str],
    *,
    agree: Callable[[list[str]], list[str]] = list,
) -> None:
    """Refuse to save weights that are not finite.

    Args:
        state: Weights and buffers by name.
        parameters: Names of the parameters; buffers, such as masks, may be infinite.
        agree: Takes the names that are not finite to those of the process that has all weights.

    Raises:
        FloatingPointError: If a tensor holds NaN, or a parameter infinity.

    Example:
        >>> check_weights_before_saving({"mask": torch.tensor([-torch.inf])}, {})
    """
    if names := agree(nonfinite_weights(state, parameters)):
        raise FloatingPointError(
            f"{format_names(names, 5)} {'is' if len(names) == 1 else 'are'} not finite, so nothing "
            "is saved, and earlier checkpoints are kept. Lower the learning rate, or clip "
            "gradients (--trainer.gradient_clip_val)"
        )
