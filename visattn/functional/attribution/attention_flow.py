"""Attention flow: the maximum flow from output tokens to each input token."""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

_UNITS = 2**30  # of a capacity of 1; scipy solves integer problems of 32 bits


def attention_flow(
    layers: Sequence[Float[Tensor, "n n"]],
    row: Float[Tensor, " n"],
    *,
    first: int = 0,
    residual: float = 0.5,
) -> Float[Tensor, " m"]:
    """Return the maximum flow from a combination of output tokens to each input token.

    Tokens of consecutive layers are the nodes of a network. The edges have the attention, mixed
    with the identity for the skip connection, as capacities, rounded to multiples of 2^-30. Each
    input token is a problem of its own, solved by Dinic's algorithm.

    Args:
        layers: Attention weights of each layer, first layer first; rows sum to 1.
        row: Capacity from the source to each output token, at most 1 in total; (1, 0, 0, ...) is
            the first token.
        first: First input token whose flow is returned; those before have none.
        residual: Weight of the identity in each layer, in [0, 1].

    Returns:
        Flows of the input tokens from `first` on, in float64.

    Raises:
        ValueError: If there is no layer, the residual weight is not in [0, 1], or capacities are
            negative, not finite or too large.

    Example:
        >>> attention = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
        >>> attention_flow([attention], torch.tensor([1.0, 0.0]))
        tensor([0.6250, 0.3750], dtype=torch.float64)

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928, section 3. Dinic 1970, "Algorithm for solution of
        a problem of maximum flow in a network with power estimation".
    """
    csgraph: Any = importlib.import_module("scipy.sparse.csgraph")

    if not layers or not 0 <= residual <= 1:
        raise ValueError(
            "there must be a layer and a residual weight in [0, 1], got "
            f"{len(layers)} and {residual}"
        )
    stacked = torch.stack([layer.detach().cpu().double() for layer in layers])
    count = stacked.shape[1]
    sums = stacked.sum(2, keepdim=True)  # 1 up to rounding
    capacities = (1 - residual) * stacked / torch.where(sums > 0, sums, 1.0)
    capacities += residual * torch.eye(count, dtype=torch.float64)
    network = _network(capacities, row.detach().cpu().double())
    source = network.shape[0] - 1
    flows = [csgraph.maximum_flow(network, source, sink) for sink in range(first, count)]
    units = [int(flow.flow_value) for flow in flows]
    return torch.tensor(units, dtype=torch.float64, device=row.device) / _UNITS


def _network(capacities: Float[Tensor, "l n n"], row: Float[Tensor, " n"]) -> Any:
    """Return capacities among tokens, those of the input first, and the source, as a matrix."""
    from scipy.sparse import csr_array  # pyright: ignore[reportMissingTypeStubs]

    everything = torch.cat((capacities.flatten(), row))
    if not bool((everything.isfinite() & (everything >= 0)).all()) or float(row.sum()) > 1.001:
        raise ValueError(
            "attention and row must be finite and not negative, and the row must not exceed a sum "
            f"of 1; got values from {float(everything.min())} to {float(everything.max())}, and a "
            f"row of sum {float(row.sum())}"
        )
    depth, count = len(capacities), len(row)
    layer, upper, lower = capacities.nonzero(as_tuple=True)
    [outputs] = row.nonzero(as_tuple=True)
    source = (depth + 1) * count
    starts = torch.cat(((layer + 1) * count + upper, torch.full_like(outputs, source)))
    ends = torch.cat((layer * count + lower, depth * count + outputs))
    values = torch.cat((capacities[layer, upper, lower], row[outputs]))
    units = (values * _UNITS).round().int()
    places = (starts.int().numpy(), ends.int().numpy())
    return csr_array((units.numpy(), places), shape=(source + 1, source + 1))
