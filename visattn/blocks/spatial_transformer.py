"""Spatial transformer: resample features under a predicted affine transform (STN)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.sampling import affine_coverage, affine_sample, tent_pool

_CELLS = 4


class SpatialTransformer(Block):
    """Spatial transformer: resamples the features under an affine transform predicted from them.

    It samples bilinearly, at each position p of the output::

        y[p] = x[theta(x) (p, 1)],  theta = W2 relu(W1 pools(relu convs(x)) + b1) + b2

    Initialized as the identity. Theta acts on coordinates in [-1, 1], so that a rotation also
    shears a non-square grid. The paper does not prescribe the localization network. The tap
    receives the fraction of each input position that the output covers. To draw the sampled region
    as a frame, pass `theta(x)` to `functional.sampling.affine_corners`.

    Args:
        channels: Number of input channels.
        kernel_size: Kernel size of the localization network, odd.
        hidden_channels: Width of the localization network.
        align_corners: As in `torch.nn.functional.grid_sample`.
        padding_mode: Values outside of the input, as in `grid_sample`.

    Example:
        >>> x = torch.rand(1, 8, 5, 7)
        >>> bool((SpatialTransformer(8)(x) - x).abs().max() < 1e-6)
        True

    Source:
        Jaderberg et al. 2015, arXiv:1506.02025, section 3.
    """

    info = BlockInfo("stn", "spatial", "Jaderberg et al. 2015, arXiv:1506.02025")

    def __init__(
        self,
        channels: int,
        *,
        kernel_size: int = 5,
        hidden_channels: int = 32,
        align_corners: bool = False,
        padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
    ) -> None:
        super().__init__()
        self.align_corners = align_corners
        self.padding_mode: Literal["zeros", "border", "reflection"] = padding_mode
        self.localization = LocalizationNetwork(channels, kernel_size, hidden_channels)
        self.tap = Tap("gate")

    def theta(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b 2 3"]:
        """Return the predicted affine transforms, from output to input coordinates."""
        return self.localization(x)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features resampled under the predicted transform."""
        theta, corners = self.theta(x), self.align_corners
        if self.tap.wanted:
            self.tap(affine_coverage(theta, (x.shape[2], x.shape[3]), align_corners=corners))
        return affine_sample(x, theta, align_corners=corners, padding_mode=self.padding_mode)


class LocalizationNetwork(nn.Module):
    """Localization network of a spatial transformer: predicts an affine transform from features.

    Two strided convolutions, average pooling to 4 x 4 cells and two linear layers, so that any
    spatial size works. Initialized to predict the identity.

    Example:
        >>> LocalizationNetwork(3, 5, 32)(torch.rand(1, 3, 28, 28)).tolist()
        [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]
    """

    def __init__(self, channels: int, kernel_size: int, hidden: int) -> None:
        super().__init__()
        # One pixel of padding more than usual keeps every output larger than 1 x 1, which an
        # exported graph would have to treat separately.
        padding = kernel_size // 2 + 1
        self.convs = nn.Sequential(
            nn.Conv2d(channels, hidden, kernel_size, stride=2, padding=padding),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, hidden, kernel_size, stride=2, padding=padding),
            nn.ReLU(inplace=True),
        )
        self.fc1 = nn.Linear(_CELLS * _CELLS * hidden, hidden)
        self.fc2 = nn.Linear(hidden, 6)
        nn.init.zeros_(self.fc2.weight)
        with torch.no_grad():
            self.fc2.bias.copy_(torch.eye(2, 3).flatten())

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b 2 3"]:
        """Return the affine transforms from output to input coordinates."""
        pooled = tent_pool(self.convs(x), num_cells=_CELLS).flatten(1)
        return self.fc2(self.fc1(pooled).relu()).unflatten(1, (2, 3))
