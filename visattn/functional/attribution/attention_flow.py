"""Attention flow: the maximum flow from output tokens to each input token."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_SMALLEST = 1e-12  # capacities and excess below it are rounding errors
_CELLS = 2**23  # capacities that are held at once
_SINKHORN_STEPS = 50
_TOLERANCE = 1e-9  # of a flow


def attention_flow(
    layers: Sequence[Float[Tensor, "n n"]],
    row: Float[Tensor, " n"],
    *,
    first: int = 0,
    residual: float = 0.5,
) -> Float[Tensor, " m"]:
    """Return the maximum flow from a combination of output tokens to each input token.

    Tokens of consecutive layers are the nodes of a network. The edges have the attention, mixed
    with the identity for the skip connection, as capacities. Each input token is a problem of its
    own. No flow exceeds what leaves the source and what enters the input token; where a flow of
    this size is found at once it is the maximum, else push-relabel solves the problem.

    Args:
        layers: Attention weights of each layer, first layer first; rows sum to 1.
        row: Capacity from the source to each output token; (1, 0, 0, ...) is the first token.
        first: First input token whose flow is returned; those before have none.
        residual: Weight of the identity in each layer, in [0, 1].

    Returns:
        Flows of the input tokens from `first` on, in float64.

    Raises:
        ValueError: If there is no layer, or the residual weight is not in [0, 1].

    Example:
        >>> attention = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
        >>> attention_flow([attention], torch.tensor([1.0, 0.0]))
        tensor([0.6250, 0.3750], dtype=torch.float64)

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928, section 3. Goldberg and Tarjan 1988,
        "A new approach to the maximum-flow problem".
    """
    if not layers or not 0 <= residual <= 1:
        raise ValueError(
            "there must be a layer and a residual weight in [0, 1], got "
            f"{len(layers)} and {residual}"
        )
    stacked = torch.stack([layer.double() for layer in layers])
    count = stacked.shape[1]
    eye = torch.eye(count, dtype=torch.float64, device=stacked.device)
    sums = stacked.sum(2, keepdim=True)  # 1 up to rounding
    capacities = residual * eye + (1 - residual) * stacked / torch.where(sums > 0, sums, 1.0)
    sinks = torch.arange(first, count, device=stacked.device)
    row = row.double()
    flows = capacities[0].sum(0)[sinks].clamp(max=float(row.sum()))  # what enters, what leaves
    hard = torch.arange(len(sinks), device=row.device)
    for middle in sorted(range(1, len(layers) - 1), key=lambda layer: abs(2 * layer - len(layers))):
        if len(hard):
            hard = hard[~_attained(capacities, row, sinks[hard], flows[hard], middle)]
    for part in hard.split(max(1, _CELLS // capacities.numel())):
        flows[part] = _max_flows(capacities, row, sinks[part])
    return flows


def _attained(
    capacities: Float[Tensor, "l n n"],
    row: Float[Tensor, " n"],
    sinks: Tensor,
    flows: Float[Tensor, " s"],
    middle: int,
) -> Bool[Tensor, " s"]:
    """Return which flows are possible, by a construction.

    The flow divides at each token of the upper layers as the capacities do, and gathers likewise in
    the lower layers; in the layer between, Sinkhorn iterations connect both.
    """
    shares = _ratio(flows, capacities[0].sum(0)[sinks])
    demand, feasible = capacities[0][:, sinks].T * shares[:, None], flows > 0
    for layer in capacities[1:middle]:
        feasible &= (demand <= layer.sum(0)).all(1)
        demand = _ratio(demand, layer.sum(0)) @ layer.T
    supply = flows[:, None] * row / row.sum()
    for layer in capacities[middle + 1 :].flip(0):
        supply = supply @ layer
    left, right, between = torch.ones_like(demand), torch.ones_like(demand), capacities[middle]
    for _ in range(_SINKHORN_STEPS):
        left = _ratio(supply, right @ between.T)
        right = _ratio(demand, left @ between)
    sent = left * (right @ between.T)
    feasible &= left.amax(1) * right.amax(1) <= 1  # no edge carries more than its capacity
    return feasible & ((sent - supply).clamp(min=0).sum(1) <= _TOLERANCE * flows)


def _ratio(goal: Tensor, value: Tensor) -> Tensor:
    return torch.where(value > 0, goal / value, 0.0)


def _max_flows(
    capacities: Float[Tensor, "l n n"], row: Float[Tensor, " n"], sinks: Tensor
) -> Float[Tensor, " s"]:
    """Return the maximum flow to each of some sinks among the input tokens."""
    depth, count = len(capacities), len(row)
    down = [layer.expand(len(sinks), count, count).clone() for layer in capacities]
    up = [torch.zeros_like(layer) for layer in down]  # flow that can be returned
    excess = [torch.zeros_like(down[0][:, 0]) for _ in range(depth)]
    excess.append(row.expand(len(sinks), count).clone())
    bounds = capacities[0].sum(0)[sinks].clamp(max=float(row.sum()))
    flows, remaining = torch.zeros_like(bounds), torch.arange(len(sinks), device=row.device)
    while len(remaining):
        distances = _distances(down, up, sinks[remaining])
        active = torch.zeros_like(remaining, dtype=torch.bool)
        for part, distance in zip(excess[1:], distances[1:], strict=True):
            active |= ((part > _SMALLEST) & distance.isfinite()).any(1)
        flows[remaining] = excess[0].gather(1, sinks[remaining, None])[:, 0]
        active &= flows[remaining] < bounds[remaining] - _SMALLEST
        if not bool(active.all()):
            remaining = remaining[active]
            down, up, excess, distances = (
                [part[active] for part in parts] for parts in (down, up, excess, distances)
            )
        for level in range(1, depth):  # return flow upwards, where the way to the sink leads there
            _push(excess, distances, level, level + 1, up[level].mT, down[level].mT)
        for level in range(depth, 0, -1):
            _push(excess, distances, level, level - 1, down[level - 1], up[level - 1])
    return flows


def _push(
    excess: list[Tensor],
    distances: list[Tensor],
    source: int,
    goal: int,
    residual: Float[Tensor, "s n n"],
    reverse: Float[Tensor, "s n n"],
) -> None:
    """Push the excess of all nodes of a level along edges that lead closer to the sink."""
    closer = distances[source][:, :, None] == distances[goal][:, None] + 1
    room = torch.where(closer & distances[source].isfinite()[:, :, None], residual, 0.0)
    room = torch.where(room > _SMALLEST, room, 0.0)
    filled = room.cumsum(2)
    pushed = (excess[source][:, :, None] - (filled - room)).clamp(min=0).minimum(room)
    residual -= pushed
    reverse += pushed
    excess[source] = (excess[source] - pushed.sum(2)).clamp(min=0)
    excess[goal] = excess[goal] + pushed.sum(1)


def _distances(down: list[Tensor], up: list[Tensor], sinks: Tensor) -> list[Float[Tensor, "s n"]]:
    """Return the length of the shortest way from each node to the sink; infinite without one."""
    depth = len(down)
    nowhere = torch.full_like(down[0][:, 0], torch.inf)
    distances = [nowhere.clone() for _ in range(depth + 1)]
    distances[0].scatter_(1, sinks[:, None], 0.0)
    changed = True
    while changed:
        before = [distance.clone() for distance in distances]
        for level in range(depth):
            _relax(distances, level + 1, level, down[level])
        for level in range(depth - 1, 0, -1):
            _relax(distances, level, level + 1, up[level].mT)
        changed = any(not torch.equal(a, b) for a, b in zip(before, distances, strict=True))
    return distances


def _relax(distances: list[Tensor], source: int, goal: int, residual: Tensor) -> None:
    """Shorten the ways of a level that lead over another level."""
    ways = torch.where(residual > _SMALLEST, distances[goal][:, None], torch.inf)
    distances[source] = distances[source].minimum(ways.amin(2) + 1)
