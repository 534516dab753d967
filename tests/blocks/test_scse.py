"""scSE: equation of four combinations, parameter counts, recorded maps."""

import pytest
import torch
from torch import nn

from visattn.blocks.scse import SCSE, Combination
from visattn.recording.recorder import record


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("combine", ["add", "max", "mul", "concat"])
def test_matches_the_equation(combine: Combination) -> None:
    block = SCSE(6, combine=combine).double()
    x = torch.randn(2, 6, 5, 7, generator=torch.Generator().manual_seed(0)).double()
    hidden = x.mean((2, 3)) @ block.squeeze.weight.T + block.squeeze.bias
    score = hidden.clamp_min(0) @ block.excite.weight.T + block.excite.bias
    by_channel = x / (1 + torch.exp(-score))[:, :, None, None]
    place = (block.project.weight[0] * x).sum(1, keepdim=True)
    by_place = x / (1 + torch.exp(-place))
    if combine == "concat":
        weight = block.state_dict()["merge.weight"][:, :, 0, 0]
        expected = torch.einsum("oc,bcyx->boyx", weight[:, :6], by_channel)
        expected = expected + torch.einsum("oc,bcyx->boyx", weight[:, 6:], by_place)
    else:
        combined = {
            "add": by_channel + by_place,
            "max": torch.where(by_channel > by_place, by_channel, by_place),
            "mul": by_channel * by_place,
        }
        expected = combined[combine]
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-10)


def test_parameter_counts_match_the_paper() -> None:
    stages = {256: 3, 512: 4, 1024: 6, 2048: 3}
    added = sum(count(SCSE(channels)) * sites for channels, sites in stages.items())
    assert added == 45_714_344 - 25_557_032


def test_recorded_maps_reproduce_the_output() -> None:
    block, x = SCSE(6), torch.rand(2, 6, 5, 7)
    with record(block) as recording:
        y = block(x)
    channel, place = recording.maps
    assert [(m.site, m.kind) for m in recording.maps] == [
        ("channel_tap", "channel"),
        ("spatial_tap", "gate"),
    ]
    expected = x * channel.values[:, :, None, None] + x * place.values[:, None]
    torch.testing.assert_close(y, expected)
