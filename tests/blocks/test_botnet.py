"""Self-attention with relative positions against a loop and timm."""

from typing import Any

import pytest
import torch
from random_numbers import numbers
from timm.layers.bottleneck_attn import BottleneckAttn

from visattn.blocks.botnet import BoTNetAttention


@pytest.mark.parametrize(
    "options", [{}, {"num_heads": 3, "head_dim": 5, "max_relative_position": 1}]
)
def test_matches_the_equation(options: dict[str, int]) -> None:
    block, x = BoTNetAttention(12, **options).double(), numbers(2, 12, 3, 5)
    heads, dim = options.get("num_heads", 4), options.get("head_dim", 3)
    reach = options.get("max_relative_position", 13)
    y = block(x)
    weight = block.project.weight[:, :, 0, 0]
    inner = heads * dim
    places = [(row, column) for row in range(3) for column in range(5)]
    for b in range(2):
        for h in range(heads):
            wq = weight[h * dim : (h + 1) * dim]
            wk = weight[inner + h * dim : inner + (h + 1) * dim]
            own = slice(h * 12 // heads, (h + 1) * 12 // heads)
            wv = weight[2 * inner :][own]
            for i in places:
                query = wq @ x[b, :, *i]
                scores = []
                for j in places:
                    down = max(-reach, min(reach, j[0] - i[0])) + reach
                    across = max(-reach, min(reach, j[1] - i[1])) + reach
                    place = block.rows[down] + block.columns[across]
                    scores.append(query @ (wk @ x[b, :, *j] + place) / dim**0.5)
                weights = torch.stack(scores).softmax(0)
                output = sum(weights[n] * (wv @ x[b, :, *j]) for n, j in enumerate(places))
                torch.testing.assert_close(y[b, own, *i], output)


def test_matches_timm_with_scaled_positions() -> None:
    theirs = BottleneckAttn(
        12, feat_size=(5, 7), num_heads=4, dim_head=3, qkv_bias=False, scale_pos_embed=True
    ).double()
    ours = BoTNetAttention(12, max_relative_position=6).double()
    with torch.no_grad():
        ours.project.weight.copy_(theirs.qkv.weight)
        ours.rows[2:-2] = theirs.pos_embed.height_rel
        ours.columns[:] = theirs.pos_embed.width_rel
    x = numbers(2, 12, 5, 7)
    torch.testing.assert_close(ours(x), theirs(x))


def test_relative_positions_distinguish_equal_features() -> None:
    block = BoTNetAttention(8)
    captured: list[Any] = []
    block.tap.register_forward_hook(lambda *passed: captured.append(passed[-1]))
    block(torch.ones(1, 8, 3, 5))
    assert captured[0].shape == (1, 4, 15, 15)
    assert captured[0].std(-1).min() > 0


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match="heads must divide the 12 channels, got 5"):
        BoTNetAttention(12, num_heads=5)
    with pytest.raises(ValueError, match="heads must divide the 12 channels, got 0"):
        BoTNetAttention(12, num_heads=0)
    with pytest.raises(ValueError, match="got 0 and 13"):
        BoTNetAttention(12, head_dim=0)
    with pytest.raises(ValueError, match="got 3 and -1"):
        BoTNetAttention(12, max_relative_position=-1)
