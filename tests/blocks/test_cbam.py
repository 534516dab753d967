"""CBAM: against the authors' module and timm, parameter counts, recorded maps."""

import pytest
import torch
from timm.layers.cbam import CbamModule
from torch import Tensor, nn

from visattn.blocks.cbam import CBAM
from visattn.recording.recorder import record

STAGES = {
    "resnet50": {256: 3, 512: 4, 1024: 6, 2048: 3},
    "resnet101": {256: 3, 512: 4, 1024: 23, 2048: 3},
    "resnet18": {64: 2, 128: 2, 256: 2, 512: 2},
    "cifar resnet20": {16: 3, 32: 3, 64: 3},
    "cifar resnet56": {16: 9, 32: 9, 64: 9},
}
ADDED = {  # published totals less those of the bare networks
    "resnet50": 28_089_624 - 25_557_032,
    "resnet101": 49_330_172 - 44_549_160,
    "resnet18": 11_779_392 - 11_689_512,
    "cifar resnet20": 281_597 - 278_324,
    "cifar resnet56": 871_439 - 861_620,
}
AUTHORS = {  # names in the authors' checkpoints
    "ChannelGate.mlp.1": "squeeze",
    "ChannelGate.mlp.3": "excite",
    "SpatialGate.spatial.conv": "conv",
    "SpatialGate.spatial.bn": "norm",
}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def authors_state(channels: int, hidden: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = {
        "ChannelGate.mlp.1.weight": (hidden, channels),
        "ChannelGate.mlp.1.bias": (hidden,),
        "ChannelGate.mlp.3.weight": (channels, hidden),
        "ChannelGate.mlp.3.bias": (channels,),
        "SpatialGate.spatial.conv.weight": (1, 2, 7, 7),
        "SpatialGate.spatial.bn.weight": (1,),
        "SpatialGate.spatial.bn.bias": (1,),
        "SpatialGate.spatial.bn.running_mean": (1,),
        "SpatialGate.spatial.bn.running_var": (1,),
    }
    state = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    state["SpatialGate.spatial.bn.running_var"].abs_()
    return state | {"SpatialGate.spatial.bn.num_batches_tracked": torch.tensor(7)}


def as_published(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    """The equations in float64, with loops over positions."""
    named = {name: value.double() for name, value in state.items()}

    def mlp(pooled: Tensor) -> Tensor:
        first = named["ChannelGate.mlp.1.weight"] @ pooled + named["ChannelGate.mlp.1.bias"]
        first = torch.where(first > 0, first, 0)
        return named["ChannelGate.mlp.3.weight"] @ first + named["ChannelGate.mlp.3.bias"]

    bn = "SpatialGate.spatial.bn."
    scale = named[bn + "weight"] / (named[bn + "running_var"] + 1e-5) ** 0.5
    kernel = named["SpatialGate.spatial.conv.weight"][0]
    gated = torch.empty_like(x)
    for b, image in enumerate(x):
        flat = image.flatten(1)
        score = mlp(flat.sum(1) / flat.shape[1]) + mlp(flat.max(1).values)
        scaled = image / (1 + torch.exp(-score))[:, None, None]
        pools = torch.stack((scaled.max(0).values, scaled.sum(0) / len(scaled)))
        padded = torch.zeros(2, x.shape[2] + 6, x.shape[3] + 6, dtype=x.dtype)
        padded[:, 3:-3, 3:-3] = pools
        for i in range(x.shape[2]):
            for j in range(x.shape[3]):
                place = (kernel * padded[:, i : i + 7, j : j + 7]).sum()
                place = (place - named[bn + "running_mean"]) * scale + named[bn + "bias"]
                gated[b, :, i, j] = scaled[:, i, j] / (1 + torch.exp(-place))
    return gated


def test_weights_of_the_authors_reproduce_their_features() -> None:
    state = authors_state(32, 2)
    block = CBAM(32).double().eval()
    renamed = {
        name.replace(theirs, ours): value
        for name, value in state.items()
        for theirs, ours in AUTHORS.items()
        if name.startswith(theirs + ".")
    }
    block.load_state_dict(renamed)
    x = torch.randn(2, 32, 5, 7, generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close(block(x), as_published(x, state), rtol=0, atol=1e-10)


def test_matches_timm_without_biases() -> None:
    ours, theirs = CBAM(32, bias=False, pool_order="mean_max"), CbamModule(32)
    ours.squeeze.weight.data = theirs.channel.fc1.weight.data.flatten(1).clone()
    ours.excite.weight.data = theirs.channel.fc2.weight.data.flatten(1).clone()
    ours.conv.weight.data = theirs.state_dict()["spatial.conv.conv.weight"].clone()
    x = torch.randn(3, 32, 5, 7)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("network", list(STAGES))
def test_parameter_counts_match_the_paper(network: str) -> None:
    added = sum(count(CBAM(c)) * n for c, n in STAGES[network].items())
    assert added == ADDED[network]


def test_recorded_maps_reproduce_the_output() -> None:
    block, x = CBAM(32).eval(), torch.rand(2, 32, 5, 7)
    with record(block) as recording:
        y = block(x)
    channel, place = recording.maps
    assert [(m.site, m.kind) for m in recording.maps] == [
        ("channel_tap", "channel"),
        ("spatial_tap", "gate"),
    ]
    expected = x * channel.values[:, :, None, None] * place.values[:, None]
    torch.testing.assert_close(y, expected)


def test_even_kernel_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kernel_size must be odd.*got 6"):
        CBAM(32, kernel_size=6)
