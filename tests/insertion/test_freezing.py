"""Training of inserted blocks alone: frozen weights, frozen statistics, small files."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import visattn as va
from visattn.insertion.freezing import freeze_except_blocks


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
    with pytest.raises(ValueError, match="must have inserted blocks"):
        freeze_except_blocks(Net())
    with pytest.raises(ValueError, match="goes with freeze=True"):
        va.insert(
            Net(), "se", position="conv2", example=torch.zeros(1, 3, 11, 13), trainable=["fc"]
        )


def test_nothing_to_save_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no inserted blocks"):
        va.save_blocks(Net(), tmp_path / "blocks.safetensors")
