"""Costs and parameter counts of models and blocks against published values and formulas."""

import pytest
import torch
from host_models import Doubled, hollow, image, residual_net
from torch import nn
from torchvision.models import resnet50

from visattn.blocks.squeeze_excite import SqueezeExcite
from visattn.insertion.cost import summary
from visattn.insertion.insertion import insert


def test_resnet_50_costs_match_the_published_values() -> None:
    bare = summary(hollow(resnet50).to("meta"))
    assert (bare.num_parameters, len(bare.rows)) == (25_557_032, 1)
    assert f"{bare.macs / 1e9:.4f}" == "4.0892"


@pytest.mark.parametrize(
    ("name", "total"), [("se", "4.0917"), ("cbam", "4.0956"), ("gc", "4.0972"), ("simam", "4.0892")]
)
def test_block_costs_match_the_published_values(name: str, total: str) -> None:
    extra = 0
    units = {256: (3, 56), 512: (4, 28), 1024: (6, 14), 2048: (3, 7)}
    for channels, (blocks, side) in units.items():
        host = nn.Sequential(nn.Identity())
        x = torch.zeros(1, channels, side, side)
        insert(host, name, position="0", example=x, init="paper")
        extra += blocks * summary(host, x).macs
    if name == "gc":  # its products of features with weights of positions are in no such table
        extra -= sum(n * c * side**2 for c, (n, side) in units.items())
    assert f"{(4_089_184_256 + extra) / 1e9:.4f}" == total


def test_costs_of_sites_and_the_rest_are_separate() -> None:
    model, x = residual_net(), image()
    bare = summary(model, x)
    report = insert(model, ["se", Doubled], position="residual", example=x)
    table = summary(model, x)
    assert [(row.site, row.blocks) for row in table.rows] == [
        ("(the rest)", ""),
        ("1.bn2", "se + doubled"),
        ("3.bn2", "se + doubled"),
    ]
    assert table.rows[0] == bare.rows[0]
    assert table.rows[1].macs == 2 * 16
    assert table.num_parameters - bare.num_parameters == report.num_parameters
    assert table.num_parameters == sum(p.numel() for p in model.parameters())
    own = nn.Sequential(nn.Conv2d(3, 8, 1), SqueezeExcite(8))
    assert [row.site for row in summary(own, x).rows[1:]] == ["1"]
    [rest, whole] = summary(SqueezeExcite(6, reduction=2), torch.zeros(2, 6, 5, 7)).rows
    assert (rest.num_parameters, rest.macs) == (0, 0)
    assert (whole.site, whole.num_parameters, whole.macs) == ("(the model)", 45, 2 * 6 * 3)
