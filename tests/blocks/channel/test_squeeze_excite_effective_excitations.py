"""Effective squeeze and excitation against timm's, with its weights."""

import pytest
import torch
from timm.layers.squeeze_excite import EffectiveSEModule

from visattn.blocks.channel.squeeze_excite import EffectiveSE


def test_it_is_timms_with_timms_weights() -> None:
    theirs, ours = EffectiveSEModule(13), EffectiveSE(13)
    ours.load_state_dict(
        {"excite.weight": theirs.fc.weight.flatten(1), "excite.bias": theirs.fc.bias}
    )
    x = 9 * torch.randn(3, 13, 5, 7)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 24, 256])
def test_its_parameters_are_those_of_the_closed_form(channels: int) -> None:
    block = EffectiveSE(channels)
    assert sum(p.numel() for p in block.parameters()) == channels * channels + channels
