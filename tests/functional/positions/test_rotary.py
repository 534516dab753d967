"""Positions as rotations: against timm's, and the law that makes them positions."""

import pytest
import torch
from timm.layers.pos_embed_sincos import apply_rot_embed, build_rotary_pos_embed
from torch import Tensor

from visattn.functional.positions.rotary import grid_rotations, rotated


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def test_rotations_are_timms() -> None:
    x, (cosines, sines) = numbers(2, 3, 35, 12), grid_rotations((5, 7), 12)
    sin, cos = build_rotary_pos_embed([5, 7], dim=12, temperature=100.0, in_pixels=False)
    torch.testing.assert_close(cosines.repeat_interleave(2, -1), cos)
    torch.testing.assert_close(rotated(x, cosines, sines), apply_rot_embed(x, sin, cos))


def test_products_depend_on_the_offset_alone() -> None:
    cosines, sines = (part.unflatten(0, (7, 9)) for part in grid_rotations((7, 9), 8))
    query, key = numbers(2, 1, 8)

    def product(y: int, x: int, v: int, u: int) -> Tensor:
        turned = rotated(query, cosines[y, x, None], sines[y, x, None])
        return (turned * rotated(key, cosines[v, u, None], sines[v, u, None])).sum()

    torch.testing.assert_close(product(1, 2, 3, 7), product(4, 3, 6, 8))
    assert not torch.allclose(product(1, 2, 3, 7), product(1, 2, 7 - 1, 7))
    torch.testing.assert_close(product(5, 5, 5, 5), (query * key).sum())


def test_lengths_and_types_stay() -> None:
    x, turns = numbers(1, 6, 8), grid_rotations((2, 3), 8)
    torch.testing.assert_close(rotated(x, *turns).norm(dim=-1), x.norm(dim=-1))
    assert rotated(x.bfloat16(), *turns).dtype == torch.bfloat16


def test_a_head_that_cannot_be_turned_is_refused() -> None:
    with pytest.raises(ValueError, match="heads of a width that 4 divides, got 6"):
        grid_rotations((2, 2), 6)
