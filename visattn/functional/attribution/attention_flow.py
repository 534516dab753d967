"""Attention flow: the maximum flow from output tokens to each input token."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

_SMALLEST = 1e-12  # capacities and excess below it are rounding errors
_CELLS = 2**23  # capacities that are held at once
_SINKHORN_STEPS = 50  # of the shared capacities, and in total per round of reduced ones: 10
_ROUNDS = 40
_ROUNDING = 1e-9  # of a flow


def attention_flow(
    layers: Sequence[Float[Tensor, "n n"]],
    row: Float[Tensor, " n"],
    *,
    first: int = 0,
    residual: float = 0.5,
    tolerance: float = 1e-3,
) -> Float[Tensor, " m"]:
    """Return the maximum flow from a combination of output tokens to each input token.

    Tokens of consecutive layers are the nodes of a network. The edges have the attention, mixed
    with the identity for the skip connection, as capacities. Each input token is a problem of its
    own. Two cuts bound its flow: what leaves the source, and what enters the input token. A
    construction finds a feasible flow below the bound; where the relative gap exceeds the
    tolerance, push-relabel finds the maximum, which takes long in large networks.

    Args:
        layers: Attention weights of each layer, first layer first; rows sum to 1.
        row: Capacity from the source to each output token; (1, 0, 0, ...) is the first token.
        first: First input token whose flow is returned; those before have none.
        residual: Weight of the identity in each layer, in [0, 1].
        tolerance: Relative gap between the feasible flow and the cut at which the feasible flow
            is returned; the maximum lies between them. It is at least 1e-9, for rounding.

    Returns:
        Flows of the input tokens from `first` on, in float64.

    Raises:
        ValueError: If there is no layer, the residual weight is not in [0, 1], or the tolerance is
            not in [0, 1).

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
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be in [0, 1), got {tolerance}")
    stacked = torch.stack([layer.double() for layer in layers])
    count, row = stacked.shape[1], row.double()
    eye = torch.eye(count, dtype=torch.float64, device=stacked.device)
    sums = stacked.sum(2, keepdim=True)  # 1 up to rounding
    capacities = residual * eye + (1 - residual) * stacked / torch.where(sums > 0, sums, 1.0)
    incoming = capacities[1].sum(0) if len(layers) > 1 else row
    demands = capacities[0].T[first:].minimum(incoming)  # what can enter each sink, and from where
    bounds = demands.sum(1).clamp(max=float(row.sum()))
    demands = demands * _ratio(bounds, demands.sum(1))[:, None]
    flows = _feasible_flows(capacities, row, demands, bounds, max(tolerance, _ROUNDING))
    hard = (flows < (1 - max(tolerance, _ROUNDING)) * bounds).nonzero()[:, 0]
    for part in hard.split(max(1, _CELLS // capacities.numel())):
        flows[part] = _max_flows(capacities, row, part + first)
    return flows


def _feasible_flows(
    capacities: Float[Tensor, "l n n"],
    row: Float[Tensor, " n"],
    demands: Float[Tensor, "s n"],
    bounds: Float[Tensor, " s"],
    tolerance: float,
) -> Float[Tensor, " s"]:
    """Return the size of a flow that the capacities allow, for each sink.

    The flow divides at the tokens of the upper layers as the capacities do and gathers likewise in
    the lower ones. The layers between connect both: their flow is the capacity times a factor of
    the upper and one of the lower token, found by Sinkhorn iterations.
    """
    depth = len(capacities)
    if depth == 1:
        return bounds.clone()
    flows = torch.zeros_like(bounds)
    if depth == 2:
        return flows
    for low, high in {(depth // 3, depth - depth // 6 - 1), (depth // 4, depth - depth // 4 - 1)}:
        hard = (flows < (1 - tolerance) * bounds).nonzero()[:, 0]
        if len(hard):
            window = (max(low, 1), max(high, low, 1) + 1)
            sizes = _connected(capacities, row, demands[hard], bounds[hard], *window)
            flows[hard] = flows[hard].maximum(sizes)
    hard = (flows < (1 - tolerance) * bounds).nonzero()[:, 0]
    for part in hard.split(max(1, _CELLS // capacities.numel())):
        sizes = _connected_below_capacity(capacities, row, demands[part], bounds[part], tolerance)
        flows[part] = flows[part].maximum(sizes)
    return flows


def _connected(
    capacities: Float[Tensor, "l n n"],
    row: Float[Tensor, " n"],
    demands: Float[Tensor, "s n"],
    bounds: Float[Tensor, " s"],
    low: int,
    high: int,
) -> Float[Tensor, " s"]:
    """Return the size of flows that the layers from `low` to before `high` connect.

    The whole flow is scaled down if an edge may carry more than its capacity.
    """
    excess = torch.ones_like(bounds)
    for layer in capacities[1:low]:
        shares = _ratio(demands, layer.sum(0))
        excess, demands = excess.maximum(shares.amax(1)), shares @ layer.T
    supply = bounds[:, None] * row / row.sum()
    for layer in capacities[high:].flip(0):
        supply = supply @ layer
    bridge = _Bridge(list(capacities[low:high, None]), supply[None], demands[None])
    bridge.iterate(_SINKHORN_STEPS)
    above, below = bridge.factors()
    for upper, lower in zip(above, below, strict=True):
        excess = excess.maximum((upper.amax(2) * lower.amax(2))[0])
    return (bridge.size()[0] / excess).nan_to_num(0.0).clamp(min=0)


def _connected_below_capacity(
    capacities: Float[Tensor, "l n n"],
    row: Float[Tensor, " n"],
    demands: Float[Tensor, "s n"],
    bounds: Float[Tensor, " s"],
    tolerance: float,
) -> Float[Tensor, " s"]:
    """Return the size of flows, with fewer assumptions and more time.

    All layers but the first and last connect supply and demand. Between Sinkhorn iterations edges
    that carry more than their capacity are weighted down: alternating projections, in relative
    entropy, onto flows and onto what the capacities allow. What is still above is subtracted.
    """
    supply = (bounds[:, None] * row / row.sum()) @ capacities[-1]
    full = capacities[1:-1, None]
    bridge = _Bridge(list(full.expand(-1, len(bounds), -1, -1)), supply[:, None], demands[:, None])
    best = torch.zeros_like(bounds)
    for _ in range(_ROUNDS):
        bridge.iterate(_SINKHORN_STEPS // 5)
        size, reduced = bridge.size()[:, 0], []
        for upper, lower, capacity, layer in zip(
            *bridge.factors(), full, bridge.layers, strict=True
        ):
            product = upper.mT * lower
            size = size - (product * layer - capacity).clamp(min=0).sum((1, 2))
            reduced.append(capacity / product.clamp(min=1))
        best = best.maximum(size.nan_to_num(0.0))
        if bool((best >= (1 - tolerance) * bounds).all()):
            break
        bridge.layers = reduced
    return best


class _Bridge:
    """Flows through layers with given supply and demand, as products of factors of tokens.

    Vectors are `[g, r, n]`, matrices `[g, n, n]`: each group of r sinks shares its matrices.
    """

    def __init__(self, layers: list[Tensor], supply: Tensor, demand: Tensor) -> None:
        self.layers, self.supply, self.demand = layers, supply, demand
        self.left, self.right = torch.zeros_like(supply), torch.ones_like(demand)

    def iterate(self, steps: int) -> None:
        """Run Sinkhorn iterations; the demand is then met where a way leads there."""
        product = self.layers[0]
        for layer in self.layers[1:]:
            product = layer @ product
        for _ in range(steps):
            self.left = _ratio(self.supply, self.right @ product.mT)
            self.right = _ratio(self.demand, self.left @ product)
        self._sent = self.left * (self.right @ product.mT)

    def size(self) -> Float[Tensor, "g r"]:
        """Return the size of the flow that the supply allows."""
        return self._sent.minimum(self.supply).sum(2)

    def factors(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the factors of the upper and of the lower tokens of each layer."""
        above, below = [self.left], [self.right]
        for layer in self.layers[:0:-1]:
            above.append(above[-1] @ layer)
        for layer in self.layers[:-1]:
            below.append(below[-1] @ layer.mT)
        return above[::-1], below


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
