"""Residual networks against torchvision and published parameter counts."""

from typing import Any, cast

import pytest
import torch
import torchvision
from torch import Tensor, nn

from visattn.blocks.base import Block
from visattn.models.resnet import AttentionResNet, BasicUnit, ZeroPadShortcut, resnet_layout


def names(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def parameters(classes: int, **arguments: Any) -> int:
    with torch.device("meta"):
        model = AttentionResNet(names(classes), **arguments)
    return sum(parameter.numel() for parameter in model.parameters())


def noise(*shape: int) -> Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=random)


@pytest.mark.parametrize(
    ("depth", "block", "wanted"),
    [
        (18, None, 11_689_512),
        (18, "se", 11_778_592),
        (18, "cbam", 11_779_392),
        (18, "eca", 11_689_548),
        (18, "gc", 11_780_760),
        (18, "triplet", 11_691_912),
        (18, "coordinate", 11_764_248),
        (18, "simam", 11_689_512),
        (50, None, 25_557_032),
        (50, "se", 28_088_024),
        (50, "cbam", 28_089_624),
        (50, "eca", 25_557_118),
        (50, "gc", 28_105_032),
        (50, "triplet", 25_561_832),
        (50, "coordinate", 27_474_864),
        (50, "simam", 25_557_032),
        (50, "scse", 45_714_344),
        (50, "ese", 45_691_688),
        (50, "srm", 25_617_448),
        (50, "gct", 25_602_344),
        (101, None, 44_549_160),
        (101, "se", 49_326_872),
        (101, "cbam", 49_330_172),
        (101, "gc", 49_363_481),
        (101, "triplet", 44_559_060),
        (101, "coordinate", 48_174_608),
    ],
)
def test_parameter_counts_of_large_networks(depth: int, block: str | None, wanted: int) -> None:
    assert parameters(1000, depth=depth, block=block) == wanted


@pytest.mark.parametrize(
    ("depth", "block", "options", "wanted"),
    [
        (50, "se", {"bias": False}, 28_071_976),
        (50, "cbam", {"bias": False}, 28_073_576),
        (101, "se", {"bias": False}, 49_292_328),
    ],
)
def test_parameter_counts_without_biases(
    depth: int, block: str, options: dict[str, Any], wanted: int
) -> None:
    assert parameters(1000, depth=depth, block=block, block_kwargs=options) == wanted


@pytest.mark.parametrize(
    ("depth", "wanted"), [(18, 11_712_503), (50, 25_915_099), (101, 44_907_227)]
)
def test_parameter_counts_of_bam_at_stage_ends(depth: int, wanted: int) -> None:
    count = parameters(1000, depth=depth, block="bam", position="stage_end", stages=(1, 2, 3))
    assert count == wanted


@pytest.mark.parametrize(
    ("depth", "block", "wanted"),
    [
        (20, None, 278_324),
        (20, "se", 280_697),
        (20, "cbam", 281_597),
        (20, "eca", 278_351),
        (20, "gc", 281_084),
        (20, "triplet", 281_024),
        (20, "coordinate", 287_276),
        (56, None, 861_620),
        (56, "se", 868_739),
        (56, "cbam", 871_439),
        (56, "eca", 861_701),
        (56, "gc", 869_900),
        (56, "triplet", 869_720),
        (56, "coordinate", 888_476),
    ],
)
def test_parameter_counts_of_small_networks(depth: int, block: str | None, wanted: int) -> None:
    assert parameters(100, depth=depth, block=block) == wanted


@pytest.mark.parametrize(
    ("depth", "wanted"), [(20, 269_722), (32, 464_154), (56, 853_018), (110, 1_727_962)]
)
def test_parameter_counts_with_parameter_free_shortcuts(depth: int, wanted: int) -> None:
    assert parameters(10, depth=depth, shortcut="padding") == wanted


@pytest.mark.parametrize("depth", [18, 50])
def test_large_networks_equal_torchvision_exactly(depth: int) -> None:
    theirs = getattr(torchvision.models, f"resnet{depth}")(num_classes=7).eval()
    ours = AttentionResNet(names(7), depth=depth, img_size=(64, 96)).eval()
    ours.load_state_dict(theirs.state_dict())
    images = noise(2, 3, 64, 96)
    assert torch.equal(ours(images), theirs(ours.normalize(images)))


