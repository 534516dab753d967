"""Global context: identity initialization, and equality with timm's additive fusion."""

import pytest
import torch
from timm.layers.global_context import GlobalContext as TimmContext

from visattn.blocks.global_context import GlobalContext
from visattn.recording.recorder import record


def awake(channels: int, reduction: int = 16) -> GlobalContext:
    block = GlobalContext(channels, reduction=reduction)
    torch.nn.init.normal_(block.excite.weight)
    torch.nn.init.normal_(block.excite.bias)
    return block


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_identity_initialization_is_exact(scale: float, kind: torch.dtype) -> None:
    x = (scale * torch.randn(2, 24, 5, 7)).to(kind)
    assert torch.equal(GlobalContext(24).to(kind)(x), x)


def test_matches_timm_with_equal_weights() -> None:
    theirs = TimmContext(64, fuse_add=True, fuse_scale=False, rd_ratio=1 / 8)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter))
    ours = GlobalContext(64, reduction=8)
    pairs = {
        "score": theirs.get_submodule("conv_attn"),
        "squeeze": theirs.get_submodule("mlp_add.fc1"),
        "norm": theirs.get_submodule("mlp_add.norm"),
        "excite": theirs.get_submodule("mlp_add.fc2"),
    }
    ours.load_state_dict(
        {
            f"{name}.{part}": value.flatten(1) if value.ndim > 1 else value
            for name, module in pairs.items()
            for part, value in module.state_dict().items()
        }
    )
    ours.norm.eps = 1e-6  # theirs
    x = torch.randn(3, 64, 5, 7)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 4, 8, 16, 24, 64])
def test_added_context_depends_on_the_input_at_any_width(channels: int) -> None:
    block = awake(channels)
    with torch.no_grad():
        for parameter in block.squeeze.parameters():
            parameter.abs_()  # every ReLU is active for positive input
    x = torch.rand(7, channels, 3, 5) * torch.arange(1.0, 8.0)[:, None, None, None]
    x = x + torch.rand(7, channels, 1, 1)
    added = (block(x) - x).mean((2, 3))
    assert added.std(0).amax() > 1e-3 * added.abs().amax()


def test_records_the_weights_of_the_positions() -> None:
    block, x = awake(16), torch.randn(2, 16, 5, 7)
    with record(block) as recording:
        y = block(x)
    [rows] = recording.maps
    assert rows.values.shape == (2, 1, 5, 7)
    torch.testing.assert_close(rows.values.sum((2, 3)), torch.ones(2, 1))
    torch.testing.assert_close(block(x), y, rtol=0, atol=0)
