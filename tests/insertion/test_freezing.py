"""Training of inserted blocks alone: frozen weights, frozen statistics, small files."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from host_models import Residual, Scaled, UNet, net, residual_net
from timm.layers import EvoNorm2dB0  # pyright: ignore[reportPrivateImportUsage]
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

import visattn as va
from visattn.insertion.insertion import freeze_except_blocks, trained_tensors


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv1(x)))
        return self.fc(self.conv2(x).mean((2, 3)))


def frozen_net(**options: Any) -> Net:
    torch.manual_seed(3)
    net = Net()
    va.insert(
        net, "cbam", position="conv2", example=torch.zeros(1, 3, 11, 13), reduction=2,
        freeze=True, **options,
    )  # fmt: skip
    return net


def statistics(net: Net) -> Tensor:
    assert net.norm.running_mean is not None
    return net.norm.running_mean


def train(net: Net, steps: int = 3) -> None:
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.5)
    net.train()
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        loss = net(torch.rand(7, 3, 11, 13, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_only_the_blocks_change_and_statistics_stay() -> None:
    net = frozen_net()
    before = copy.deepcopy(net.state_dict())
    train(net)
    changed = {name for name, value in net.state_dict().items() if not value.equal(before[name])}
    assert changed
    assert all(name.startswith("conv2.visattn.") for name in changed)


def test_removing_the_blocks_gives_the_pretrained_network_back() -> None:
    torch.manual_seed(3)
    plain, net = Net().eval(), frozen_net()
    train(net)
    va.remove(net)
    images = torch.rand(2, 3, 11, 13)
    assert torch.equal(net.eval()(images), plain(images))


def test_further_modules_are_trained_by_name() -> None:
    net = frozen_net(trainable=["fc"])
    trainable = {name for name, p in net.named_parameters() if p.requires_grad}
    assert {"fc.weight", "fc.bias"} < trainable
    assert not any(name.startswith(("conv1", "norm")) for name in trainable)


def test_norms_inside_trainable_modules_learn_their_statistics() -> None:
    net = frozen_net(trainable=["norm"])
    before = statistics(net).clone()
    train(net, 1)
    assert not statistics(net).equal(before)


def test_norms_without_weights_inside_the_blocks_learn_their_statistics() -> None:
    net = Net()
    va.insert(
        net,
        lambda channels: nn.Sequential(nn.BatchNorm2d(channels, affine=False)),
        position="conv2",
        example=torch.zeros(1, 3, 11, 13),
        freeze=True,
    )
    inside = [m for m in net.conv2.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in inside if norm.running_mean is not None]
    net.train()(torch.rand(7, 3, 11, 13))
    assert [norm.running_mean.equal(b) for norm, b in zip(inside, before, strict=True)] == [False]  # pyright: ignore[reportOptionalMemberAccess]


def test_copies_keep_their_norms_frozen() -> None:
    net = copy.deepcopy(frozen_net())
    before = statistics(net).clone()
    train(net, 1)
    assert statistics(net).equal(before)


def test_saved_blocks_restore_the_trained_network(tmp_path: Path) -> None:
    trained = frozen_net(trainable=["fc"])
    train(trained)
    va.save_blocks(trained, tmp_path / "blocks.safetensors", ["fc"])
    restored = frozen_net(trainable=["fc"])
    va.load_blocks(restored, tmp_path / "blocks.safetensors")
    images = torch.rand(2, 3, 11, 13)
    assert torch.equal(restored.eval()(images), trained.eval()(images))
    full = sum(value.numel() for value in trained.state_dict().values())
    saved = sum(v.numel() for n, v in trained.state_dict().items() if "visattn" in n or "fc" in n)
    assert saved < full / 2


def test_files_of_other_blocks_are_refused(tmp_path: Path) -> None:
    va.save_blocks(frozen_net(), tmp_path / "blocks.safetensors")
    other = Net()
    va.insert(other, "se", position="conv2", example=torch.zeros(1, 3, 11, 13))
    with pytest.raises(ValueError, match="insert the same blocks"):
        va.load_blocks(other, tmp_path / "blocks.safetensors")
    with pytest.raises(ValueError, match="insert the same blocks"):
        va.load_blocks(Net(), tmp_path / "blocks.safetensors")


def test_wrong_names_are_refused() -> None:
    net = Net()
    arguments = {"position": "conv2", "example": torch.zeros(1, 3, 11, 13), "freeze": True}
    with pytest.raises(ValueError, match="'head' matches none; its modules are conv1"):
        va.insert(net, "se", trainable=["head"], **arguments)
    assert not hasattr(net.conv2, "visattn")


def test_nothing_to_save_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no inserted blocks"):
        va.save_blocks(Net(), tmp_path / "blocks.safetensors")


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


class Shared(nn.Module):
    """One residual unit that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.unit = nn.Conv2d(3, 8, 3, 2, padding=1), Residual(8)
        self.pool, self.fc = nn.AvgPool2d(2), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.unit(self.pool(self.unit(self.stem(x)))).mean((2, 3)))


