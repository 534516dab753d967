"""Sine-cosine position embeddings and their resampling against timm and loops."""

from math import cos, sin

import pytest
import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from torch import Tensor

from visattn.functional.positions import resample_pos_embed, sincos_pos_embed


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def test_sincos_matches_timm_and_a_loop() -> None:
    result = sincos_pos_embed((3, 5), 12)
    theirs = build_sincos2d_pos_embed([3, 5], 12).unflatten(1, (2, 2, 3)).transpose(1, 2)
    torch.testing.assert_close(result, theirs.flatten(1))  # timm: both sines, then both cosines
    for y in range(3):
        for x in range(5):
            waves = [f(place / 10000 ** (i / 3)) for place in (y, x) for f in (sin, cos)
                     for i in range(3)]  # fmt: skip
            torch.testing.assert_close(result[y * 5 + x], torch.tensor(waves))


def test_resampling_matches_timm() -> None:
    positions = numbers(15, 7)
    for new in ((4, 11), (2, 2), (5, 3)):
        theirs = resample_abs_pos_embed(positions[None], list(new), [3, 5], num_prefix_tokens=0)
        torch.testing.assert_close(resample_pos_embed(positions, (3, 5), new), theirs[0])


def test_a_dimension_that_is_no_multiple_of_4_is_refused() -> None:
    with pytest.raises(ValueError, match="embed_dim divisible by 4, got 6"):
        sincos_pos_embed((2, 2), 6)
