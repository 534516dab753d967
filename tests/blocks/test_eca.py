"""Efficient channel attention against timm, and its kernel size."""

import pytest
import torch
from timm.layers.eca import EcaModule

from visattn.blocks.eca import ECA


@pytest.mark.parametrize("channels", [8, 24, 64, 256, 2048])
def test_matches_timm_with_equal_weights(channels: int) -> None:
    theirs, ours = EcaModule(channels), ECA(channels)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, channels, 2, 3)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)


def test_kernel_size_is_configurable() -> None:
    assert ECA(256).conv.weight.shape == (1, 1, 5)
    released = ECA(256, kernel_size=3)
    assert sum(p.numel() for p in released.parameters()) == 3
    theirs = EcaModule(None, kernel_size=3)
    released.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 256, 3, 5)
    torch.testing.assert_close(released(x), theirs(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernel", [0, 4, -3])
def test_even_kernel_size_is_refused(kernel: int) -> None:
    with pytest.raises(ValueError, match=f"kernel_size must be odd, .* got {kernel}"):
        ECA(16, kernel_size=kernel)


def test_resnet50_parameter_count_matches_the_paper() -> None:
    widths = {256: 3, 512: 4, 1024: 6, 2048: 3}
    released = {256: 3, 512: 5, 1024: 5, 2048: 7}
    by_formula = sum(
        times * sum(p.numel() for p in ECA(width).parameters()) for width, times in widths.items()
    )
    as_released = sum(
        times * sum(p.numel() for p in ECA(width, kernel_size=released[width]).parameters())
        for width, times in widths.items()
    )
    assert (by_formula, as_released) == (86, 80)
