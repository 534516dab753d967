"""A model without its weights: which it would have, of what shapes, before memory is taken."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from visattn.models.serialization.weight_files import Shapes

LARGEST = 2**31  # bytes of one tensor that a model may need while it is built
STEPS = 2_000  # operations in which a model with few weights is built
_STEPS_EACH = 40  # and how many more with each weight
_MOST = 10_000  # weights of a model
_RUN_STEPS = 100_000  # operations of one forward pass
_SAME: tuple[Any, ...] = (torch.ops.aten.equal.default, torch.ops.aten.allclose.default)


def outline(make: Callable[[], nn.Module], *, weights: int, same: bool = True) -> Shapes:
    """Return the names and shapes of all weights and buffers that a model would have.

    Nothing takes memory: tensors have a shape here, but no numbers.

    Args:
        make: Builds the model.
        weights: How many it is said to have; much longer than these take, nothing is built.
        same: What a constructor is told that compares numbers, as `insert` does to see whether a
            block begins as the identity.

    Raises:
        ValueError: If it would need a tensor of more than `LARGEST` bytes, or has many more
            weights than it is said to have.

    Example:
        >>> outline(lambda: nn.Linear(30_000, 10_000), weights=2)
        {'weight': (10000, 30000), 'bias': (10000,)}
        >>> outline(lambda: nn.Linear(10**6, 10**6), weights=2)
        Traceback (most recent call last):
        ValueError: a tensor of (1000000, 1000000) would take 4,000,000,000,000 bytes
    """
    sketch = _Sketch(STEPS + _STEPS_EACH * min(weights, _MOST), same=same)
    with torch.device("meta"), sketch, torch.no_grad():
        state = make().state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def check_forward(make: Callable[[], nn.Module], run: Callable[[nn.Module], object]) -> None:
    """Let a model pass whose forward pass on one image takes no tensor above `LARGEST` bytes.

    The sizes that a model is built with multiply only when it runs: an image of 2^20 x 2^20
    pixels needs no weight. Nothing takes memory here: the pass runs on tensors without numbers. A
    pass that depends on numbers cannot run on such; constructors bound those models.

    Args:
        make: Builds the model.
        run: Calls it on one image.

    Raises:
        ValueError: If it needs a larger tensor, or far more operations than models have.

    Example:
        >>> run = lambda model: model(torch.zeros(1, 1, 8, 8))
        >>> check_forward(lambda: nn.ReplicationPad2d(10), run)
        >>> check_forward(lambda: nn.ReplicationPad2d(10**5), run)
        Traceback (most recent call last):
        ValueError: a tensor of (1, 1, 200008, 200008) would take 160,012,800,256 bytes
    """
    with torch.device("meta"), torch.no_grad(), _Sketch(_RUN_STEPS, same=True):
        model = make().eval()
        with _FusedAttention():
            try:
                run(model)
            except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError,
                    TypeError):  # fmt: skip
                return


class _FusedAttention(TorchFunctionMode):
    """Attention without its matrix, as the fused kernels compute it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is scaled_dot_product_attention:
            query, values = (given.get(name) for name in ("query", "value"))
            query, values = (
                args[0] if query is None else query,
                args[2] if values is None else values,
            )
            return query.new_empty((*query.shape[:-1], values.shape[-1]))
        return func(*args, **given)


class _Sketch(TorchDispatchMode):
    """Stops what grows beyond measure."""

    def __init__(self, steps: int, *, same: bool) -> None:
        super().__init__()
        self.left, self.same = steps, same

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left < 0:
            raise ValueError("it has many more layers than weights")
        if func in _SAME:
            return self.same
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, Tensor) and one.numel() * one.element_size() > LARGEST:
                raise ValueError(
                    f"a tensor of {tuple(one.shape)} would take "
                    f"{one.numel() * one.element_size():,} bytes"
                )
        return made
