"""Squeeze and excitation against timm's, with its weights; and how many parameters it has."""

import pytest
import torch
from timm.layers.squeeze_excite import SEModule

from visattn.blocks.channel.squeeze_excite import SqueezeExcite
from visattn.recording.recorder import record


def test_it_is_timms_with_timms_weights() -> None:
    theirs = SEModule(64, rd_ratio=1 / 8)
    ours = SqueezeExcite(64, reduction=8)
    ours.load_state_dict(
        {
            "squeeze.weight": theirs.fc1.weight.flatten(1),
            "squeeze.bias": theirs.fc1.bias,
            "excite.weight": theirs.fc2.weight.flatten(1),
            "excite.bias": theirs.fc2.bias,
        }
    )
    x = torch.randn(3, 64, 5, 7)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("channels", "reduction"), [(64, 16), (256, 16), (24, 4), (8, 16), (1, 2)])
def test_its_parameters_are_those_of_the_closed_form(channels: int, reduction: int) -> None:
    hidden = max(1, channels // reduction)
    biased = SqueezeExcite(channels, reduction=reduction)
    plain = SqueezeExcite(channels, reduction=reduction, bias=False)
    assert sum(p.numel() for p in plain.parameters()) == 2 * channels * hidden
    assert sum(p.numel() for p in biased.parameters()) == 2 * channels * hidden + hidden + channels


def test_what_is_seen_is_one_gate_per_channel() -> None:
    block, x = SqueezeExcite(8), torch.randn(2, 8, 5, 7)
    with record(block) as seen:
        y = block(x)
    [gate] = seen.maps
    assert gate.kind == "channel"
    torch.testing.assert_close(y, x * gate.values[:, :, None, None])


def test_a_wrong_width_is_named() -> None:
    with pytest.raises(ValueError, match=r"takes \[batch, 8, height, width\], got \[2, 7, 5, 3\]"):
        SqueezeExcite(8)(torch.zeros(2, 7, 5, 3))