class Halved(nn.Module):
    """A substitute for a block, with a recognizable effect."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_attention_precedes_the_residual_addition() -> None:
    unit = BasicUnit(4, 4, create_block=lambda _: Halved()).eval()
    nn.init.constant_(unit.bn2.weight, 0.01)
    plain = BasicUnit(4, 4).eval()
    plain.load_state_dict(unit.state_dict())
    x = torch.rand(2, 4, 5, 7) + 1  # so that the last ReLU does nothing
    with torch.no_grad():
        torch.testing.assert_close(unit(x) - x, (plain(x) - x) / 2, rtol=1e-3, atol=1e-5)


def test_zero_pad_shortcut_by_hand() -> None:
    x = torch.arange(24.0).view(1, 2, 3, 4)
    result = ZeroPadShortcut(2, 3, 2)(x)
    kept = [[[0.0, 2.0], [8.0, 10.0]], [[12.0, 14.0], [20.0, 22.0]]]
    assert torch.equal(result, torch.tensor([[*kept, [[0.0, 0.0], [0.0, 0.0]]]]))


def sites(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, Block)]


def test_blocks_are_placed_in_the_named_stages() -> None:
    model = AttentionResNet(names(2), depth=14, block="se", stages=(1, 3))
    assert sites(model) == [f"layer{n}.{unit}.attention" for n in (1, 3) for unit in (0, 1)]
    model = AttentionResNet(names(2), depth=14, block="se", stages=(2,), position="stage_end")
    assert sites(model) == ["layer2.2"]
    assert cast("Block", model.get_submodule("layer2.2")).channels == 32


def test_block_none_places_no_block() -> None:
    model = AttentionResNet(names(2), depth=8, block="none", stem_block="None")
    assert model.block is None
    assert model.stem_block is None
    assert sites(model) == []


def test_block_may_follow_the_stem() -> None:
    model = AttentionResNet(
        names(2), depth=8, stem_block="se", img_size=(8, 8), mean=(0.5,), std=(0.5,)
    )
    assert sites(model) == ["input_block"]
    gate = cast("Block", model.input_block)
    with torch.no_grad():
        gate.excite.bias.fill_(-99.0)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    model.eval()
    scores = model(noise(2, 1, 8, 8))
    assert torch.equal(scores[0], scores[1])  # the gate is closed


def test_grid_pooling_keeps_positions() -> None:
    # the final stride is 8: a shift by 16 pixels is a shift by one pooled cell of two
    random = torch.Generator().manual_seed(5)
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    images[0, :, 4:12, 4:12] = torch.randint(256, (3, 8, 8), dtype=torch.uint8, generator=random)
    images[1] = images[0].roll((8, 8), (1, 2))
    for cells, alike in ((1, True), (2, False)):
        torch.manual_seed(0)
        model = AttentionResNet(names(3), depth=8, stem_width=4, pool_size=cells).eval()
        scores = model(images).softmax(-1).detach()
        assert torch.allclose(scores[0], scores[1], atol=0.02) is alike
        assert model.fc.in_features == 16 * cells**2


def test_inner_width_of_units_is_configurable() -> None:
    model = AttentionResNet(names(2), depth=8, stage_widths=(17, 37, 71))
    weights = model.state_dict()
    assert [len(weights[f"layer{n}.0.conv1.weight"]) for n in (1, 2, 3)] == [17, 37, 71]
    assert model(noise(1, 3, 32, 32)).shape == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"depth": 21}, r"18, 34, 50, 101 \(ImageNet\) or 6n \+ 2 .* got 21"),
        ({"depth": 2}, "got 2"),
        ({"block": "se", "stages": (0,)}, "stages must be from 1 to 3, got 0"),
        ({"block": "se", "stages": (4,)}, "stages must be from 1 to 3, got 4"),
        ({"stage_widths": (16, 32)}, "stage_widths must have 3 entries, one per stage"),
        ({"block": "sse", "block_kwargs": {"reduction": 4}}, "sse has no argument reduction"),
        ({"block": "cbamm"}, "there is no block named 'cbamm'; did you mean cbam"),
    ],
)
def test_invalid_options_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AttentionResNet(names(2), **arguments)


def test_stage_layouts() -> None:
    assert resnet_layout(110).units == (18, 18, 18)
    assert resnet_layout(101).expansion == 4
