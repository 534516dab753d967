"""Quadrant images tell aligned grids from misaligned ones."""

import torch

from visattn.recording.quadrant_probe import grid_alignment, quadrant_images, tokens_aligned


def cells(rows: int, columns: int) -> torch.Tensor:
    """Return quadrant images as a grid of cells of 7 x 11 pixels, with the pixels as channels."""
    images = quadrant_images(3, (7 * rows, 11 * columns), torch.zeros(1))
    return images.unfold(2, 7, 7).unfold(3, 11, 11).movedim((4, 5), (2, 3)).flatten(1, 3)


def test_aligned_and_misaligned_grids_are_distinguished() -> None:
    for rows, columns in ((2, 2), (2, 3), (3, 5), (8, 8), (13, 17)):
        upright = cells(rows, columns)
        assert grid_alignment(upright).aligned
        offset = 5 * torch.randn(4, upright.shape[1], 1, 1)
        assert grid_alignment(upright + offset).aligned or rows * columns < 6
        order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(5))
        shuffled = upright.flatten(2)[..., order].view_as(upright)
        for misaligned in (upright.flip(2), upright.flip(3), upright.flip(2, 3), shuffled):
            assert not grid_alignment(misaligned).aligned
        transposed = upright.transpose(2, 3).reshape(*upright.shape)
        assert rows * columns == 4 or not grid_alignment(transposed).aligned
    assert not grid_alignment(torch.zeros(4, 8, 3, 5)).aligned
    assert not grid_alignment(torch.full((4, 8, 3, 5), torch.nan)).aligned
    assert not grid_alignment(torch.randn(4, 8, 1, 1)).aligned


def test_tokens_in_window_order_are_aligned_only_with_their_windows() -> None:
    upright = cells(8, 8)
    windowed = upright.unflatten(3, (2, 4)).unflatten(2, (2, 4)).transpose(3, 4)
    assert not grid_alignment(windowed.reshape(4, -1, 8, 8)).aligned
    windows = torch.arange(64).view(2, 4, 2, 4).transpose(1, 2).reshape(4, 16)
    tokens = windowed.flatten(2).unflatten(2, (4, 16)).transpose(1, 2)
    assert tokens_aligned(tokens, (8, 8), 0, windows)
    assert not tokens_aligned(tokens, (8, 8), 0, windows.flip(0))
    assert not tokens_aligned(tokens, (8, 8), 0, None)
    assert tokens_aligned(upright.flatten(2)[:, None], (8, 8), 0, None)
    assert not tokens_aligned(upright.flatten(2)[:, None, :, :63], (8, 8), 0, None)
