"""Kept tokens of patch dropout, and shifts of shifted patch tokenization."""

import pytest
import torch
from torch import Tensor

from visattn.functional.windows import diagonal_shifts, random_token_indices, scatter_kept_weights


def test_tokens_are_kept_uniformly_and_in_order() -> None:
    torch.manual_seed(3)
    kept = random_token_indices(7000, 7, 3)
    assert kept.shape == (7000, 3)
    assert (kept.diff(dim=1) > 0).all()
    counts = kept.flatten().bincount(minlength=7).double()
    assert ((counts - 3000) ** 2 / 3000).sum() < 22.5  # chi-square, 6 degrees, one in a thousand
    sets = torch.tensor([1 << i for i in range(7)])[kept].sum(1).unique()
    assert len(sets) == 35


@pytest.mark.parametrize("kept", [0, 8])
def test_invalid_numbers_of_kept_tokens_are_refused(kept: int) -> None:
    with pytest.raises(ValueError, match=f"num_kept must be from 1 to 7, got {kept}"):
        random_token_indices(2, 7, kept)


def test_kept_weights_are_scattered_to_their_tokens() -> None:
    weights, kept = torch.rand(2, 3, 5), torch.tensor([[0, 2, 6], [1, 4, 5]])
    result = scatter_kept_weights(weights, kept, num_tokens=9, num_prefix_tokens=2)
    for image in range(2):
        places = [0, 1, *(2 + int(place) for place in kept[image])]
        assert torch.equal(result[image][:, places], weights[image])
        others = sorted(set(range(9)) - set(places))
        assert result[image][:, others].isnan().all()


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
