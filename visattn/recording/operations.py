"""Operations that a model computes, by name: activation functions, normalization, products."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from visattn.recording.frozen_model import frozen, with_grad

RECTIFIERS = frozenset({"relu", "relu6", "hardtanh"})
SMOOTH_ACTIVATIONS = frozenset(
    {"gelu", "silu", "mish", "elu", "celu", "selu", "hardswish", "softplus", "leaky_relu", "prelu"}
    | {"rrelu"}
)
_NORMS = frozenset({"layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"})
_ATTENTION = frozenset({"softmax", "scaled_dot_product_attention", "multi_head_attention_forward"})
_PRODUCTS = frozenset(
    {"mul", "mul_", "__mul__", "__imul__", "__rmul__", "multiply", "div", "div_", "__truediv__"}
    | {"matmul", "__matmul__", "bmm", "einsum"}
)


class _OperationRecorder(TorchFunctionMode):
    """Collects the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function and note its name."""
        name = getattr(func, "__name__", "")
        plain = name.rstrip("_")  # without the mark of operations in place
        if plain in RECTIFIERS | SMOOTH_ACTIVATIONS | _NORMS | _ATTENTION:
            self.names.add(plain)
        factors = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
        if name in _PRODUCTS and len(factors) > 1:
            self.names.add("product")
        return func(*args, **(kwargs or {}))


def model_operations(
    model: nn.Module, forward: Callable[[Tensor], Any], size: tuple[int, int], channels: int
) -> tuple[str, ...]:
    """Return the names of operations that decide which attribution methods fit, sorted.

    These are activation functions, normalization over positions or channels of one image, softmax,
    and `product` for products of two tensors that both depend on the image.

    Args:
        model: The model.
        forward: Calls it on normalized images.
        size: Height and width of the images.
        channels: Of the images.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU6(), nn.SiLU())
        >>> model_operations(model, model, (2, 3), 1)
        ('hardtanh', 'silu')
    """
    weights = (weight for weight in model.parameters() if weight.is_floating_point())
    weight = next(weights, torch.zeros(1))
    image = weight.detach().new_zeros(1, channels, *size)
    with frozen(model), _OperationRecorder() as recorder:
        try:
            forward(with_grad(image))
        except (RuntimeError, NotImplementedError):  # of operations without a gradient
            return ()
    return tuple(sorted(recorder.names))
