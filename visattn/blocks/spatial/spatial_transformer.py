"""Spatial transformers: look at the features again, moved, turned or scaled."""

from typing import ClassVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_choice, check_odd
from visattn.blocks.tap import Tap
from visattn.functional.sampling import (
    Padding,
    affine_sampled,
    coarse_pools,
    sampled_region,
)

_CELLS = 4


class PoseRegression(nn.Module):
    """Say by which affine map the features should be seen; at the start, as they are.

    Two strided convolutions, means of what they find around the middles of 4 x 4 cells, and two
    linear maps: grids of all sizes will do, and where a feature lies is not lost.

    Args:
        channels: Width of a feature.
        kernel: Side of the convolutions, odd.
        hidden: Width of the hidden layers.

    Raises:
        ValueError: If the kernel is even or the hidden width below 1.

    Example:
        >>> PoseRegression(3)(torch.rand(1, 3, 28, 28)).tolist()
        [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]
    """

    def __init__(self, channels: int, *, kernel: int = 5, hidden: int = 32) -> None:
        super().__init__()
        check_odd("kernel", kernel)
        if hidden < 1:
            raise ValueError(f"hidden must be at least 1, got {hidden}")
        # One pixel more of padding than usual: no grid shrinks to a single place, which an exported
        # graph would have to tell from larger ones.
        padding = kernel // 2 + 1
        self.find = nn.Sequential(
            nn.Conv2d(channels, hidden, kernel, stride=2, padding=padding),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, hidden, kernel, stride=2, padding=padding),
            nn.ReLU(inplace=True),
        )
        self.relate = nn.Linear(_CELLS * _CELLS * hidden, hidden)
        self.regress = nn.Linear(hidden, 6)
        nn.init.zeros_(self.regress.weight)
        with torch.no_grad():
            self.regress.bias.copy_(torch.eye(2, 3).flatten())

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b 2 3"]:
        """Return the map from places of the output to places of the input."""
        found = coarse_pools(self.find(x), cells=_CELLS).flatten(1)
        return self.regress(self.relate(found).relu()).unflatten(1, (2, 3))


class SpatialTransformer(Block):
    """Replace the features by a view of them under an affine map that is read from them.

    The tap shows how much of each place of the input is in the view, from 0 to 1. To draw the view
    as a frame, give `theta(x)` to `functional.affine_samplers.sampled_corners`.

    Args:
        channels: Width of a feature.
        kernel: Side of the convolutions that find the map, odd.
        hidden: Width of the layers that find the map.
        align_corners: Whether the ends of the coordinates are the centers of the outermost pixels,
            or their outer edges; for grid and sampling alike.
        padding: What is seen beyond the edge.

    Raises:
        ValueError: If the kernel is even, the hidden width below 1, or there is no such padding.

    Example:
        >>> x = torch.rand(1, 8, 5, 7)
        >>> bool((SpatialTransformer(8)(x) - x).abs().max() < 1e-6)
        True

    Source:
        Jaderberg et al. 2015, arXiv:1506.02025, section 3.
    """

    card: ClassVar = BlockInfo(
        name="stn",
        kind="spatial",
        title="Spatial transformer (affine)",
        paper="Jaderberg et al. 2015, arXiv:1506.02025",
        equation="y[p] = x[theta(x) (p, 1)], bilinear; theta = W2 relu(W1 pools(relu convs(x)))",
        parameters="k k C h + k k h h + 16 h h + 9 h + 6, with h = hidden",
        deviations=(
            "the paper leaves the network that finds theta open: ours takes any size of grid",
            "theta is in coordinates of -1 to 1: a turn also slants a grid that is not square",
        ),
        aliases=("spatial transformer network",),
    )

    def __init__(
        self,
        channels: int,
        *,
        kernel: int = 5,
        hidden: int = 32,
        align_corners: bool = False,
        padding: Padding = "zeros",
    ) -> None:
        super().__init__(channels)
        check_choice("padding", padding, get_args(Padding))
        self.align_corners = align_corners
        self.padding: Padding = padding
        self.locate = PoseRegression(channels, kernel=kernel, hidden=hidden)
        self.tap = Tap("gate")

    def theta(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b 2 3"]:
        """Return the affine map under which the features are seen, from output to input."""
        return self.locate(x)

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the view of the features."""
        theta = self.locate(x)
        if self.tap.wanted:
            size = x.shape[2], x.shape[3]
            self.tap(sampled_region(theta, size, align_corners=self.align_corners))
        return affine_sampled(x, theta, align_corners=self.align_corners, padding=self.padding)
