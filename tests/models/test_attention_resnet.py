"""Residual networks: published parameter counts, and where their blocks are."""

from typing import Any, cast

import pytest
import torch
import torchvision
from random_numbers import pixels
from torch import Tensor, nn

from visattn.blocks.base import Block
from visattn.models.resnet import AttentionResNet, ResidualUnit


def names(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


COUNTS = {
    20: {
        None: 278_324, "se": 280_697, "cbam": 281_597, "eca": 278_351, "gc": 281_084,
        "triplet": 281_024, "coordinate": 287_276,
    },
    56: {None: 861_620, "cbam": 871_439},
}  # fmt: skip


@pytest.mark.parametrize("depth", COUNTS)
def test_published_parameter_counts(depth: int) -> None:
    for block, expected in COUNTS[depth].items():
        with torch.device("meta"):
            model = AttentionResNet(names(100), depth=depth, block=block)
        assert sum(weight.numel() for weight in model.parameters()) == expected, block


def test_a_unit_is_that_of_torchvision_with_the_block_before_the_addition() -> None:
    class Halved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    projection = nn.Sequential(nn.Conv2d(4, 6, 1, 2, bias=False), nn.BatchNorm2d(6))
    theirs: Any = torchvision.models.resnet.BasicBlock(4, 6, 2, projection).eval()
    ours = ResidualUnit(4, 6, inner=6, stride=2, block=lambda _: Halved()).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 5, 7, generator=torch.Generator().manual_seed(3))
    shortcut = theirs.downsample(x)
    theirs.bn2.weight.data /= 2
    torch.testing.assert_close(ours(x), theirs(x))
    assert not torch.equal(ours(x), shortcut.relu())


def sites(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, Block)]


def test_blocks_are_in_every_unit_and_at_the_input() -> None:
    model = AttentionResNet(names(2), depth=14, block="se")
    assert sites(model) == [f"layer{n}.{unit}.attention" for n in (1, 2, 3) for unit in (0, 1)]
    model = AttentionResNet(names(2), depth=8, block="none", stem_block="None")
    assert (model.block, model.stem_block, sites(model)) == (None, None, [])
    gray: dict[str, Any] = {"img_size": (8, 8), "mean": (0.5,), "std": (0.5,)}
    model = AttentionResNet(names(2), depth=8, stem_block="se", **gray).eval()
    assert sites(model) == ["input_block"]
    with torch.no_grad():
        cast("Any", model.input_block).excite.bias.fill_(-99.0)  # the gate is closed
    scores = model(pixels(2, 1, 8, 8))
    assert torch.equal(scores[0], scores[1])


def test_inner_widths_of_units_are_configurable() -> None:
    weights = AttentionResNet(names(2), depth=8, stage_widths=(17, 37, 71)).state_dict()
    assert [len(weights[f"layer{n}.0.conv1.weight"]) for n in (1, 2, 3)] == [17, 37, 71]
