"""Spatial transformers: identity initialization, sampling, training, recorded region."""

import pytest
import torch
from torch import nn
from torch.nn.functional import affine_grid, grid_sample

from visattn.blocks.spatial_transformer import SpatialTransformer
from visattn.functional.sampling import affine_corners
from visattn.recording.recorder import record


def posed(*pose: float) -> SpatialTransformer:
    """Return a block with a constant theta."""
    block = SpatialTransformer(3)
    with torch.no_grad():
        block.localization.fc2.bias.copy_(torch.tensor(pose))
    return block


@pytest.mark.parametrize("align_corners", [False, True])
def test_it_starts_as_the_identity_and_samples_as_torch_does(align_corners: bool) -> None:
    for size in ((13, 7), (5, 17), (1, 11), (1, 1)):
        x = torch.rand(2, 3, *size)
        y = SpatialTransformer(3, align_corners=align_corners)(x)
        assert (y - x).abs().max() < 1e-6
    x = torch.rand(2, 3, 11, 7)
    for padding in ("zeros", "border", "reflection"):
        block = SpatialTransformer(3, align_corners=align_corners, padding_mode=padding)
        nn.init.normal_(block.localization.fc2.weight)
        theta = block.theta(x)
        assert not torch.equal(theta[0], theta[1])
        grid = affine_grid(theta, [2, 3, 11, 7], align_corners=align_corners)
        expected = grid_sample(x, grid, padding_mode=padding, align_corners=align_corners)
        torch.testing.assert_close(block(x), expected)


def test_theta_maps_the_output_to_the_input() -> None:
    x = torch.rand(2, 3, 5, 11)
    torch.testing.assert_close(posed(-1, 0, 0, 0, 1, 0)(x), x.flip(3), rtol=0, atol=1e-6)
    assert not posed(1, 0, 5, 0, 1, 0)(x).any()


def test_records_the_sampled_region_and_its_corners() -> None:
    block, x = posed(0.5, 0, 0, 0, 0.5, 0), torch.rand(2, 3, 8, 12)
    with record(block) as recording:
        block(x)
    [region] = recording.maps
    expected = torch.zeros(2, 8, 12)
    expected[:, 2:6, 3:9] = 1
    torch.testing.assert_close(region.values, expected)
    corners = affine_corners(block.theta(x), (8, 12))
    frame = torch.tensor([[3.0, 2], [9, 2], [9, 6], [3, 6]])
    torch.testing.assert_close(corners, frame.expand(2, 4, 2))
