"""Selection of insertion points by position, name, pattern and function."""

from collections.abc import Iterable
from functools import partial

import pytest
import timm
import torch
from host_models import (
    Dense,
    Doubled,
    First,
    Loop,
    Pair,
    Residual,
    hollow,
    image,
    net,
    residual_net,
)
from torch import nn
from torchvision.models import densenet121, mobilenet_v2, resnet50, vgg11_bn

from visattn.insertion.insertion import insert
from visattn.insertion.sites import Position, Site, select_sites
from visattn.insertion.trace import trace_model

IMAGE = torch.zeros(1, 3, 64, 64)


def names(sites: Iterable[Site]) -> list[str]:
    return [site.name for site in sites]


@pytest.mark.parametrize(
    ("name", "count", "first"),
    [("regnety_002", 13, "s1.b1.conv3"), ("mobilenetv2_100", 10, "blocks.1.1.bn3")],
)
def test_residual_sites_of_timm_models(name: str, count: int, first: str) -> None:
    model = hollow(partial(timm.create_model, name))
    selected = select_sites(model, trace_model(model, IMAGE), "residual").sites
    assert (len(selected), selected[0].name) == (count, first)


def test_positions_on_resnet_50() -> None:
    model = hollow(resnet50)
    trace = trace_model(model, IMAGE)
    ends = select_sites(model, trace, "stage_end", (1, 2, 3)).sites
    assert [(s.name, s.channels, s.grid, s.stage) for s in ends] == [
        ("layer1", 256, (16, 16), 1),
        ("layer2", 512, (8, 8), 2),
        ("layer3", 1024, (4, 4), 3),
    ]
    branches = names(select_sites(model, trace, "residual", (1, 4)).sites)
    assert branches == [f"layer{stage}.{block}.bn3" for stage in (1, 4) for block in range(3)]


def test_positions_on_mobilenet_v2() -> None:
    model = hollow(mobilenet_v2)
    trace = trace_model(model, IMAGE)
    ends = names(select_sites(model, trace, "stage_end").sites)
    assert ends == [f"features.{n}" for n in (1, 3, 6, 13, 17)]
    branches = select_sites(model, trace, "residual").sites
    assert branches[0].name == "features.3.conv"
    assert [site.channels for site in branches] == [24, 32, 32, 64, 64, 64, 96, 96, 160, 160]


def test_stages_without_residual_branches_end_at_downsampling() -> None:
    plain, dense = hollow(partial(vgg11_bn, init_weights=False)), hollow(densenet121)
    ends = names(select_sites(plain, trace_model(plain, IMAGE), "stage_end").sites)
    assert ends == [f"features.{n}" for n in (2, 6, 13, 20, 27)]
    ends = names(select_sites(dense, trace_model(dense, IMAGE), "stage_end").sites)
    assert ends == [
        "features.relu0",
        *(f"features.transition{n}.conv" for n in (1, 2, 3)),
        "features.norm5",
    ]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("*.bn2", ["1.bn2", "3.bn2"]),
        ("**.conv?", ["1.conv1", "1.conv2", "3.conv1", "3.conv2"]),
        ("[13]", ["1", "3"]),
        (["3", "1"], ["1", "3"]),
        (lambda name, module: isinstance(module, Residual), ["1", "3"]),
    ],
)
def test_sites_by_name(at: Position, expected: list[str]) -> None:
    report = insert(residual_net(), "simam", position=at, example=image())
    assert names(report.sites) == expected


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ("residuals", "no module has such a name; did you mean residual"),
        ("*.bn3", "no site for position='\\*.bn3'"),
        (["1.bn7"], "there is no module '1.bn7'; did you mean 1.bn2"),
        ([], "the list of names is empty"),
        (lambda name, module: False, "predicate matches no module"),
        ("5", "after 5: it returns \\[2, 24\\], but a block needs features"),
    ],
)
def test_no_matching_site_is_an_error(at: Position, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        insert(residual_net(), "se", position=at, example=image())


def test_missing_stages_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(1: 20 x 28, 2: 10 x 14\), got \[3\]"):
        insert(residual_net(), "se", position="residual", stages=[3], example=image())
    with pytest.raises(ValueError, match="no site for position='0' in stages"):
        insert(residual_net(), "se", position="0", stages=[2], example=image())


def test_stages_may_have_different_blocks() -> None:
    model, x = residual_net(), image()
    for stage, name in ((1, "se"), (2, "cbam")):
        report = insert(model, name, position="residual", stages=[stage], example=x)
        assert names(report.sites) == [f"{2 * stage - 1}.bn2"]
    with pytest.raises(ValueError, match=r"3.bn2: it already has cbam"):
        insert(model, "se", position="residual", stages=[2], example=x)
    with pytest.raises(ValueError, match=r"after 5: it returns \[2, 24\]"):
        insert(model, "se", position=["1", "5"], stages=[1], example=x)


def test_convolutional_head_is_not_a_stage() -> None:
    body = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4))
    model = nn.Sequential(body, nn.Conv2d(5, 7, (5, 7)))  # as timm's VGG
    assert names(insert(model, "se", position="stage_end", example=image()).sites) == ["0.1"]


def test_positions_without_sites_are_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU())
    with pytest.raises(ValueError, match="no module's output is the residual branch"):
        insert(model, "se", position="residual", example=image())
    with pytest.raises(
        ValueError, match="nothing in it downsamples features; pass the names of the sites"
    ):
        insert(model, "se", position="stage_end", example=image())


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (Dense(16), "1: it is a Dense whose children run in a custom loop"),
        (nn.Sequential(Pair(), First()), "1.0: it returns a tuple"),
    ],
)
def test_unsuitable_hosts_are_refused(host: nn.Module, reason: str) -> None:
    at = reason.partition(":")[0]
    model, x = net(host, nn.Identity()), image()
    if isinstance(host, Dense):
        model[2] = nn.Conv2d(26, 24, 1)
    with pytest.raises(ValueError, match=reason):
        insert(model, "se", position=at, example=x)


def test_module_with_varying_channels_is_refused() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(3, 5, 1), relu, nn.Conv2d(5, 7, 1), relu)
    with pytest.raises(ValueError, match=r"1: it runs 2 times with \[5, 7\] channels"):
        insert(model, "se", position="1", example=image())


def test_module_that_iterates_over_its_children_is_refused() -> None:
    model, x = net(Loop(16), nn.Identity()), image()
    before, keys = model(x), list(model.state_dict())
    with pytest.raises(ValueError, match="1: it ran 1 times, the block 2 times"):
        insert(model, "se", position="1", example=x)
    assert list(model.state_dict()) == keys
    assert torch.equal(model(x), before)


def test_ambiguous_channel_axis_is_refused() -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(x.shape)

    model = nn.Sequential(nn.Conv2d(3, 8, 1), Turned())
    with pytest.raises(ValueError, match=r"shape \[1, 8, 8, 8\]; pass an example of another size"):
        insert(model, "se", position="1", example=torch.zeros(1, 3, 8, 8))
    assert insert(model, "se", position="1", example=torch.zeros(1, 3, 8, 9)).sites[0].channels == 8


def test_second_block_at_a_site_is_refused() -> None:
    model, x = residual_net(), image()
    insert(model, "se", position="residual", example=x)
    with pytest.raises(ValueError, match=r"1.bn2: it already has se; remove\(model\)"):
        insert(model, "se", position="residual", example=x)
    with pytest.raises(ValueError, match="already has se"):
        insert(model, "eca", position="1.bn2", example=x)
    report = insert(model, Doubled, position="stage_end", example=x)
    assert names(report.sites) == ["1", "3"]
