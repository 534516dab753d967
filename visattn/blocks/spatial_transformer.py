"""Spatial transformer: resample features under a predicted affine transform (STN)."""

from typing import ClassVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_choice, check_odd
from visattn.blocks.tap import Tap
from visattn.functional.sampling import (
    PaddingMode,
    affine_coverage,
    affine_sample,
    tent_pool,
)

_CELLS = 4


class LocalizationNetwork(nn.Module):
    """Localization network of a spatial transformer: predicts an affine transform from features.

    Two strided convolutions, average pooling to 4 x 4 cells and two linear layers, so that any
    spatial size works. Initialized to predict the identity.

    Raises:
        ValueError: If the kernel size is even or the hidden width below 1.

    Example:
        >>> LocalizationNetwork(3)(torch.rand(1, 3, 28, 28)).tolist()
        [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]
    """

    def __init__(self, channels: int, *, kernel_size: int = 5, hidden_channels: int = 32) -> None:
        super().__init__()
        check_odd("kernel_size", kernel_size)
        if hidden_channels < 1:
            raise ValueError(f"hidden_channels must be at least 1, got {hidden_channels}")
        # One more pixel of padding than usual keeps every output larger than 1 x 1, for which an
        # exported graph would need a separate case.
        padding = kernel_size // 2 + 1
        self.convs = nn.Sequential(
            nn.Conv2d(channels, hidden_channels, kernel_size, stride=2, padding=padding),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden_channels, hidden_channels, kernel_size, stride=2, padding=padding),
            nn.ReLU(inplace=True),
        )
        self.fc1 = nn.Linear(_CELLS * _CELLS * hidden_channels, hidden_channels)
        self.fc2 = nn.Linear(hidden_channels, 6)
        nn.init.zeros_(self.fc2.weight)
        with torch.no_grad():
            self.fc2.bias.copy_(torch.eye(2, 3).flatten())

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b 2 3"]:
        """Return the affine transforms from output to input coordinates."""
        pooled = tent_pool(self.convs(x), num_cells=_CELLS).flatten(1)
        return self.fc2(self.fc1(pooled).relu()).unflatten(1, (2, 3))


class SpatialTransformer(Block):
    """Spatial transformer: resamples the features under an affine transform predicted from them.

    The tap receives the share of each input position that the output covers, from 0 to 1. To draw
    the sampled region as a frame, pass `theta(x)` to `functional.sampling.affine_corners`.

    Args:
        channels: Number of input channels.
        kernel_size: Kernel size of the localization network, odd.
        hidden_channels: Width of the localization network.
        align_corners: As in `torch.nn.functional.grid_sample`.
        padding_mode: What is seen beyond the edge.

    Raises:
        ValueError: If the kernel size is even, the hidden width below 1, or the padding mode
            unknown.

    Example:
        >>> x = torch.rand(1, 8, 5, 7)
        >>> bool((SpatialTransformer(8)(x) - x).abs().max() < 1e-6)
        True

    Source:
        Jaderberg et al. 2015, arXiv:1506.02025, section 3.
    """

    info: ClassVar = BlockInfo(
        name="stn",
        kind="spatial",
        title="Spatial transformer (affine)",
        paper="Jaderberg et al. 2015, arXiv:1506.02025",
        equation="y[p] = x[theta(x) (p, 1)], bilinear; theta = W2 relu(W1 pools(relu convs(x)))",
        parameters="k k C h + k k h h + 16 h h + 9 h + 6, with h = hidden_channels",
        deviations=(
            "the paper leaves the localization network open; this one accepts any spatial size",
            "theta acts on coordinates in [-1, 1]: a rotation also shears a non-square grid",
        ),
    )

    def __init__(
        self,
        channels: int,
        *,
        kernel_size: int = 5,
        hidden_channels: int = 32,
        align_corners: bool = False,
        padding_mode: PaddingMode = "zeros",
    ) -> None:
        super().__init__(channels)
        check_choice("padding_mode", padding_mode, get_args(PaddingMode))
        self.align_corners = align_corners
        self.padding_mode: PaddingMode = padding_mode
        self.localization = LocalizationNetwork(
            channels, kernel_size=kernel_size, hidden_channels=hidden_channels
        )
        self.tap = Tap("gate")

    def theta(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b 2 3"]:
        """Return the predicted affine transforms, from output to input coordinates."""
        return self.localization(x)

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features resampled under the predicted transform."""
        theta = self.localization(x)
        if self.tap.wanted:
            size = x.shape[2], x.shape[3]
            self.tap(affine_coverage(theta, size, align_corners=self.align_corners))
        return affine_sample(
            x, theta, align_corners=self.align_corners, padding_mode=self.padding_mode
        )
