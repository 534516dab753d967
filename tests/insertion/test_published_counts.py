"""Exact parameter counts of published networks."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from host_models import hollow
from torch import nn
from torchvision.models import resnet18, resnet50, resnet101

from visattn.blocks.registry import create_block
from visattn.insertion.insertion import insert
from visattn.insertion.sites import find_sites

IMAGE = torch.zeros(1, 3, 64, 64)
RELEASED = {256: 3, 512: 5, 1024: 5, 2048: 7}  # the kernels of the released ECA networks

# Of networks with a block in every residual branch; BAM stands at the end of stages 1 to 3.
RESNET_50 = {
    "se": 28_088_024,
    "se without biases": 28_071_976,
    "cbam": 28_089_624,
    "eca": 25_557_118,
    "eca as released": 25_557_112,
    "gc": 28_105_032,
    "triplet": 25_561_832,
    "coordinate": 27_474_864,
    "simam": 25_557_032,
    "scse": 45_714_344,
    "ese": 45_691_688,
    "srm": 25_617_448,
    "gct": 25_602_344,
}
RESNET_101 = {
    "se": 49_326_872,
    "se without biases": 49_292_328,
    "cbam": 49_330_172,
    "gc": 49_363_481,
    "triplet": 44_559_060,
    "coordinate": 48_174_608,
}
RESNET_18 = {
    "se": 11_778_592,
    "cbam": 11_779_392,
    "eca": 11_689_548,
    "gc": 11_780_760,
    "triplet": 11_691_912,
    "coordinate": 11_764_248,
    "simam": 11_689_512,
}


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def made(name: str, channels: int) -> nn.Module:
    with torch.device("meta"):
        return FACTORIES[name](channels) if name in FACTORIES else create_block(name, channels)


def released_eca(channels: int) -> nn.Module:
    return create_block("eca", channels, kernel_size=RELEASED[channels])


FACTORIES: dict[str, Callable[[int], nn.Module]] = {
    "se without biases": partial(create_block, "se", bias=False),
    "eca as released": released_eca,
}


@pytest.mark.parametrize(
    ("backbone", "bare", "counts", "bam"),
    [
        (resnet50, 25_557_032, RESNET_50, 25_915_099),
        (resnet101, 44_549_160, RESNET_101, 44_907_227),
        (resnet18, 11_689_512, RESNET_18, 11_712_503),
    ],
)
def test_parameter_counts_with_a_block_per_residual_branch(
    backbone: Callable[[], nn.Module], bare: int, counts: dict[str, int], bam: int
) -> None:
    model = hollow(backbone)
    assert parameters(model) == bare
    branches = [site.channels for site in find_sites(model, "residual", IMAGE)]
    for name, count in counts.items():
        sizes = {width: parameters(made(name, width)) for width in set(branches)}
        assert (name, bare + sum(sizes[width] for width in branches)) == (name, count)
    ends = [site.channels for site in find_sites(model, "layer[123]", IMAGE)]
    assert bare + sum(parameters(made("bam", width)) for width in ends) == bam


@pytest.mark.parametrize(
    ("backbone", "windows", "added"),
    [
        # By the formula at 256, 512, 1024 and 2048 channels; at 64, 128, 256 and 512.
        (resnet50, [5] * 3 + [5] * 4 + [5] * 6 + [7] * 3, 86),
        (resnet101, [5] * 3 + [5] * 4 + [5] * 23 + [7] * 3, 171),
        (resnet18, [3] * 2 + [5] * 6, 36),
    ],
)
def test_eca_kernel_sizes_follow_the_stage_widths(
    backbone: Callable[[], nn.Module], windows: list[int], added: int
) -> None:
    model = hollow(backbone)
    bare = parameters(model)
    report = insert(model, "eca", position="residual", example=IMAGE, init="paper")
    counts = [p.numel() for name, p in model.named_parameters() if ".visattn." in name]
    assert counts == windows
    assert parameters(model) - bare == report.num_parameters == added


def test_eca_kernel_sizes_may_be_the_released_ones() -> None:
    model = hollow(resnet50)
    for stage, kernel in enumerate(RELEASED.values(), 1):
        insert(
            model,
            "eca",
            position=f"layer{stage}.*.bn3",
            example=IMAGE,
            init="paper",
            kernel_size=kernel,
        )
    counts = [p.numel() for name, p in model.named_parameters() if ".visattn." in name]
    assert counts == [3] * 3 + [5] * 4 + [5] * 6 + [7] * 3
    assert parameters(model) == RESNET_50["eca as released"]


def test_total_parameter_counts_match_the_papers() -> None:
    model = hollow(resnet50)
    report = insert(model, "cbam", position="residual", example=IMAGE, init="paper")
    assert parameters(model) == 28_089_624
    assert report.num_parameters == 28_089_624 - 25_557_032
    assert report.num_identity_scales == 0


def test_identity_scales_are_counted_separately() -> None:
    model = hollow(resnet18)
    report = insert(model, "se", position="residual", example=IMAGE)
    assert report.num_identity_scales == 8
    assert report.num_parameters == 11_778_592 - 11_689_512 + 8
