"""Sites by position: residual branches, ends of stages, patterns, names and functions."""

from functools import partial
from typing import Any

import pytest
import timm
import torch
from host_models import Dense, Pair, Residual, hollow, image, net, residual_net
from torch import Tensor, nn
from torchvision.models import mobilenet_v2, resnet50

from visattn.insertion.insertion import insert
from visattn.insertion.sites import Position, find_sites

IMAGE = torch.zeros(1, 3, 64, 96)


def names(model: nn.Module, position: Position, x: Tensor = IMAGE) -> list[str]:
    return [site.name for site in find_sites(model, position, x)]


def timms(name: str) -> nn.Module:
    return hollow(partial(timm.create_model, name))


def test_residual_branches_of_published_networks() -> None:
    for model, count, first in (
        (timms("regnety_002"), 13, "s1.b1.conv3"),
        (timms("mobilenetv2_100"), 10, "blocks.1.1.bn3"),
        (timms("convnext_atto"), 12, "stages.0.blocks.0.mlp"),
        (timms("hrnet_w18_small"), 40, "layer1.0.bn3"),
        (hollow(resnet50), 16, "layer1.0.bn3"),
    ):
        found = names(model, "residual")
        assert (len(found), found[0]) == (count, first)
    branches = find_sites(hollow(mobilenet_v2), "residual", IMAGE)
    assert branches[0].name == "features.3.conv"
    assert [site.channels for site in branches] == [24, 32, 32, 64, 64, 64, 96, 96, 160, 160]


def test_stage_ends_are_those_of_timm_without_the_stem() -> None:
    for name, ends in {
        "resnet26": ["layer1", "layer2", "layer3", "layer4"],
        "regnety_002": ["s1", "s2", "s3", "s4"],
        "efficientnet_b0": [f"blocks.{n}" for n in (0, 1, 2, 4, 6)],
        "convnext_atto": [f"stages.{n}" for n in range(4)],
        "pvt_v2_b0": [f"stages.{n}" for n in range(4)],
    }.items():
        assert names(timms(name), "stage_end") == ends
        within: Any = nn.ModuleDict({"backbone": timms(name)})
        within.forward = within["backbone"].forward  # as a classifier that wraps one
        assert names(within, "stage_end") == [f"backbone.{each}" for each in ends]
    sites = find_sites(timms("test_mambaout"), "stage_end", IMAGE)
    assert all(site.channels_last for site in sites)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("*.bn2", ["1.bn2", "3.bn2"]),
        ("**.conv?", ["1.conv1", "1.conv2", "3.conv1", "3.conv2"]),
        ("[13]", ["1", "3"]),
        ("*", ["0", "1", "2", "3"]),  # the others return no feature map
        (["3", "1"], ["1", "3"]),
        (lambda name, module: isinstance(module, Residual), ["1", "3"]),
    ],
)
def test_sites_by_name(at: Position, expected: list[str]) -> None:
    assert names(residual_net(), at, image()) == expected


def test_the_layout_is_followed_where_a_shape_cannot_tell_it() -> None:
    square = torch.zeros(1, 3, 8, 8)
    assert find_sites(nn.Sequential(nn.Conv2d(3, 8, 1)), "0", square)[0].channels == 8
    # By its aspect ratio [7, 4, 2] would be 7 x 4 cells of two channels.
    uneven = find_sites(nn.Sequential(nn.Conv2d(3, 7, 28, 24)), "0", torch.zeros(1, 3, 100, 60))
    assert (uneven[0].channels, uneven[0].grid) == (7, (4, 2))


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape)


RELU = nn.ReLU()
TWICE = nn.Sequential(nn.Conv2d(3, 5, 1), RELU, nn.Conv2d(5, 7, 1), RELU)
CASES: list[tuple[nn.Module, Position, str]] = [
    (residual_net(), "residuals", "'residuals'; position must be .*did you mean residual"),
    (residual_net(), "*.bn3", "Sequential has no module for .*such as 'layer.'.* modules are 0, 1"),
    (residual_net(), ["1", "1.bn7"], "no module for '1.bn7'"),
    (residual_net(), [], "no site for position="),
    (residual_net(), lambda name, module: False, "no site for position="),
    (residual_net(), ["1", "5"], r"after 5: it returns \[2, 24\], not features"),
    (residual_net(), "**.linear*", "no module for"),
    (nn.Sequential(nn.ReLU(), Pair()), "1", "1: it returns no tensor"),
    (TWICE, "residual", "no module for 'residual'; position must be 'residual' .residual n"),
    (TWICE, "1", r"1: it runs with .* channels, \[5, 7\]"),
    (hollow(resnet50), "stage_end", "no module for 'stage_end'.* modules are conv1, bn1"),
    (nn.Sequential(nn.Conv2d(3, 8, 1), Turned()), "1", r"\[2, 8, 8, 8\], whose .* ambiguous"),
]


@pytest.mark.parametrize(("model", "at", "reason"), CASES)
def test_refusals(model: nn.Module, at: Position, reason: str) -> None:
    x = torch.zeros(2, 3, 8, 8) if "ambiguous" in reason else image()
    with pytest.raises(ValueError, match=reason):
        find_sites(model, at, x)


def test_a_site_holds_one_insertion() -> None:
    model, x = residual_net(), image()
    insert(model, "se", example=x)
    with pytest.raises(ValueError, match=r"1.bn2: it already has se; call remove\(model\)"):
        insert(model, "eca", example=x)
    assert [site.name for site in insert(model, "eca", position="[13]", example=x).sites] == [
        "1",
        "3",
    ]
    assert names(model, "*.conv?", x) == ["1.conv1", "1.conv2", "3.conv1", "3.conv2"]


def test_a_module_that_runs_its_children_in_a_loop_holds_a_block_behind_it() -> None:
    model, x = net(Dense(16), nn.Identity()), image()
    model[2] = nn.Conv2d(26, 24, 1)
    before = model.eval()(x)
    assert insert(model, "se", position="1", example=x).sites[0].channels == 26
    assert torch.equal(model(x), before)
