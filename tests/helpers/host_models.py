"""Small models of common kinds, as hosts of inserted blocks."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

IMAGE = torch.Size((2, 3, 20, 28))


class Doubled(nn.Module):
    """A block with a recognizable effect: it doubles its input and adds a weight."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x + self.weight[:, None, None]


class Residual(nn.Module):
    """Two convolutions with an in-place residual addition."""

    def __init__(self, channels: int, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.checkpointed = checkpointed

    def branch(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(self.relu(self.conv1(x))))

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            branch = checkpoint(self.branch, x, use_reentrant=False)
            assert isinstance(branch, Tensor)
        else:
            branch = self.branch(x)
        branch += x
        return self.relu(branch)


class Scaled(nn.Module):
    """As in ConvNeXt: channels last inside, layer scale and drop path before the addition."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.mlp = nn.Sequential(nn.LayerNorm(channels), nn.Linear(channels, channels), nn.GELU())
        self.gamma = nn.Parameter(torch.full((channels,), 0.1))
        self.drop_path = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + self.drop_path(y * self.gamma[:, None, None])


class Dense(nn.ModuleDict):
    """As in DenseNet: a ModuleDict that runs its layers in its own loop."""

    def __init__(self, channels: int) -> None:
        super().__init__({"a": nn.Conv2d(channels, 5, 1), "b": nn.Conv2d(channels + 5, 5, 1)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.values():
            x = torch.cat([x, layer(x)], 1)
        return x


class Pair(nn.Module):
    """A module that returns more than features."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x.mean((2, 3))


def residual_net(*, checkpointed: bool = False) -> nn.Sequential:
    """A stem and two stages of residual blocks with 16 and 24 channels, and five classes."""
    torch.manual_seed(0)
    return net(Residual(16, checkpointed=checkpointed), Residual(24, checkpointed=checkpointed))


def net(first: nn.Module, second: nn.Module) -> nn.Sequential:
    """A stem, a module with 16 channels, a module with 24 channels at half the size, a head."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        first,
        nn.Conv2d(16, 24, 2, stride=2),
        second,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 5),
    )


def hollow(make: Callable[[], nn.Module]) -> nn.Module:
    """A large model with uninitialized weights, for parameter counts and shapes."""
    with torch.device("meta"):
        model = make()
    return model.to_empty(device="cpu")


def image() -> Tensor:
    return torch.randn(IMAGE, generator=torch.Generator().manual_seed(1))