NETWORKS: dict[str, Any] = {
    "checkpointed": lambda: residual_net(checkpointed=True),
    "channels last": lambda: net(Scaled(16), Scaled(24)),
    "statistics": lambda: net(Normed(16), Normed(24)),
    "shared": Shared,
    "U-Net": UNet,
    **{
        name: partial(timm.create_model, f"test_{name}", num_classes=5)
        for name in ("resnet", "byobnet", "convnext", "nfnet")
    },
}
POSITIONS: dict[str, Any] = {
    "residual": "residual",
    "stages": "*",
    "name": ["0"],
    "hosts": lambda _, module: isinstance(module, (nn.Conv2d, nn.BatchNorm2d, MovingNorm)),
}


def trained_with_all_parameters(model: nn.Module) -> None:
    """Two steps of two accumulated batches, by an optimizer that has all parameters."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for _ in range(2):
            model.train()
            images = 3 * torch.randn(3, 3, 32, 48, generator=generator) + 1
            model(images).square().mean().backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_trained_network_is_the_pretrained_one_with_the_saved_blocks(
    network: str, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    plain, x = NETWORKS[network]().eval(), torch.rand(2, 3, 32, 48)
    for weight in plain.parameters():
        if weight.ndim == 1:  # no unit ends with a zero weight, as in pretrained networks
            nn.init.uniform_(weight, 0.5, 1.5)
    absent = {"U-Net": {"residual"}, "shared": {"stage_end"}}.get(network, set())
    absent |= set() if isinstance(plain, nn.Sequential) else {"name"}
    for position in sorted(POSITIONS.keys() - absent):
        at = {"block": "cbam", "position": POSITIONS[position], "example": x[:1], "reduction": 2}
        model, restored = copy.deepcopy(plain), copy.deepcopy(plain)
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)  # of an earlier training
        va.insert(model, **at, freeze=True)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        if network != "statistics":  # which has dropout; no norm uses statistics of the batch
            torch.testing.assert_close(model.train()(x), plain(x), msg=position)
        trained_with_all_parameters(model)
        state = model.state_dict()
        changed = {name for name, value in state.items() if not value.equal(before[name])}
        assert changed, position
        assert changed <= trained_tensors(model).keys(), position
        va.save_blocks(model, tmp_path / "blocks.safetensors")
        va.insert(restored, **at)
        va.load_blocks(restored, tmp_path / "blocks.safetensors")
        removed = copy.deepcopy(model)
        va.remove(removed)
        assert removed.state_dict().keys() == plain.state_dict().keys(), position
        assert all(value.equal(before[n]) for n, value in removed.state_dict().items()), position
        assert all(p.requires_grad for p in removed.parameters()), position
        with torch.no_grad():
            trained = model.eval()(x)
            assert torch.equal(restored.eval()(x), trained), position
            assert torch.equal(removed.eval()(x), plain(x)), position
            assert not torch.equal(plain(x), trained), position


def test_a_norm_of_which_only_the_weight_is_trained_keeps_its_statistics() -> None:
    net = frozen_net(trainable=["norm.weight"])
    before = copy.deepcopy(net.state_dict())
    train(net)
    changed = {name for name, value in net.state_dict().items() if not value.equal(before[name])}
    assert {name for name in changed if "visattn" not in name} == {"norm.weight"}


def test_freezing_again_replaces_what_was_frozen() -> None:
    net = frozen_net()
    assert freeze_except_blocks(net, ["norm"])[:2] == ["norm.weight", "norm.bias"]
    before = statistics(net).clone()
    train(net, 1)
    assert not statistics(net).equal(before)
    freeze_except_blocks(net)
    before = statistics(net).clone()
    train(net, 1)
    assert statistics(net).equal(before)
    va.remove(net)
    train(net, 1)  # as if it had never been frozen
    assert not statistics(net).equal(before)


def test_a_file_without_all_that_was_trained_is_refused(tmp_path: Path) -> None:
    net = frozen_net(trainable=["fc"])
    with pytest.raises(
        ValueError, match=r"fc.bias, fc.weight are not frozen .* pass trainable=\['fc'\]"
    ):
        va.save_blocks(net, tmp_path / "blocks.safetensors")
