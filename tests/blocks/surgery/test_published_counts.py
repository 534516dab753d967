"""Parameters of published networks, exactly."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from host_models import hollow
from torch import nn
from torchvision.models import resnet18, resnet50, resnet101

from visattn.blocks.catalogues import create
from visattn.blocks.surgery import insert
from visattn.blocks.surgery.grafts import Graft

PICTURE = torch.zeros(1, 3, 64, 64)
RELEASED = {256: 3, 512: 5, 1024: 5, 2048: 7}  # the kernels of the released ECA networks

# Of networks with a block in every residual branch; BAM stands at the end of stages 1 to 3.
RESNET_50 = {
    "se": 28_088_024,
    "se without biases": 28_071_976,
    "cbam": 28_089_624,
    "cbam as timm": 28_073_576,
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


def released_eca(channels: int) -> nn.Module:
    return create("eca", channels, kernel=RELEASED[channels])


FACTORIES: dict[str, Callable[[int], nn.Module]] = {
    "se without biases": partial(create, "se", bias=False),
    "cbam as timm": partial(create, "cbam", bias=False),
    "eca as released": released_eca,
}


@pytest.mark.parametrize(
    ("backbone", "bare", "counts"),
    [
        (resnet50, 25_557_032, RESNET_50),
        (resnet101, 44_549_160, RESNET_101),
        (resnet18, 11_689_512, RESNET_18),
    ],
)
def test_every_residual_branch(
    backbone: Callable[[], nn.Module], bare: int, counts: dict[str, int]
) -> None:
    model = hollow(backbone)
    assert sum(p.numel() for p in model.parameters()) == bare
    blocks = [FACTORIES.get(name, name) for name in counts]
    report = insert(model, blocks, at="residual", example=PICTURE, init="paper")
    found = dict.fromkeys(counts, bare)
    for graft in [module for module in model.modules() if isinstance(module, Graft)]:
        for name, kept in zip(counts, graft.names, strict=True):
            found[name] += sum(p.numel() for p in graft.get_submodule(kept).parameters())
    assert found == counts
    assert report.parameters == sum(counts.values()) - bare * len(counts)
    assert report.scales == 0


@pytest.mark.parametrize(
    ("backbone", "count"),
    [(resnet50, 25_915_099), (resnet101, 44_907_227), (resnet18, 11_712_503)],
)
def test_bam_at_the_end_of_three_stages(backbone: Callable[[], nn.Module], count: int) -> None:
    model = hollow(backbone)
    insert(model, "bam", at="stage_end", stages=(1, 2, 3), example=PICTURE, init="paper")
    assert sum(p.numel() for p in model.parameters()) == count


def test_identity_scales_are_counted_apart() -> None:
    model = hollow(resnet18)
    report = insert(model, "se", at="residual", example=PICTURE)
    assert report.scales == 8
    assert report.parameters == 11_778_592 - 11_689_512 + 8
