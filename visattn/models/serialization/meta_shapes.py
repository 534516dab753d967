"""Weight shapes and memory needs of a model, computed on the meta device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from visattn.models.serialization.weight_files import Shapes

MAX_TENSOR_BYTES = 2**31  # of one tensor during construction or one forward pass
BASE_OPERATIONS = 2_000  # for building a model with few weights
_OPERATIONS_PER_WEIGHT = 40
_MAX_WEIGHTS = 10_000
_FORWARD_OPERATIONS = 100_000
_COMPARISONS: tuple[Any, ...] = (torch.ops.aten.equal.default, torch.ops.aten.allclose.default)


def weight_shapes(build: Callable[[], nn.Module], *, num_weights: int, same: bool = True) -> Shapes:
    """Return the names and shapes of all weights and buffers of a model, without allocating memory.

    Args:
        build: Builds the model.
        num_weights: Expected number of weights; building stops when it takes many more operations.
        same: Result of tensor comparisons during construction, such as that of `insert`, which
            checks whether a block is initialized as the identity.

    Raises:
        ValueError: If a tensor would need more than `MAX_TENSOR_BYTES`, or the model has many more
            weights than expected.

    Example:
        >>> weight_shapes(lambda: nn.Linear(30_000, 10_000), num_weights=2)
        {'weight': (10000, 30000), 'bias': (10000,)}
        >>> weight_shapes(lambda: nn.Linear(10**6, 10**6), num_weights=2)
        Traceback (most recent call last):
        ValueError: a tensor of shape (1000000, 1000000) would need 4,000,000,000,000 bytes
    """
    limit = BASE_OPERATIONS + _OPERATIONS_PER_WEIGHT * min(num_weights, _MAX_WEIGHTS)
    with torch.device("meta"), _MemoryGuard(limit, same=same), torch.no_grad():
        state = build().state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def check_forward_memory(
    build: Callable[[], nn.Module], run: Callable[[nn.Module], object]
) -> None:
    """Check that a forward pass on one image needs no tensor above `MAX_TENSOR_BYTES`.

    Some sizes matter only in the forward pass: an image of 2^20 x 2^20 pixels needs no weight. The
    pass runs on the meta device and allocates no memory. A pass that depends on tensor values
    cannot run there; the constructors of such models limit their arguments.

    Args:
        build: Builds the model.
        run: Runs the model on one image.

    Raises:
        ValueError: If it needs a larger tensor or too many operations.

    Example:
        >>> run = lambda model: model(torch.zeros(1, 1, 8, 8))
        >>> check_forward_memory(lambda: nn.ReplicationPad2d(10), run)
        >>> check_forward_memory(lambda: nn.ReplicationPad2d(10**5), run)
        Traceback (most recent call last):
        ValueError: a tensor of shape (1, 1, 200008, 200008) would need 160,012,800,256 bytes
    """
    with torch.device("meta"), torch.no_grad(), _MemoryGuard(_FORWARD_OPERATIONS, same=True):
        model = build().eval()
        with _FusedAttention():
            try:
                run(model)
            except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError,
                    TypeError):  # fmt: skip
                return


class _FusedAttention(TorchFunctionMode):
    """Computes attention without its matrix, as the fused kernels do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            query, values = (kwargs.get(name) for name in ("query", "value"))
            query, values = (
                args[0] if query is None else query,
                args[2] if values is None else values,
            )
            return query.new_empty((*query.shape[:-1], values.shape[-1]))
        return func(*args, **kwargs)


class _MemoryGuard(TorchDispatchMode):
    """Stops after too many operations or at a tensor that is too large."""

    def __init__(self, num_operations: int, *, same: bool) -> None:
        super().__init__()
        self.operations_left, self.same = num_operations, same

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations_left -= 1
        if self.operations_left < 0:
            raise ValueError("it has far more layers than weights")
        if func in _COMPARISONS:
            return self.same
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.numel() * leaf.element_size() > MAX_TENSOR_BYTES:
                raise ValueError(
                    f"a tensor of shape {tuple(leaf.shape)} would need "
                    f"{leaf.numel() * leaf.element_size():,} bytes"
                )
        return output
