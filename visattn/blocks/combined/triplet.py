"""Triplet attention."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, check_odd, scaled
from visattn.blocks.norm import MapNorm
from visattn.blocks.tap import Tap
from visattn.functional.gates.combined import axis_pools, triplet_gate


class TripletAttention(Block):
    """Scale each place in each channel by the mean of three gates, each over two of the axes.

    Args:
        channels: Width of a feature.
        kernel: Side of the neighborhood that each of the three gates knows, odd.

    Raises:
        ValueError: If the kernel is even or below 1; in training, if the batch is one image of
            one place.

    Example:
        >>> import torch
        >>> TripletAttention(64)(torch.zeros(1, 64, 5, 7)).shape
        torch.Size([1, 64, 5, 7])

    Source:
        Misra et al. 2021, arXiv:2010.03045, equations 1 to 3.
    """

    card: ClassVar = BlockInfo(
        name="triplet",
        kind="both",
        title="Triplet attention",
        paper="Misra et al. 2021, arXiv:2010.03045",
        equation="y = x * (g_yx + g_cy + g_cx) / 3, g = s(BN(conv_k([max; mean over the third])))",
        parameters="3 (2 k k + 2)",
        deviations=(
            "the three gates are averaged before they meet the features, not three gated copies",
        ),
        weights=("triplet-attention TripletAttention (hw, hc, cw)",),
        aliases=("triplet attn",),
    )

    def __init__(self, channels: int, *, kernel: int = 7) -> None:
        super().__init__(channels)
        check_odd("kernel", kernel)
        self.places = PairGate(kernel)
        self.rows = PairGate(kernel)
        self.columns = PairGate(kernel)
        self.tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, each scaled by its gate."""
        places = self.places(axis_pools(x, 1))
        # The released kernels of rows run over rows, then channels; of columns, channels first.
        rows = self.rows(axis_pools(x, 3).transpose(2, 3)).transpose(1, 2)
        columns = self.columns(axis_pools(x, 2))
        return scaled(x, triplet_gate(places, rows, columns), self.tap)


class PairGate(nn.Module):
    """Make one gate for each pair of positions on two axes.

    Args:
        kernel: Side of the neighborhood that a gate knows, odd.

    Example:
        >>> import torch
        >>> PairGate(3)(torch.zeros(1, 2, 5, 7)).shape
        torch.Size([1, 5, 7])
    """

    def __init__(self, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, kernel, padding=kernel // 2, bias=False)
        self.norm = MapNorm(1, momentum=0.01)  # as released

    def forward(self, pools: Float[Tensor, "b 2 p q"]) -> Float[Tensor, "b p q"]:
        """Return the gates, in (0, 1).

        Raises:
            ValueError: If it is to learn from a single value, which has no variance.
        """
        return self.norm(self.conv(pools)).sigmoid().squeeze(1)
