"""Residual units as published, with a place for attention before the addition."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

Maker = Callable[[int], nn.Module]
"""From a width to what attends at that width."""


def convolution(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the size but for its stride, ready to be followed by ReLU.

    Example:
        >>> convolution(3, 5, 3, stride=2)(torch.zeros(1, 3, 7, 11)).shape
        torch.Size([1, 5, 4, 6])
    """
    made = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made


class ZeroPadding(nn.Module):
    """The shortcut without parameters: every second place, new channels filled with zeros.

    Args:
        channels: Width that comes in.
        out: Width that goes out.
        stride: Step between the places that are kept.

    Example:
        >>> ZeroPadding(2, 5, 2)(torch.ones(1, 2, 4, 4)).sum((2, 3))
        tensor([[4., 4., 0., 0., 0.]])

    Source:
        He et al. 2016, arXiv:1512.03385, section 3.3, option A.
    """

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.more, self.stride = out - channels, stride

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the features thinned out and made wider."""
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))


class BasicUnit(nn.Module):
    """Two 3×3 convolutions and a shortcut.

    Args:
        channels: Width that comes in.
        width: Width that goes out.
        inner: Width between the convolutions.
        stride: Of the first convolution.
        attend: Makes what attends before the addition; None for nothing.
        padded: Whether a shortcut that changes the shape has no parameters.

    Source:
        He et al. 2016, arXiv:1512.03385, figure 5 left.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        inner: int | None = None,
        stride: int = 1,
        attend: Maker | None = None,
        padded: bool = False,
    ) -> None:
        super().__init__()
        inner = inner or width
        self.conv1, self.bn1 = convolution(channels, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = convolution(inner, width, 3), nn.BatchNorm2d(width)
        self.attention = attend(width) if attend else None
        self.downsample = _shortcut(channels, width, stride, padded=padded)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the features of the next unit."""
        change = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        change = change if self.attention is None else self.attention(change)
        return (change + (x if self.downsample is None else self.downsample(x))).relu()


class BottleneckUnit(nn.Module):
    """A 3×3 convolution between two of 1×1, the stride in the middle, and a shortcut.

    Args:
        channels: Width that comes in.
        width: Width that goes out.
        inner: Width of the middle; a quarter of `width` if left out.
        stride: Of the middle convolution.
        attend: Makes what attends before the addition; None for nothing.
        padded: Whether a shortcut that changes the shape has no parameters.

    Source:
        He et al. 2016, arXiv:1512.03385, figure 5 right; the stride stands in the 3×3 convolution,
        as in torchvision, where the paper has it in the first of 1×1.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        inner: int | None = None,
        stride: int = 1,
        attend: Maker | None = None,
        padded: bool = False,
    ) -> None:
        super().__init__()
        inner = inner or width // 4
        self.conv1, self.bn1 = convolution(channels, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = convolution(inner, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = convolution(inner, width, 1), nn.BatchNorm2d(width)
        self.attention = attend(width) if attend else None
        self.downsample = _shortcut(channels, width, stride, padded=padded)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the features of the next unit."""
        change = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        change = self.bn3(self.conv3(change))
        change = change if self.attention is None else self.attention(change)
        return (change + (x if self.downsample is None else self.downsample(x))).relu()


def _shortcut(channels: int, width: int, stride: int, *, padded: bool) -> nn.Module | None:
    if channels == width and stride == 1:
        return None
    if padded:
        return ZeroPadding(channels, width, stride)
    return nn.Sequential(convolution(channels, width, 1, stride), nn.BatchNorm2d(width))
