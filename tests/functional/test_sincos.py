"""Sine-cosine position embeddings and their resampling against timm and loops."""

from math import cos, floor, sin

import jaxtyping
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


def between(line: list[float], at: float) -> float:
    """Cubic convolution with a = -3/4 of a line with replicated ends, at a fractional position."""

    def kernel(t: float) -> float:
        t = abs(t)
        if t <= 1:
            return 1.25 * t**3 - 2.25 * t**2 + 1
        return -0.75 * (t**3 - 5 * t**2 + 8 * t - 4)

    cells = range(floor(at) - 1, floor(at) + 3)
    return sum(kernel(at - cell) * line[min(max(cell, 0), len(line) - 1)] for cell in cells)


def test_dino_rule_adds_a_tenth_of_a_cell() -> None:
    line = numbers(16)
    for rule, size in (("plain", 32.0), ("dino", 32.1)):
        actual = resample_pos_embed(line[:, None], (1, 16), (1, 32), rule=rule)  # pyright: ignore[reportArgumentType]
        expected = [between(line.tolist(), (x + 0.5) * 16 / size - 0.5) for x in range(32)]
        torch.testing.assert_close(actual[:, 0], torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_invalid_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="embed_dim divisible by 4, got 6"):
        sincos_pos_embed((2, 2), 6)
    with pytest.raises(ValueError, match=r"each cell of the grid of 3 x 5, got 14"):
        resample_pos_embed(numbers(14, 2), (3, 5), (2, 2))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # without shape checks
    with pytest.raises(ValueError, match="rule must be one of timm, plain, dino, got 'cubic'"):
        resample_pos_embed(numbers(15, 2), (3, 5), (2, 2), rule="cubic")  # pyright: ignore[reportArgumentType]
