"""Training of inserted blocks alone: frozen weights, frozen statistics, small files."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from host_models import Scaled, net, residual_net
from timm.layers import EvoNorm2dB0  # pyright: ignore[reportPrivateImportUsage]
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

import visattn as va
from visattn.insertion.insertion import freeze_except_blocks, trained_tensors


class MovingNorm(nn.Module):
    """A norm of one's own: its statistics have other names, one of them is assigned anew."""

    mean: Tensor
    power: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("power", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean((0, 2, 3)), 0.1)
            self.power = 0.9 * self.power + 0.1 * x.detach().square().mean((0, 2, 3))
        return (x - self.mean[:, None, None]) / self.power[:, None, None].sqrt()


class Normed(nn.Module):
    """A residual unit with all that keeps something of its inputs while it is trained."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            spectral_norm(nn.Conv2d(channels, channels, 3, padding=1)),
            nn.InstanceNorm2d(channels, track_running_stats=True),
            parametrizations.spectral_norm(nn.Conv2d(channels, channels, 1)),
            EvoNorm2dB0(channels),
            MovingNorm(channels),
            nn.Dropout(0.1),
            parametrizations.weight_norm(nn.Conv2d(channels, channels, 1)),
        )
        self.last = nn.BatchNorm2d(channels, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.branch(x))


NETWORKS: dict[str, Any] = {
    "checkpointed": lambda: residual_net(checkpointed=True),
    "channels last": lambda: net(Scaled(16), Scaled(24)),
    "statistics": lambda: net(Normed(16), Normed(24)),
    **{
        name: partial(timm.create_model, f"test_{name}", num_classes=5)
        for name in ("resnet", "nfnet")
    },
}
POSITIONS: dict[str, Any] = {
    "residual": "residual",
    "outer": "*",
    "name": ["0"],
    "hosts": lambda _, module: isinstance(module, (nn.Conv2d, nn.BatchNorm2d, MovingNorm)),
}


def train(model: nn.Module, images: Tensor, steps: int = 2) -> None:
    """Steps of two accumulated batches, by an optimizer that has all parameters."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(steps):
        for _ in range(2):
            model.train()(images).square().mean().backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def changes(model: nn.Module, run: Callable[[], object]) -> set[str]:
    """Return the names of all tensors that training changes."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run()
    return {name for name, value in model.state_dict().items() if not value.equal(before[name])}


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("resnet", "nfnet") else ())
        for name in NETWORKS
    ],
)
def test_a_trained_network_is_the_pretrained_one_with_the_saved_blocks(
    network: str, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    plain, x = NETWORKS[network]().eval(), torch.rand(2, 3, 32, 48)
    for weight in plain.parameters():
        if weight.ndim == 1:  # no unit ends with a zero weight, as in pretrained networks
            nn.init.uniform_(weight, 0.5, 1.5)
    absent = set[str]() if isinstance(plain, nn.Sequential) else {"name"}
    for position in sorted(POSITIONS.keys() - absent):
        at = {"block": "cbam", "position": POSITIONS[position], "example": x[:1], "reduction": 2}
        model, restored = copy.deepcopy(plain), copy.deepcopy(plain)
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)  # of an earlier training
        va.insert(model, **at, freeze=True)
        if network != "statistics":  # which has dropout; no norm uses statistics of the batch
            torch.testing.assert_close(model.train()(x), plain(x), msg=position)
        changed = changes(model, partial(train, model, 3 * torch.randn(3, 3, 32, 48) + 1))
        assert changed, position
        assert changed <= trained_tensors(model).keys(), position
        va.save_blocks(model, tmp_path / "blocks.safetensors")
        va.insert(restored, **at)
        va.load_blocks(restored, tmp_path / "blocks.safetensors")
        removed = copy.deepcopy(model)
        va.remove(removed)
        assert list(removed.state_dict()) == list(plain.state_dict()), position
        assert all(p.requires_grad for p in removed.parameters()), position
        with torch.no_grad():
            trained = model.eval()(x)
            assert torch.equal(restored.eval()(x), trained), position
            assert torch.equal(removed.eval()(x), plain(x)), position
            assert not torch.equal(plain(x), trained), position


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.fc = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv2(torch.relu(self.norm(self.conv1(x)))).mean((2, 3)))


IMAGES = torch.rand(7, 3, 11, 13, generator=torch.Generator().manual_seed(0))
STATISTICS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def frozen_net(**options: Any) -> Net:
    torch.manual_seed(3)
    model = Net()
    at = {"position": "conv2", "example": IMAGES[:1], "reduction": 2}
    va.insert(model, "cbam", **at, freeze=True, **options)
    return model


@pytest.mark.parametrize(
    ("trainable", "learned"),
    [
        ((), set[str]()),
        (("fc",), {"fc.weight", "fc.bias"}),
        (("norm",), {"norm.weight", "norm.bias", *STATISTICS}),
        (("norm.weight",), {"norm.weight"}),  # such a norm keeps its statistics
    ],
)
def test_blocks_and_named_modules_are_trained(trainable: Any, learned: set[str]) -> None:
    model = copy.deepcopy(frozen_net(trainable=trainable))
    changed = changes(model, partial(train, model, IMAGES))
    assert {name for name in changed if ".visattn." not in name} == learned
    assert changed > learned


def test_norms_without_weights_inside_the_blocks_learn_their_statistics() -> None:
    model = Net()
    block = partial(nn.BatchNorm2d, affine=False)
    va.insert(model, block, position="conv2", example=IMAGES[:1], freeze=True)
    changed = changes(model, lambda: model.train()(IMAGES))
    assert "conv2.visattn.batchnorm2d.running_mean" in changed
    assert not changed & STATISTICS


def test_freezing_again_replaces_what_was_frozen() -> None:
    model = frozen_net()
    assert freeze_except_blocks(model, ["norm"])[:2] == ["norm.weight", "norm.bias"]
    assert changes(model, partial(train, model, IMAGES)) > STATISTICS
    freeze_except_blocks(model)
    assert not changes(model, partial(train, model, IMAGES)) & STATISTICS
    va.remove(model)  # as if it had never been frozen
    assert changes(model, partial(train, model, IMAGES)) == model.state_dict().keys()


def test_files_without_all_that_was_trained_or_of_other_blocks_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "blocks.safetensors"
    with pytest.raises(ValueError, match=r"fc.bias, fc.weight would .* as trainable=\['fc'\]"):
        va.save_blocks(frozen_net(trainable=["fc"]), file)
    with pytest.raises(ValueError, match="no inserted blocks"):
        va.save_blocks(Net(), file)
    va.save_blocks(frozen_net(), file)
    other = Net()
    va.insert(other, "se", position="conv2", example=IMAGES[:1])
    for model in (other, Net()):
        with pytest.raises(ValueError, match="insert the same blocks"):
            va.load_blocks(model, file)
