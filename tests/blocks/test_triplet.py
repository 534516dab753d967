"""Triplet attention against the procedure of the paper."""

import pytest
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.blocks.triplet import AxisPairGate, TripletAttention


def trained(channels: int, kernel: int) -> TripletAttention:
    block = TripletAttention(channels, kernel_size=kernel).double().eval()
    with torch.no_grad():
        for seed, state in enumerate(block.state_dict().values()):
            if state.is_floating_point():
                state.copy_(numbers(*state.shape, seed=seed).abs())
    return block


def gated(gate: AxisPairGate, x: Tensor) -> Tensor:
    """Return x under the gate of its last two axes, with loops; x is `b q y x`, any q."""
    weight, kernel = gate.conv.weight[0], gate.conv.kernel_size[0]
    norm = gate.norm.state_dict()
    spread = (norm["running_var"] + gate.norm.eps).sqrt()
    y, half = torch.empty_like(x), kernel // 2
    for b, image in enumerate(x):
        pools = torch.stack((image.sort(0).values[-1], image.sum(0) / len(image)))
        for v in range(x.shape[2]):
            for u in range(x.shape[3]):
                score = torch.zeros(1, dtype=x.dtype)
                for dv in range(kernel):
                    for du in range(kernel):
                        at = v + dv - half, u + du - half
                        if 0 <= at[0] < x.shape[2] and 0 <= at[1] < x.shape[3]:
                            score = score + weight[:, dv, du] @ pools[:, at[0], at[1]]
                score = (score - norm["running_mean"]) / spread
                score = score * gate.norm.weight + gate.norm.bias
                y[b, :, v, u] = image[:, v, u] / (1 + (-score).exp())
    return y


@pytest.mark.parametrize("kernel", [3, 7])
@torch.no_grad()
def test_matches_the_paper(kernel: int) -> None:
    block, x = trained(3, kernel), numbers(2, 3, 5, 7)
    channel_width = gated(block.columns, x.permute(0, 2, 1, 3)).permute(0, 2, 1, 3)
    height_channel = gated(block.rows, x.permute(0, 3, 2, 1)).permute(0, 3, 2, 1)
    height_width = gated(block.places, x)
    wanted = (height_width + channel_width + height_channel) / 3
    torch.testing.assert_close(block(x), wanted, rtol=0, atol=1e-10)


def test_even_kernel_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel_size must be odd, .* got 6"):
        TripletAttention(64, kernel_size=6)


def test_single_position_is_refused_in_training() -> None:
    block = TripletAttention(5)
    assert block(torch.randn(2, 5, 1, 1)).isfinite().all()
    assert block(torch.randn(1, 5, 1, 2)).isfinite().all()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        block(torch.randn(1, 5, 1, 1))
