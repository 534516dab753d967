"""Spatial transformers: identity initialization, training, recorded region and corners."""

import pytest
import torch
from torch import Tensor, nn

from visattn.blocks.spatial_transformer import SpatialTransformer
from visattn.functional.sampling import PaddingMode, affine_corners, affine_sample
from visattn.recording.recorder import record


def posed(block: SpatialTransformer, *pose: float) -> SpatialTransformer:
    """Return the block with a constant theta."""
    with torch.no_grad():
        block.localization.fc2.bias.copy_(torch.tensor(pose))
    return block


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(13, 7), (5, 17), (1, 11), (1, 1)])
def test_new_block_is_the_identity(align_corners: bool, size: tuple[int, int]) -> None:
    x = torch.rand(2, 3, *size)
    y = SpatialTransformer(3, align_corners=align_corners)(x)
    assert (y - x).abs().max() < 1e-6


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_at_the_positions_of_theta(align_corners: bool, padding: PaddingMode) -> None:
    block = SpatialTransformer(3, align_corners=align_corners, padding_mode=padding)
    nn.init.normal_(block.localization.fc2.weight)
    x = torch.rand(2, 3, 11, 7)
    theta = block.theta(x)
    assert not torch.equal(theta[0], theta[1])
    expected = affine_sample(x, theta, align_corners=align_corners, padding_mode=block.padding_mode)
    assert torch.equal(block(x), expected)


def test_flipping_theta_flips_the_image() -> None:
    x = torch.rand(2, 3, 5, 11)
    y = posed(SpatialTransformer(3), -1, 0, 0, 0, 1, 0)(x)
    torch.testing.assert_close(y, x.flip(3), rtol=0, atol=1e-6)


def test_outside_of_the_image_is_zero() -> None:
    y = posed(SpatialTransformer(3), 1, 0, 5, 0, 1, 0)(torch.rand(2, 3, 5, 11))
    assert not y.any()


def test_records_the_sampled_region_and_its_corners() -> None:
    block = posed(SpatialTransformer(3), 0.5, 0, 0, 0, 0.5, 0)
    x = torch.rand(2, 3, 8, 12)
    with record(block) as recording:
        block(x)
    [region] = recording.maps
    assert region.kind == "gate"
    expected = torch.zeros(2, 8, 12)
    expected[:, 2:6, 3:9] = 1
    torch.testing.assert_close(region.values, expected)
    corners = affine_corners(block.theta(x), (8, 12))
    frame = torch.tensor([[3.0, 2], [9, 2], [9, 6], [3, 6]])
    torch.testing.assert_close(corners, frame.expand(2, 4, 2))


def spots(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images with a bright spot, and its position from -1 to 1, x before y."""
    random = torch.Generator().manual_seed(seed)
    places = 1.2 * torch.rand(count, 2, generator=random) - 0.6
    rows = torch.linspace(-1, 1, 17)[:, None]
    columns = torch.linspace(-1, 1, 13)
    x, y = places[:, 0, None, None], places[:, 1, None, None]
    return torch.exp(-((columns - x).square() + (rows - y).square()) / 0.2)[:, None], places


def test_learns_to_center_a_spot() -> None:
    """The loss compares only the output; theta follows the spot."""
    torch.manual_seed(0)
    block = SpatialTransformer(1, kernel_size=3, hidden_channels=8)
    optimizer = torch.optim.Adam(block.parameters(), lr=0.01)
    middle = torch.exp(
        -(torch.linspace(-1, 1, 13).square() + torch.linspace(-1, 1, 17)[:, None].square()) / 0.2
    )
    for step in range(100):
        images, _ = spots(32, seed=step)
        optimizer.zero_grad()
        (block(images) - middle).square().mean().backward()
        optimizer.step()
    images, places = spots(64, seed=1000)
    shifts = block.theta(images)[:, :, 2]
    assert (shifts - places).abs().mean() < 0.1 < places.abs().mean()


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel_size must be odd.*got 4"):
        SpatialTransformer(3, kernel_size=4)
    with pytest.raises(ValueError, match="hidden_channels must be at least 1, got 0"):
        SpatialTransformer(3, hidden_channels=0)
