"""Exact parameter counts of published networks."""

import torch
from host_models import hollow
from torch import nn
from torchvision.models import resnet18, resnet50

from visattn.blocks.registry import create_block
from visattn.insertion.insertion import insert
from visattn.insertion.sites import find_sites

IMAGE = torch.zeros(1, 3, 64, 64)
RELEASED = {256: 3, 512: 5, 1024: 5, 2048: 7}  # the kernels of the released ECA networks

# Of networks with a block in every residual branch; BAM stands at the end of stages 1 to 3.
RESNET_50 = {
    "se": 28_088_024,
    "cbam": 28_089_624,
    "eca": 25_557_118,
    "gc": 28_105_032,
    "triplet": 25_561_832,
    "coordinate": 27_474_864,
    "simam": 25_557_032,
    "scse": 45_714_344,
    "ese": 45_691_688,
    "srm": 25_617_448,
    "gct": 25_602_344,
}


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts_with_a_block_per_residual_branch() -> None:
    model = hollow(resnet50)
    bare = parameters(model)
    assert bare == 25_557_032
    ends = [site.channels for site in find_sites(model, "layer[123]", IMAGE)]
    branches = [site.channels for site in find_sites(model, "residual", IMAGE)]

    def total(widths: list[int], name: str, **options: bool) -> int:
        with torch.device("meta"):
            return bare + sum(parameters(create_block(name, c, **options)) for c in widths)

    assert {name: total(branches, name) for name in RESNET_50} == RESNET_50
    assert total(branches, "se", bias=False) == 28_071_976
    assert total(ends, "bam") == 25_915_099


def test_inserted_parameters_are_reported() -> None:
    model = hollow(resnet18)
    report = insert(model, "se", example=IMAGE)
    assert (report.num_identity_scales, report.num_parameters) == (8, 11_778_592 - 11_689_512 + 8)
    model = hollow(resnet50)
    for stage, kernel in enumerate(RELEASED.values(), 1):
        at = {"position": f"layer{stage}.*.bn3", "example": IMAGE, "init": "paper"}
        insert(model, "eca", **at, kernel_size=kernel)
    counts = [p.numel() for name, p in model.named_parameters() if ".visattn." in name]
    assert counts == [3] * 3 + [5] * 4 + [5] * 6 + [7] * 3
    assert parameters(model) == 25_557_112
