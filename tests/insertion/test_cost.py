"""Costs of models and blocks against published values and formulas."""

import pytest
import torch
from host_models import Doubled, hollow, image, residual_net
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torchvision.models import resnet50

from visattn.blocks.squeeze_excite import SqueezeExcite
from visattn.insertion.cost import MACs, count_macs, summary
from visattn.insertion.insertion import insert
from visattn.insertion.weights import bake


class Attention(nn.Module):
    """Two heads over all positions, fused or as two products."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).unflatten(1, (2, -1)).transpose(2, 3)
        if self.fused:
            values = scaled_dot_product_attention(tokens, tokens, tokens)
        else:
            values = (tokens @ tokens.transpose(2, 3)).softmax(-1) @ tokens
        return values.transpose(2, 3).reshape(x.shape)


def test_resnet_50_costs_match_the_published_values() -> None:
    model = hollow(resnet50).to("meta")
    x = torch.zeros(2, 3, 224, 224, device="meta")
    bare = summary(model, x)
    assert (bare.num_parameters, bare.num_identity_scales, len(bare.rows)) == (25_557_032, 0, 1)
    assert f"{bare.macs.weighted / 1e9:.4f}" == "4.0892"
    assert bare.macs.attention == bare.macs.elementwise == 0


@pytest.mark.parametrize(
    ("name", "total"), [("se", "4.0917"), ("cbam", "4.0956"), ("gc", "4.0972"), ("simam", "4.0892")]
)
def test_block_costs_match_the_published_values(name: str, total: str) -> None:
    extra = MACs()
    places = {256: (3, 56), 512: (4, 28), 1024: (6, 14), 2048: (3, 7)}
    for channels, (blocks, side) in places.items():
        host = nn.Sequential(nn.Identity())
        x = torch.zeros(1, channels, side, side)
        insert(host, name, position="0", example=x, init="paper")
        for _ in range(blocks):
            extra.add(summary(host, x).macs)
    assert f"{(4_089_184_256 + extra.weighted) / 1e9:.4f}" == total


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_products_are_counted(fused: bool, device: str) -> None:
    x = torch.zeros(3, 10, 4, 7, device=device)
    macs = count_macs(Attention(fused=fused), x, {})[""]
    assert macs == MACs(attention=3 * 2 * (4 * 7) ** 2 * (5 + 5))


def test_convolutions_and_gates_are_counted() -> None:
    x = torch.zeros(2, 6, 5, 7)
    up = nn.ConvTranspose2d(6, 4, 3, groups=2, stride=2)
    assert count_macs(up, x, {})[""] == MACs(weighted=2 * 6 * 5 * 7 * 2 * 9)
    grouped = nn.Conv2d(6, 4, 3, groups=2, padding=1)
    assert count_macs(grouped, x, {})[""] == MACs(weighted=2 * 4 * 5 * 7 * 3 * 9)
    macs = count_macs(SqueezeExcite(6, reduction=2), x, {})[""]
    assert macs == MACs(weighted=2 * 2 * 6 * 3, elementwise=2 * 6 * 5 * 7)
    two = count_macs(SqueezeExcite(2, reduction=1), x[:1, :2], {})[""]
    assert two == MACs(weighted=2 * 2 * 2, elementwise=2 * 5 * 7)


def test_costs_of_sites_and_the_rest_are_separate() -> None:
    model, x = residual_net(), image()
    bare = summary(model, x)
    report = insert(model, ["se", Doubled], position="residual", example=x)
    table = summary(model, x)
    assert [(row.site, row.blocks, row.num_identity_scales) for row in table.rows] == [
        ("", "", 0),
        ("1.bn2", "se + doubled", 2),
        ("3.bn2", "se + doubled", 2),
    ]
    assert table.rows[0] == bare.rows[0]
    assert table.rows[1].macs == MACs(weighted=2 * 16, elementwise=16 * 20 * 28)
    assert table.num_parameters - bare.num_parameters == report.num_parameters
    assert table.num_parameters == sum(p.numel() for p in model.parameters())
    bake(model)
    assert summary(model, x) == table


def test_built_in_blocks_are_rows() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), SqueezeExcite(8))
    assert [row.site for row in summary(model, image()).rows] == ["", "1"]


def test_model_that_is_a_block_is_counted_once() -> None:
    block, x = SqueezeExcite(6, reduction=2), torch.zeros(2, 6, 5, 7)
    table = summary(block, x)
    rest, whole = table.rows
    assert (rest.site, rest.num_parameters, rest.macs) == ("", 0, MACs())
    assert (whole.site, whole.blocks) == ("(the model)", "se")
    assert table.macs == whole.macs == MACs(weighted=2 * 6 * 3, elementwise=6 * 5 * 7)
    assert table.num_parameters == sum(p.numel() for p in block.parameters()) == 2 * 6 * 3 + 3 + 6


def test_table_names_its_units() -> None:
    text = str(summary(residual_net(), image()))
    assert "17,269 = 0.017 x 10^6 = 0.016 x 2^20; 0 of them are identity scales" in text
    assert "image: 3 x 20 x 28;" in text
    assert "MACs are multiply-accumulate operations" in text
