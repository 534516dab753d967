"""Squeeze-and-excitation and effective squeeze-and-excitation, compared with timm."""

import pytest
import torch
from timm.layers.squeeze_excite import EffectiveSEModule, SEModule

from visattn.blocks.squeeze_excite import EffectiveSE, SqueezeExcite
from visattn.recording.recorder import record


def test_se_matches_timm() -> None:
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


def test_se_records_one_gate_per_channel() -> None:
    block, x = SqueezeExcite(8), torch.randn(2, 8, 5, 7)
    with record(block) as records:
        y = block(x)
    [gate] = records.maps
    assert gate.kind == "channel"
    torch.testing.assert_close(y, x * gate.values[:, :, None, None])


def test_wrong_number_of_channels_raises() -> None:
    with pytest.raises(ValueError, match=r"takes \[batch, 8, height, width\], got \[2, 7, 5, 3\]"):
        SqueezeExcite(8)(torch.zeros(2, 7, 5, 3))


def test_effective_se_matches_timm() -> None:
    theirs, ours = EffectiveSEModule(13), EffectiveSE(13)
    ours.load_state_dict(
        {"excite.weight": theirs.fc.weight.flatten(1), "excite.bias": theirs.fc.bias}
    )
    x = 9 * torch.randn(3, 13, 5, 7)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-5)
