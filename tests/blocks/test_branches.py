"""Attention over branches and splits against timm, in float64."""

import torch
from named_weights import fill
from random_numbers import numbers
from timm.layers.selective_kernel import SelectiveKernel as TimmSelectiveKernel
from timm.layers.split_attn import SplitAttn
from torch import nn

from visattn.blocks import SelectiveKernel, SplitAttention
from visattn.recording.recorder import record


def compare(theirs: nn.Module, ours: nn.Module, channels: int, branches: int) -> None:
    """Compare both in training and evaluation; the recorded weights are those of the branches."""
    fill(theirs.double())
    shaped = zip(ours.double().state_dict().items(), theirs.state_dict().values(), strict=True)
    ours.load_state_dict({name: new.reshape(old.shape) for (name, old), new in shaped})
    x = numbers(3, channels, 7, 11)
    for training in (True, False):
        y = ours.train(training)(x)
        torch.testing.assert_close(y, theirs.train(training)(x), rtol=0, atol=1e-10)
    with record(ours) as recording:
        ours(x)
    [weights] = recording.maps
    assert (weights.kind, weights.values.shape) == ("channel", (3, branches, channels))
    if branches > 1:
        total = weights.values.sum(1)
        torch.testing.assert_close(total, torch.ones_like(total))


def test_selective_kernels_match_timm() -> None:
    for channels, branches, groups in ((64, 2, 32), (96, 3, 32), (24, 2, 8)):
        kernels = [3 + 2 * index for index in range(branches)]
        theirs = TimmSelectiveKernel(
            channels, kernel_size=kernels, groups=groups, split_input=False, rd_channels=32
        )
        ours = SelectiveKernel(channels, num_branches=branches)
        assert [branch.get_submodule("0").groups for branch in ours.branches] == [groups] * branches
        compare(theirs, ours, channels, branches)


def test_split_attention_matches_timm() -> None:
    for channels, radix, groups in ((64, 2, 1), (64, 4, 2), (48, 1, 1), (96, 3, 1), (64, 1, 4)):
        theirs = SplitAttn(channels, radix=radix, groups=groups, norm_layer=nn.BatchNorm2d)
        ours = SplitAttention(channels, radix=radix, groups=groups)
        compare(theirs, ours, channels, radix)
