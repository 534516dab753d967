"""Features under a gate of their own size."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.blocks.taps import Tap
from visattn.functional.precisions import may_overwrite


def scaled(
    x: Float[Tensor, "b c y x"], gate: Float[Tensor, "b c y x"], tap: Tap
) -> Float[Tensor, "b c y x"]:
    """Return the features, each scaled by its own gate, which passes the tap.

    The gate is used up: where no slope is to come and nobody listens, its memory holds the result.
    Of a gate that is as large as the features, this saves the time to fetch as much memory again.

    Args:
        x: Features.
        gate: Made for this use, and not needed after it.
        tap: Where the gate can be seen.

    Example:
        >>> scaled(torch.full((1, 1, 1, 1), 3.0), torch.full((1, 1, 1, 1), 0.5), Tap("gate"))
        tensor([[[[1.5000]]]])
    """
    gate = tap(gate)
    needed = tap.wanted or not may_overwrite(x, gate)
    if needed or torch.compiler.is_compiling() or gate.stride() != x.stride():
        return x * gate
    return gate.mul_(x)
