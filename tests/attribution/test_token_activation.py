"""Token activation maps: equal plain loops in double precision over every token."""

import math

import pytest
import torch
from torch import Tensor

from visattn.attribution.token_activation import (
    TokenStates,
    rank_gaussian_filter,
    remove_interference,
    token_activation_maps,
)


def plain_filter(image: list[list[float]], side: int) -> list[list[float]]:
    """The filter cell by cell; borders are mirrored without repeating the outermost cell."""
    rows, columns, reach = len(image), len(image[0]), side // 2

    def mirrored(index: int, count: int) -> int:
        if count == 1:
            return 0
        index = abs(index)
        return index if index < count else 2 * (count - 1) - index

    result = []
    for y in range(rows):
        result.append([])
        for x in range(columns):
            window = sorted(
                image[mirrored(y + dy, rows)][mirrored(x + dx, columns)]
                for dy in range(-reach, reach + 1)
                for dx in range(-reach, reach + 1)
            )
            mean = sum(window) / len(window)
            variance = sum((value - mean) ** 2 for value in window) / len(window)
            if mean <= 0:
                result[-1].append(0.0)
            elif variance == 0:
                result[-1].append(mean)
            else:
                width = math.sqrt(variance) / mean
                weights = [
                    math.exp(-((rank - side**2 // 2) ** 2) / (2 * width**2))
                    for rank in range(side**2)
                ]
                pairs = zip(window, weights, strict=True)
                result[-1].append(sum(a * b for a, b in pairs) / sum(weights))
    return result


def plain_maps(states: TokenStates, head: Tensor, bias: Tensor, left_out: list[int]) -> Tensor:
    """The maps of the generated tokens, one earlier token after the other."""
    ids = states.context_ids.tolist()
    maps = []
    for target in range(states.num_prompt, len(ids)):
        row = head[ids[target]].double()
        own = [max(0.0, float(row @ state.double() + bias[ids[target]])) for state in states.image]
        interference, total = [0.0] * len(own), 0.0
        for number in range(target):
            if ids[number] == ids[target] or ids[number] in left_out:
                continue
            weight = max(0.0, float(row @ states.context[number].double() + bias[ids[target]]))
            other = head[ids[number]].double()
            values = [max(0.0, float(other @ each.double() + bias[ids[number]]))
                      for each in states.image]  # fmt: skip
            interference = [a + weight * b for a, b in zip(interference, values, strict=True)]
            total += weight
        interference = [each / (total + 1e-8) for each in interference]
        square = sum(each**2 for each in interference)
        product = sum(a * b for a, b in zip(own, interference, strict=True))
        scale = product / square if square else 0.0
        maps.append([max(0.0, a - scale * b) for a, b in zip(own, interference, strict=True)])
    return torch.tensor(maps, dtype=torch.float64)


@pytest.mark.parametrize(("shape", "side"), [((5, 7), 3), ((1, 5), 3), ((7, 5), 5), ((3, 3), 1)])
def test_filter_equals_plain_loops(shape: tuple[int, int], side: int) -> None:
    torch.manual_seed(1)
    maps = torch.rand(2, *shape).square()
    maps[1] = (maps[1] > 0.5).float()  # windows of zeros and of equal values
    expected = torch.tensor([plain_filter(each.double().tolist(), side) for each in maps])
    torch.testing.assert_close(
        rank_gaussian_filter(maps, kernel_size=side), expected.float(), atol=2e-6, rtol=1e-5
    )


def test_interference_is_what_least_squares_explain() -> None:
    torch.manual_seed(2)
    activations, context = torch.rand(3, 11), torch.rand(5, 11)
    relevances = torch.rand(3, 5)
    weights = relevances / relevances.sum(1, keepdim=True)
    for row, weight, result in zip(
        activations, weights, remove_interference(activations, context, relevances), strict=True
    ):
        mixed = (weight @ context).double()[:, None]
        scale = torch.linalg.lstsq(mixed, row.double()[:, None]).solution
        expected = (row.double()[:, None] - mixed @ scale).relu()[:, 0]
        torch.testing.assert_close(result.double(), expected, atol=1e-6, rtol=1e-5)
    none = torch.zeros(3, 5)  # no earlier token is relevant
    torch.testing.assert_close(remove_interference(activations, context, none), activations)


def test_maps_equal_plain_loops() -> None:
    torch.manual_seed(3)
    ids = torch.tensor([2, 6, 4, 2, 6, 9, 2])  # repeated ones, and a special one
    states = TokenStates(torch.randn(11, 5), torch.randn(len(ids), 5), ids, 3)
    head, bias = torch.randn(13, 5), 0.1 * torch.randn(13)
    maps = token_activation_maps(states, head, bias, left_out=[9])
    expected = plain_maps(states, head, bias, [9])
    assert maps.shape == (4, 11)
    torch.testing.assert_close(maps.double(), expected, atol=1e-5, rtol=1e-5)
    assert (expected - plain_maps(states, head, bias, [])).abs().max() > 1e-2
