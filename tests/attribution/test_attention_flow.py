"""Attention flow against hand computation and the maximum flow of NetworkX."""

import networkx as nx
import pytest
import torch
from torch import Tensor

from visattn.attribution.attention import max_flow


def plain_flow(layers: list[Tensor], row: Tensor, sink: int, residual: float) -> float:
    graph, count = nx.DiGraph(), len(row)
    for token in range(count):
        graph.add_edge("source", (len(layers), token), capacity=float(row[token]))
    for level, attention in enumerate(layers):
        capacities = residual * torch.eye(count).double() + (1 - residual) * attention
        for upper in range(count):
            for lower in range(count):
                capacity = float(capacities[upper, lower])
                graph.add_edge((level + 1, upper), (level, lower), capacity=capacity)
    return nx.maximum_flow_value(graph, "source", (0, sink))


def random_layers(count: int, depth: int, *, scale: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count * depth)
    shape = (count, count)
    logits = [torch.randn(shape, generator=generator).double() * scale for _ in range(depth)]
    return [each.softmax(1) for each in logits]


@pytest.mark.parametrize("residual", [0.5, 0.0])
@pytest.mark.parametrize("scale", [0.5, 4.0])
@pytest.mark.parametrize(("count", "depth"), [(5, 1), (7, 2), (5, 3), (11, 5)])
def test_flow_equals_the_maximum_flow(
    count: int, depth: int, scale: float, residual: float
) -> None:
    layers, first = random_layers(count, depth, scale=scale), torch.zeros(count).double()
    first[0] = 1
    mixed = random_layers(count, 1, scale=1)[0][2]
    for row in (first, mixed):
        expected = [plain_flow(layers, row, sink, residual) for sink in range(count)]
        result = max_flow(layers, row, residual=residual)
        assert result.tolist() == pytest.approx(expected, abs=1e-6)


def test_three_nodes_by_hand() -> None:
    rows = [[0.2, 0.3, 0.5], [0.6, 0.4, 0.0], [0.1, 0.0, 0.9]]
    attention = torch.tensor(rows, dtype=torch.float64)
    row = torch.tensor([1.0, 0.0, 0.0]).double()
    # upper layer, from token 0: 0.6, 0.15, 0.25; lower layer, into token 1: 0.15, 0.7, 0
    result = max_flow([attention, attention], row)[1:]
    # token 2: min(.6, .25) + min(.15, 0) + min(.25, .95)
    assert result.tolist() == pytest.approx([0.15 + 0.15, 0.25 + 0.25], abs=1e-6)


def test_a_flow_returns_to_take_another_way() -> None:
    def edges(*pairs: tuple[int, int]) -> Tensor:
        weights = torch.zeros(4, 4).double()
        for upper, lower in pairs:
            weights[upper, lower] = 1 / sum(pair[0] == upper for pair in pairs)
        return weights

    layers = [edges((0, 3), (1, 0)), edges((0, 0), (0, 1), (1, 2)), edges((0, 0), (0, 1))]
    row = torch.tensor([1.0, 0.0, 0.0, 0.0]).double()
    for sink in range(4):
        expected = plain_flow(layers, row, sink, 0.0)
        assert float(max_flow(layers, row, residual=0.0)[sink]) == pytest.approx(expected, abs=1e-6)


def test_deep_networks_of_many_tokens_are_solved_at_once() -> None:
    layers = random_layers(101, 12, scale=0.5)
    row = torch.zeros(101).double()
    row[0] = 1
    result = max_flow(layers, row)[1:]
    entering = 0.5 + 0.5 * layers[0].sum(0)[1:]
    torch.testing.assert_close(result, entering.clamp(max=1), atol=1e-5, rtol=0)


def test_invalid_arguments_raise_an_error() -> None:
    with pytest.raises(ValueError, match="must be a layer and a residual weight in"):
        max_flow([], torch.ones(1))
    with pytest.raises(ValueError, match=r"got 1 and 1\.5"):
        max_flow([torch.ones(1, 1)], torch.ones(1), residual=1.5)
    with pytest.raises(ValueError, match="row must not exceed a sum of 1; got .* row of sum 2"):
        max_flow([torch.eye(2)], torch.ones(2))
    with pytest.raises(ValueError, match="must be finite and not negative"):
        max_flow([torch.full((2, 2), torch.nan)], torch.tensor([1.0, 0.0]))
