"""Gates along the axes, against loops."""

import torch
from torch import Tensor

from visattn.functional.gates.combined import coordinate_gate, strip_pools, triplet_gate, z_pool


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_strips_are_means_of_rows_and_of_columns() -> None:
    x = numbers(2, 3, 5, 7)
    rows, columns = strip_pools(x)
    close(rows, torch.stack([x[:, :, :, at] for at in range(7)]).sum(0) / 7)
    close(columns, torch.stack([x[:, :, at] for at in range(5)]).sum(0) / 5)


def test_pools_are_largest_and_mean_over_their_axis() -> None:
    x = numbers(2, 3, 5, 7)
    for axis, size in ((1, 3), (2, 5), (3, 7)):
        layers = [x.select(axis, at) for at in range(size)]
        largest, total = layers[0], layers[0]
        for layer in layers[1:]:
            largest, total = torch.maximum(largest, layer), total + layer
        close(z_pool(x, axis), torch.stack((largest, total / size), 1))


def test_gates_of_places_are_made_of_those_of_their_axes() -> None:
    places, rows, columns = numbers(2, 5, 7), numbers(2, 3, 5), numbers(2, 3, 7)
    coordinate, triplet = coordinate_gate(rows, columns), triplet_gate(places, rows, columns)
    for b in range(2):
        for c in range(3):
            for y in range(5):
                for x in range(7):
                    row, column = rows[b, c, y], columns[b, c, x]
                    close(coordinate[b, c, y, x], row * column)
                    close(triplet[b, c, y, x], (places[b, y, x] + row + column) / 3)


def test_they_have_the_right_slopes() -> None:
    rows, columns = numbers(2, 3, 2).requires_grad_(), numbers(2, 3, 3).requires_grad_()
    places = numbers(2, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(coordinate_gate, (rows, columns))
    assert torch.autograd.gradcheck(triplet_gate, (places, rows, columns))
    features = numbers(2, 3, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: z_pool(x, 2), features)
