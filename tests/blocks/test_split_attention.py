"""Split attention: against timm, parameter counts, odd widths."""

import pytest
import torch
from timm.layers.split_attn import SplitAttn
from torch import nn

from visattn.blocks.split_attention import SplitAttention
from visattn.recording.recorder import record


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("channels", "radix", "groups"), [(64, 2, 1), (64, 4, 2), (48, 1, 1), (96, 3, 1), (64, 1, 4)]
)
def test_matches_timm(channels: int, radix: int, groups: int) -> None:
    theirs = SplitAttn(channels, radix=radix, groups=groups, norm_layer=nn.BatchNorm2d)
    ours = SplitAttention(channels, radix=radix, groups=groups)
    assert count(ours) == count(theirs)
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    x = torch.randn(3, channels, 7, 11)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("radix", [2, 3])
def test_records_the_weights_of_the_splits(radix: int) -> None:
    block = SplitAttention(12, radix=radix).eval()
    with record(block) as recording:
        block(torch.rand(2, 12, 5, 7))
    [weights] = recording.maps
    assert weights.kind == "channel"
    assert weights.values.shape == (2, radix, 12)
    torch.testing.assert_close(weights.values.sum(1), torch.ones(2, 12))


def test_batch_of_one_is_refused_in_training() -> None:
    block, x = SplitAttention(12), torch.rand(1, 12, 5, 7)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        block(x)
    assert block.eval()(x).shape == x.shape


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match="groups must divide the 12 channels, got 5"):
        SplitAttention(12, groups=5)
    with pytest.raises(ValueError, match="at least 1, got 0 and 32"):
        SplitAttention(12, radix=0)
