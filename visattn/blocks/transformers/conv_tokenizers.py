"""Tokens by convolutions that overlap, of compact transformers."""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn


class ConvTokenizer(nn.Module):
    """Make tokens by convolutions, each with a ReLU and a maximum over 3 × 3 places, every second.

    Args:
        channels: Of a picture.
        width: Of a token.
        layers: Convolutions; those before the last are 64 wide.
        kernel: Size of a convolution, odd; it moves on by `stride`.
        stride: Of each convolution.

    Raises:
        ValueError: If a number is below 1 or the kernel is even.

    Example:
        >>> import torch
        >>> ConvTokenizer(3, 8)(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 8, 16, 16])

    Source:
        Hassani et al. 2021, arXiv:2104.05704, section 3.3.
    """

    def __init__(
        self, channels: int, width: int, *, layers: int = 1, kernel: int = 3, stride: int = 1
    ) -> None:
        super().__init__()
        if min(layers, kernel, stride) < 1 or kernel % 2 == 0:
            raise ValueError(
                "layers, kernel and stride must be at least 1 and the kernel odd, got "
                f"{layers}, {kernel} and {stride}"
            )
        self.layers, self.stride = layers, stride
        self.patch = (1, 1)
        widths = [channels, *[64] * (layers - 1), width]
        self.conv_layers = nn.Sequential()
        for come, go in pairwise(widths):
            conv = nn.Conv2d(come, go, kernel, stride, padding=kernel // 2, bias=False)
            nn.init.kaiming_normal_(conv.weight)
            self.conv_layers.append(nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)))

    def forward(self, pictures: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        return self.conv_layers(pictures)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the grid of tokens, for pictures of a size."""
        height, width = size
        for _ in range(self.layers):  # the convolution moves on by its stride, the maximum by two
            height, width = ((side - 1) // self.stride // 2 + 1 for side in (height, width))
        return height, width
