"""Converted weights of other libraries give equal outputs."""

from typing import Any

import pytest
import torch
from host_models import image, residual_net
from timm.layers.cbam import CbamModule
from timm.layers.eca import EcaModule
from timm.layers.squeeze_excite import SEModule
from timm.models.resnet import Bottleneck, ResNet
from torch import Tensor, nn

from visattn.blocks.registry import create_block
from visattn.insertion.insertion import Init, insert
from visattn.insertion.weights import convert_block_state_dict, convert_model_state_dict


def features() -> Tensor:
    return torch.randn(2, 32, 5, 7)


def loaded(block: nn.Module, theirs: nn.Module) -> nn.Module:
    block.load_state_dict(convert_block_state_dict(theirs.state_dict(), block))
    return block.eval()


def stirred(theirs: nn.Module) -> nn.Module:
    """The third-party block with random weights and statistics."""
    for key, value in theirs.state_dict().items():
        if value.is_floating_point():
            value.uniform_(*((0.5, 1.5) if key.endswith("var") else (-0.6, 0.6)))
    return theirs.eval()


@pytest.mark.parametrize(
    ("name", "theirs", "options"),
    [
        ("se", SEModule(32, rd_channels=4), {"reduction": 8}),
        ("se", SEModule(32, rd_channels=4, bias=False), {"reduction": 8}),
        ("eca", EcaModule(32), {}),
        ("cbam", CbamModule(32), {}),
        ("cbam", CbamModule(32), {"pool_order": "mean_max", "bias": False}),
    ],
)
def test_weights_of_timm_blocks_convert(
    name: str, theirs: nn.Module, options: dict[str, Any]
) -> None:
    x = features()
    ours = loaded(create_block(name, 32, **options), stirred(theirs))
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)


class AuthorsCbam(nn.Module):
    """CBAM with the parameter names of attention-module, and its equations."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        mlp = (nn.Flatten(), nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels))
        self.ChannelGate = nn.ModuleDict({"mlp": nn.Sequential(*mlp)})
        self.conv, self.bn = nn.Conv2d(2, 1, 7, padding=3, bias=False), nn.BatchNorm2d(1)
        spatial = nn.ModuleDict({"conv": self.conv, "bn": self.bn})
        self.SpatialGate = nn.ModuleDict({"spatial": spatial})

    def forward(self, x: Tensor) -> Tensor:
        mlp = self.ChannelGate["mlp"]
        pools = mlp(x.mean((2, 3), keepdim=True)) + mlp(x.amax((2, 3), keepdim=True))
        x = x * pools.sigmoid()[:, :, None, None]
        places = torch.stack([x.amax(1), x.mean(1)], 1)
        return x * self.bn(self.conv(places)).sigmoid()


@pytest.mark.parametrize("pool_order", ["max_mean", "mean_max"])
def test_weights_of_the_authors_cbam_convert(pool_order: str) -> None:
    x, theirs = features(), stirred(AuthorsCbam(32, 2))
    gates = {key: value for key, value in theirs.state_dict().items() if "Gate" in key}
    ours = create_block("cbam", 32, pool_order=pool_order).eval()
    ours.load_state_dict(convert_block_state_dict(gates, ours))
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-6, atol=1e-6)


def eight_wide(channels: int) -> nn.Module:
    """Squeeze-and-excitation as in timm when a sixteenth is less than eight channels."""
    return create_block("se", channels, reduction=channels // 8)


@pytest.mark.parametrize("init", ["paper", "identity"])
def test_weights_of_a_whole_timm_network_convert(init: Init) -> None:
    cell: Any = Bottleneck  # timm's annotation expects an instance
    plain = ResNet(cell, (1, 1, 1, 1), 7, channels=(16, 16, 32, 32)).eval()
    attention = {"attn_layer": "se"}
    theirs = ResNet(cell, (1, 1, 1, 1), 7, channels=(16, 16, 32, 32), block_args=attention)
    stirred(theirs)
    x = torch.randn(2, 3, 64, 64)
    insert(plain, eight_wide, position="residual", example=x, init=init)
    state = {f"module.{key}": value for key, value in theirs.state_dict().items()}
    assert str(plain.load_state_dict(convert_model_state_dict(state, plain))).startswith(
        "<All keys matched"
    )
    ours, image = (
        plain.double(),
        x.double(),
    )  # rounding accumulates over the layers in single precision
    torch.testing.assert_close(ours(image), theirs.double()(image), rtol=1e-10, atol=1e-10)


def test_mismatching_weights_are_refused() -> None:
    weights = SEModule(32, rd_channels=4).state_dict()
    with pytest.raises(
        ValueError, match=r"fc1.weight is \[4, 32, 1, 1\], and squeeze.weight of se is"
    ):
        convert_block_state_dict(weights, create_block("se", 32))
    with pytest.raises(
        ValueError, match=r"fc1.weight has no counterpart in eca, whose keys are conv.weight"
    ):
        convert_block_state_dict(weights, create_block("eca", 32))
    unbiased = create_block("se", 32, bias=False)
    with pytest.raises(ValueError, match=r"fc1.bias has no counterpart in se, whose keys are sq"):
        convert_block_state_dict(SEModule(32, rd_channels=2).state_dict(), unbiased)
    with pytest.raises(ValueError, match="converted for se, eca, cbam, not for gc"):
        convert_block_state_dict(weights, create_block("gc", 32))
    del weights["fc2.weight"]
    with pytest.raises(ValueError, match=r"excite.weight of se is missing"):
        convert_block_state_dict(weights, create_block("se", 32, reduction=8))


def test_mismatching_networks_are_refused() -> None:
    model = residual_net()
    with pytest.raises(
        ValueError, match="nothing was inserted into this Sequential; call insert first"
    ):
        convert_model_state_dict(model.state_dict(), model)
    insert(model, ["se", "eca"], position="residual", example=image(), init="paper")
    with pytest.raises(ValueError, match=r"no block weights next to 1.bn2; expected a prefix of"):
        convert_model_state_dict(residual_net().state_dict(), model)
    state = residual_net().state_dict() | {"1.se.fc1.weight": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"single registered block, not se \+ eca"):
        convert_model_state_dict(state, model)
