"""Patches of an image as tokens: one linear map of their pixels."""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pixel_unshuffle

from visattn.functional.tokens import diagonal_shifts


class PatchEmbedding(nn.Module):
    """Make a token of each patch.

    Args:
        channels: Of an image.
        width: Of a token.
        patch: Height and width of a patch.

    Example:
        >>> import torch
        >>> PatchEmbedding(3, 8, patch=(2, 4))(torch.zeros(1, 3, 6, 8)).shape
        torch.Size([1, 8, 3, 2])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, equation 1.
    """

    def __init__(self, channels: int, width: int, *, patch: tuple[int, int]) -> None:
        super().__init__()
        self.patch = patch
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        return self.proj(images)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the grid of tokens, for images of a size."""
        return size[0] // self.patch[0], size[1] // self.patch[1]


class ConvStem(nn.Module):
    """Make a token of each patch by convolutions that halve the image, wider each time.

    There is one of them for each factor of two in the patch, 3 × 3 with batch normalization and
    ReLU; the last one is width / 2 wide, each before it half as wide, and a linear map follows.

    Args:
        channels: Of an image.
        width: Of a token.
        patch: Height and width of a patch: one power of two, at least 2.

    Raises:
        ValueError: If the patch is no such power, or the width cannot be halved so often.

    Example:
        >>> import torch
        >>> ConvStem(3, 8, patch=(4, 4))(torch.zeros(1, 3, 8, 12)).shape
        torch.Size([1, 8, 2, 3])

    Source:
        Xiao et al. 2021, arXiv:2106.14881, section 4. Deviation: widths follow from that of a
        token, where the paper chooses them by hand.
    """

    def __init__(self, channels: int, width: int, *, patch: tuple[int, int]) -> None:
        super().__init__()
        halvings = patch[0].bit_length() - 1
        if patch[0] != patch[1] or patch[0] < 2 or 2**halvings != patch[0]:
            raise ValueError(
                "a convolutional stem halves the image several times, so that a patch must be "
                f"square with sides of 2, 4, 8, 16, ...; got {patch[0]} x {patch[1]}"
            )
        if width % 2**halvings:
            raise ValueError(
                f"the width must be a multiple of {2**halvings} for a convolutional stem with "
                f"patches of {patch[0]}, got {width}"
            )
        self.patch = patch
        widths = [channels, *(width >> step for step in range(halvings, 0, -1))]
        layers: list[nn.Module] = []
        for come, go in pairwise(widths):
            layers += [
                nn.Conv2d(come, go, 3, 2, padding=1, bias=False),
                nn.BatchNorm2d(go),
                nn.ReLU(),
            ]
        self.stack = nn.Sequential(*layers)
        self.proj = nn.Conv2d(widths[-1], width, 1)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        return self.proj(self.stack(images))

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the grid of tokens, for images of a size."""
        return size[0] // self.patch[0], size[1] // self.patch[1]


class ConvTokenizer(nn.Module):
    """Make tokens by convolutions, each with a ReLU and a maximum over 3 × 3 places, every second.

    Args:
        channels: Of an image.
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

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        return self.conv_layers(images)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the grid of tokens, for images of a size."""
        height, width = size
        for _ in range(self.layers):  # the convolution moves on by its stride, the maximum by two
            height, width = ((side - 1) // self.stride // 2 + 1 for side in (height, width))
        return height, width


class ShiftedPatchEmbedding(nn.Module):
    """Make a token of each patch of the image and of four copies, moved by half a patch.

    Args:
        channels: Of an image.
        width: Of a token.
        patch: Height and width of a patch; the same.

    Raises:
        ValueError: If a patch is not square.

    Example:
        >>> import torch
        >>> ShiftedPatchEmbedding(3, 8, patch=(4, 4))(torch.zeros(1, 3, 8, 12)).shape
        torch.Size([1, 8, 2, 3])

    Source:
        Lee et al. 2021, arXiv:2112.13492, section 3.1, and the authors' code: along the diagonals,
        by half a patch, with a norm before the linear map. Pixels stand channel by channel.
    """

    def __init__(self, channels: int, width: int, *, patch: tuple[int, int]) -> None:
        super().__init__()
        if patch[0] != patch[1]:
            raise ValueError(
                f"shifted patches must be square, got {patch[0]} x {patch[1]}; stem='patch' takes "
                "patches of any shape"
            )
        self.patch = patch
        inner = 5 * channels * patch[0] ** 2
        self.norm = nn.LayerNorm(inner)
        self.proj = nn.Linear(inner, width)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        copies = diagonal_shifts(images, (self.patch[0] // 2, self.patch[1] // 2))
        pixels = pixel_unshuffle(copies, self.patch[0]).permute(0, 2, 3, 1)
        return self.proj(self.norm(pixels)).permute(0, 3, 1, 2)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the grid of tokens, for images of a size."""
        return size[0] // self.patch[0], size[1] // self.patch[1]
