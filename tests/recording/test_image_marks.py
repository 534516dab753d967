"""Marks: what answers to them in its place is told from what answers elsewhere."""

import torch

from visattn.recording.image_marks import agreement, marked_images
from visattn.recording.marked_probe import lie_on


def cells(rows: int, columns: int) -> torch.Tensor:
    """Return marked images as cells of 7 x 11 pixels with all that lies in each."""
    marked = marked_images(3, (7 * rows, 11 * columns), torch.zeros(1))
    return marked.unfold(2, 7, 7).unfold(3, 11, 11).movedim((4, 5), (2, 3)).flatten(1, 3)


def test_cells_in_their_place_are_told_from_cells_elsewhere() -> None:
    for rows, columns in ((2, 2), (2, 3), (3, 5), (8, 8), (13, 17)):
        straight = cells(rows, columns)
        assert agreement(straight).certain
        everywhere = 5 * torch.randn(4, straight.shape[1], 1, 1)
        assert agreement(straight + everywhere).certain or rows * columns < 6
        order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(5))
        shuffled = straight.flatten(2)[..., order].view_as(straight)
        for moved in (straight.flip(2), straight.flip(3), straight.flip(2, 3), shuffled):
            assert not agreement(moved).certain
        turned = straight.transpose(2, 3).reshape(*straight.shape)
        assert rows * columns == 4 or not agreement(turned).certain
    assert not agreement(torch.zeros(4, 8, 3, 5)).certain
    assert not agreement(torch.full((4, 8, 3, 5), torch.nan)).certain
    assert not agreement(torch.randn(4, 8, 1, 1)).certain


def test_windows_in_the_order_of_their_grid_are_not_the_grid() -> None:
    straight = cells(8, 8)
    windowed = straight.unflatten(3, (2, 4)).unflatten(2, (2, 4)).transpose(3, 4)
    assert not agreement(windowed.reshape(4, -1, 8, 8)).certain
    numbers = torch.arange(64).view(2, 4, 2, 4).transpose(1, 2).reshape(4, 16)
    tokens = windowed.flatten(2).unflatten(2, (4, 16)).transpose(1, 2)
    assert lie_on(tokens, (8, 8), 0, numbers)
    assert not lie_on(tokens, (8, 8), 0, numbers.flip(0))
    assert not lie_on(tokens, (8, 8), 0, None)
    assert lie_on(straight.flatten(2)[:, None], (8, 8), 0, None)
    assert not lie_on(straight.flatten(2)[:, None, :, :63], (8, 8), 0, None)
