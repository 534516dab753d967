"""Selective kernels: against timm and the equation, parameter counts, groups."""

import pytest
import torch
from timm.layers.selective_kernel import SelectiveKernel as TimmSelectiveKernel
from torch import nn

from visattn.blocks.selective_kernel import SelectiveKernel, resolve_groups
from visattn.recording.recorder import record


def of_timm(channels: int, branches: int, **options: int) -> tuple[SelectiveKernel, nn.Module]:
    """Return visattn's block and timm's with equal weights."""
    kernels = [3 + 2 * index for index in range(branches)]
    theirs = TimmSelectiveKernel(
        channels, kernel_size=kernels, groups=32, split_input=False, rd_channels=32
    )
    ours = SelectiveKernel(channels, num_branches=branches, **options)
    mine, tensors = ours.state_dict(), list(theirs.state_dict().values())
    assert len(mine) == len(tensors)
    shaped = zip(mine.items(), tensors, strict=True)
    ours.load_state_dict({name: new.reshape(old.shape) for (name, old), new in shaped})
    return ours, theirs


@pytest.mark.parametrize(("channels", "branches"), [(64, 2), (96, 3)])
def test_matches_timm_without_splitting_the_input(channels: int, branches: int) -> None:
    ours, theirs = of_timm(channels, branches)
    x = torch.randn(3, channels, 7, 11)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=0, atol=1e-5)


def test_matches_the_equation() -> None:
    block, x = (
        SelectiveKernel(8, min_hidden_channels=3).double().eval(),
        torch.randn(2, 8, 5, 7).double(),
    )
    features = torch.stack([branch(x) for branch in block.branches])
    pooled = features.sum(0).mean((2, 3))
    scale = 1 / (1 + 1e-5) ** 0.5  # of a normalization with initial statistics
    hidden = (pooled @ block.squeeze.weight.T * scale).clamp_min(0)
    scores = (hidden @ block.select.weight.T).reshape(2, 2, 8)
    weights = scores.exp() / scores.exp().sum(1, keepdim=True)
    expected = torch.einsum("mbcyx,bmc->bcyx", features, weights)
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-10)


def test_records_the_weights_of_the_branches() -> None:
    block = SelectiveKernel(64, num_branches=3).eval()
    with record(block) as recording:
        block(torch.rand(2, 64, 5, 7))
    [weights] = recording.maps
    assert weights.kind == "channel"
    assert weights.values.shape == (2, 3, 64)
    torch.testing.assert_close(weights.values.sum(1), torch.ones(2, 64))


def test_batch_of_one_is_refused_in_training() -> None:
    block, x = SelectiveKernel(64), torch.rand(1, 64, 5, 7)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        block(x)
    assert block.eval()(x).shape == x.shape


def test_non_dividing_groups_are_refused() -> None:
    assert resolve_groups(48, None, usual=32) == 16
    with pytest.raises(ValueError, match="groups must divide the 24 channels, got 32"):
        SelectiveKernel(24, groups=32)
    with pytest.raises(ValueError, match="at least 1, got 0 and 32"):
        SelectiveKernel(24, num_branches=0)
