"""Rotary position embeddings against timm, and their dependence on offsets only."""

import pytest
import torch
from timm.layers.pos_embed_sincos import apply_rot_embed, build_rotary_pos_embed
from torch import Tensor

from visattn.functional.positions import apply_rotary, rotary_cos_sin


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def test_rotary_embedding_matches_timm() -> None:
    x, (cosines, sines) = numbers(2, 3, 35, 12), rotary_cos_sin((5, 7), 12)
    sin, cos = build_rotary_pos_embed([5, 7], dim=12, temperature=100.0, in_pixels=False)
    torch.testing.assert_close(cosines.repeat_interleave(2, -1), cos)
    torch.testing.assert_close(apply_rotary(x, cosines, sines), apply_rot_embed(x, sin, cos))


def test_dot_products_depend_on_the_offset_only() -> None:
    cosines, sines = (part.unflatten(0, (7, 9)) for part in rotary_cos_sin((7, 9), 8))
    query, key = numbers(2, 1, 8)

    def product(y: int, x: int, v: int, u: int) -> Tensor:
        turned = apply_rotary(query, cosines[y, x, None], sines[y, x, None])
        return (turned * apply_rotary(key, cosines[v, u, None], sines[v, u, None])).sum()

    torch.testing.assert_close(product(1, 2, 3, 7), product(4, 3, 6, 8))
    assert not torch.allclose(product(1, 2, 3, 7), product(1, 2, 7 - 1, 7))
    torch.testing.assert_close(product(5, 5, 5, 5), (query * key).sum())


def test_norms_and_dtypes_are_unchanged() -> None:
    x, turns = numbers(1, 6, 8), rotary_cos_sin((2, 3), 8)
    torch.testing.assert_close(apply_rotary(x, *turns).norm(dim=-1), x.norm(dim=-1))
    assert apply_rotary(x.bfloat16(), *turns).dtype == torch.bfloat16


def test_invalid_head_dim_is_refused() -> None:
    with pytest.raises(ValueError, match="a head dimension divisible by 4, got 6"):
        rotary_cos_sin((2, 2), 6)
