"""Stems that turn an image into tokens: patch embedding, convolutional stems, shifted patches."""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pixel_unshuffle

from visattn.functional.windows import diagonal_shifts


class PatchEmbedding(nn.Module):
    """Patch embedding: one linear projection per non-overlapping patch.

    Example:
        >>> import torch
        >>> PatchEmbedding(3, 8, patch_size=(2, 4))(torch.zeros(1, 3, 6, 8)).shape
        torch.Size([1, 8, 3, 2])

    Source:
        Dosovitskiy et al. 2020, arXiv:2010.11929, equation 1.
    """

    def __init__(self, in_channels: int, embed_dim: int, *, patch_size: tuple[int, int]) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, embed_dim, patch_size, patch_size)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        return self.proj(images)

    def grid_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the token grid for an image size."""
        return img_size[0] // self.patch_size[0], img_size[1] // self.patch_size[1]


class ConvStem(nn.Module):
    """Convolutional stem: stride-2 3 × 3 convolutions with batch normalization and ReLU.

    There is one stride-2 convolution for each factor of two in the patch size. The last one has
    embed_dim / 2 channels, each earlier one half as many as the next; a 1 × 1 convolution follows.

    Args:
        patch_size: Height and width of a patch: the same power of two, at least 2.

    Raises:
        ValueError: If the patch size is invalid, or `embed_dim` cannot be halved often enough.

    Example:
        >>> import torch
        >>> ConvStem(3, 8, patch_size=(4, 4))(torch.zeros(1, 3, 8, 12)).shape
        torch.Size([1, 8, 2, 3])

    Source:
        Xiao et al. 2021, arXiv:2106.14881, section 4. Deviation: the channels follow from
        `embed_dim`, where the paper chooses them by hand.
    """

    def __init__(self, in_channels: int, embed_dim: int, *, patch_size: tuple[int, int]) -> None:
        super().__init__()
        halvings = patch_size[0].bit_length() - 1
        if patch_size[0] != patch_size[1] or patch_size[0] < 2 or 2**halvings != patch_size[0]:
            raise ValueError(
                "a convolutional stem needs a square patch_size of 2, 4, 8, 16, ...; "
                f"got {patch_size[0]} x {patch_size[1]}"
            )
        if embed_dim % 2**halvings:
            raise ValueError(
                f"embed_dim must be a multiple of {2**halvings} for a convolutional stem with "
                f"patch_size {patch_size[0]}, got {embed_dim}"
            )
        self.patch_size = patch_size
        widths = [in_channels, *(embed_dim >> step for step in range(halvings, 0, -1))]
        layers: list[nn.Module] = []
        for in_width, out_width in pairwise(widths):
            layers += [
                nn.Conv2d(in_width, out_width, 3, 2, padding=1, bias=False),
                nn.BatchNorm2d(out_width),
                nn.ReLU(),
            ]
        self.stack = nn.Sequential(*layers)
        self.proj = nn.Conv2d(widths[-1], embed_dim, 1)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        return self.proj(self.stack(images))

    def grid_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the token grid for an image size."""
        return img_size[0] // self.patch_size[0], img_size[1] // self.patch_size[1]


class ConvTokenizer(nn.Module):
    """Convolutional tokenizer of CCT: layers of convolution, ReLU and 3 × 3 max pooling.

    Args:
        num_layers: Number of convolutions; those before the last have 64 channels.

    Raises:
        ValueError: If a number is below 1 or the kernel size is even.

    Example:
        >>> import torch
        >>> ConvTokenizer(3, 8)(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 8, 16, 16])

    Source:
        Hassani et al. 2021, arXiv:2104.05704, section 3.3.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dim: int,
        *,
        num_layers: int = 1,
        kernel_size: int = 3,
        stride: int = 1,
    ) -> None:
        super().__init__()
        if min(num_layers, kernel_size, stride) < 1 or kernel_size % 2 == 0:
            raise ValueError(
                "num_layers, kernel_size and stride must be at least 1, and kernel_size odd, got "
                f"{num_layers}, {kernel_size} and {stride}"
            )
        self.num_layers = num_layers
        self.stride = stride
        self.patch_size = (1, 1)
        widths = [in_channels, *[64] * (num_layers - 1), embed_dim]
        self.conv_layers = nn.Sequential()
        for in_width, out_width in pairwise(widths):
            conv = nn.Conv2d(
                in_width, out_width, kernel_size, stride, padding=kernel_size // 2, bias=False
            )
            nn.init.kaiming_normal_(conv.weight)
            self.conv_layers.append(nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)))

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        return self.conv_layers(images)

    def grid_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the token grid for an image size."""
        height, width = img_size
        for _ in range(self.num_layers):  # convolution with its stride, then pooling with stride 2
            height, width = ((side - 1) // self.stride // 2 + 1 for side in (height, width))
        return height, width


class ShiftedPatchEmbedding(nn.Module):
    """Shifted patch tokenization: embeds patches of the image and four diagonally shifted copies.

    Raises:
        ValueError: If the patch is not square.

    Example:
        >>> import torch
        >>> ShiftedPatchEmbedding(3, 8, patch_size=(4, 4))(torch.zeros(1, 3, 8, 12)).shape
        torch.Size([1, 8, 2, 3])

    Source:
        Lee et al. 2021, arXiv:2112.13492, section 3.1, and the authors' code: shifts of half a
        patch along the diagonals, layer norm before the projection. Pixels are in channel-major
        order.
    """

    def __init__(self, in_channels: int, embed_dim: int, *, patch_size: tuple[int, int]) -> None:
        super().__init__()
        if patch_size[0] != patch_size[1]:
            raise ValueError(
                f"a shifted patch embedding needs square patches, got {patch_size[0]} x "
                f"{patch_size[1]}; stem='patch' supports any patch shape"
            )
        self.patch_size = patch_size
        inner = 5 * in_channels * patch_size[0] ** 2
        self.norm = nn.LayerNorm(inner)
        self.proj = nn.Linear(inner, embed_dim)

    def forward(self, images: Float[Tensor, "b c y x"]) -> Float[Tensor, "b w v u"]:
        """Return the tokens on their grid."""
        copies = diagonal_shifts(images, (self.patch_size[0] // 2, self.patch_size[1] // 2))
        pixels = pixel_unshuffle(copies, self.patch_size[0]).permute(0, 2, 3, 1)
        return self.proj(self.norm(pixels)).permute(0, 3, 1, 2)

    def grid_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the token grid for an image size."""
        return img_size[0] // self.patch_size[0], img_size[1] // self.patch_size[1]
