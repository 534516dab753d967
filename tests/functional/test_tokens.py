"""Shifts of shifted patch tokenization."""

import torch
from torch import Tensor

from visattn.functional.windows import diagonal_shifts


def moved(images: Tensor, down: int, right: int) -> Tensor:
    """The same shift as a loop, with zeros from outside."""
    copy = torch.zeros_like(images)
    _, _, height, width = images.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                copy[:, :, y, x] = images[:, :, y - down, x - right]
    return copy


def test_diagonal_shifts_have_the_authors_order() -> None:
    images = torch.randn(2, 3, 7, 11)
    result = diagonal_shifts(images, (2, 3)).unflatten(1, (5, 3))
    moves = [(0, 0), (2, 3), (2, -3), (-2, 3), (-2, -3)]
    for number, move in enumerate(moves):
        assert torch.equal(result[:, number], moved(images, *move))


def test_diagonal_shifts_are_slices_of_the_padded_image() -> None:
    images = torch.randn(1, 2, 6, 6)
    wide = torch.nn.functional.pad(images, (2, 2, 2, 2))
    cuts = [wide[..., y : y + 6, x : x + 6] for y in (0, 4) for x in (0, 4)]
    assert torch.equal(diagonal_shifts(images, (2, 2)), torch.cat([images, *cuts], 1))


def test_zero_shift_repeats_the_image() -> None:
    images = torch.randn(1, 2, 3, 5)
    assert torch.equal(diagonal_shifts(images, (0, 0)), images.repeat(1, 5, 1, 1))
