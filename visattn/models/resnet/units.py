"""Residual units with an optional attention block before the addition."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

BlockFactory = Callable[[int], nn.Module]
"""Creates an attention block for a number of channels."""


def create_conv(
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1
) -> nn.Conv2d:
    """Return a padded convolution without bias, with He initialization.

    Example:
        >>> create_conv(3, 5, 3, stride=2)(torch.zeros(1, 3, 7, 11)).shape
        torch.Size([1, 5, 4, 6])
    """
    conv = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2, bias=False
    )
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class ZeroPadShortcut(nn.Module):
    """Shortcut without parameters: strided subsampling, and zeros in the additional channels.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        stride: Stride.

    Example:
        >>> ZeroPadShortcut(2, 5, 2)(torch.ones(1, 2, 4, 4)).sum((2, 3))
        tensor([[4., 4., 0., 0., 0.]])

    Source:
        He et al. 2016, arXiv:1512.03385, section 3.3, option A.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.extra_channels, self.stride = out_channels - in_channels, stride

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the subsampled features with additional channels of zeros."""
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra_channels))


class BasicUnit(nn.Module):
    """Basic residual unit: two 3×3 convolutions and a shortcut.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        inner_channels: Number of channels between the convolutions; by default `out_channels`.
        stride: Stride of the first convolution.
        create_block: Creates the attention block before the addition; None for none.
        zero_pad: Whether a shortcut that changes the shape is a `ZeroPadShortcut`.

    Source:
        He et al. 2016, arXiv:1512.03385, figure 5 left.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        inner_channels: int | None = None,
        stride: int = 1,
        create_block: BlockFactory | None = None,
        zero_pad: bool = False,
    ) -> None:
        super().__init__()
        inner = inner_channels or out_channels
        self.conv1, self.bn1 = create_conv(in_channels, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = create_conv(inner, out_channels, 3), nn.BatchNorm2d(out_channels)
        self.attention = create_block(out_channels) if create_block else None
        self.downsample = _create_shortcut(in_channels, out_channels, stride, zero_pad=zero_pad)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the output features."""
        residual = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        residual = residual if self.attention is None else self.attention(residual)
        return (residual + (x if self.downsample is None else self.downsample(x))).relu()


class BottleneckUnit(nn.Module):
    """Bottleneck residual unit: 1×1, 3×3 and 1×1 convolutions, and a shortcut.

    Args:
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        inner_channels: Number of channels of the 3×3 convolution; by default `out_channels` / 4.
        stride: Stride of the 3×3 convolution.
        create_block: Creates the attention block before the addition; None for none.
        zero_pad: Whether a shortcut that changes the shape is a `ZeroPadShortcut`.

    Source:
        He et al. 2016, arXiv:1512.03385, figure 5 right; the stride is in the 3×3 convolution, as
        in torchvision, where the paper has it in the first 1×1 convolution.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        inner_channels: int | None = None,
        stride: int = 1,
        create_block: BlockFactory | None = None,
        zero_pad: bool = False,
    ) -> None:
        super().__init__()
        inner = inner_channels or out_channels // 4
        self.conv1, self.bn1 = create_conv(in_channels, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = create_conv(inner, inner, 3, stride), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = create_conv(inner, out_channels, 1), nn.BatchNorm2d(out_channels)
        self.attention = create_block(out_channels) if create_block else None
        self.downsample = _create_shortcut(in_channels, out_channels, stride, zero_pad=zero_pad)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c2 y2 x2"]:
        """Return the output features."""
        residual = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        residual = self.bn3(self.conv3(residual))
        residual = residual if self.attention is None else self.attention(residual)
        return (residual + (x if self.downsample is None else self.downsample(x))).relu()


def _create_shortcut(
    in_channels: int, out_channels: int, stride: int, *, zero_pad: bool
) -> nn.Module | None:
    if in_channels == out_channels and stride == 1:
        return None
    if zero_pad:
        return ZeroPadShortcut(in_channels, out_channels, stride)
    return nn.Sequential(
        create_conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels)
    )
