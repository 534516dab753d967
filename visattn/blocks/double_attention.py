"""Double attention (A2-Net)."""

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo
from visattn.blocks.tap import Tap
from visattn.functional.numerics import at_least_float32, without_autocast


class DoubleAttention(Block):
    """Double attention: gathers global descriptors and distributes them to all positions (A2-Net).

    Over n positions and k descriptors, the columns of G::

        G = (Wf x) softmax_n(Wg x)^T
        y = x + Wz (G softmax_k(Wd x))

    Costs 2 n h k MACs in addition to its convolutions: linear in the number of positions.
    `gather_tap` and `distribute_tap` receive one map per descriptor.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the inner features, which keep at least one channel.
        num_descriptors: Number of descriptors; the number of inner channels if None, but at least
            2, since the softmax over a single descriptor is constant.

    Example:
        >>> import torch
        >>> DoubleAttention(16)(torch.zeros(1, 16, 5, 7)).shape
        torch.Size([1, 16, 5, 7])

    Source:
        Chen et al. 2018, arXiv:1810.11579, equations 3 to 6.
    """

    info = BlockInfo("a2", "self_attention", "Chen et al. 2018, arXiv:1810.11579")

    def __init__(
        self, channels: int, *, reduction: int = 2, num_descriptors: int | None = None
    ) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        count = num_descriptors or max(2, hidden)
        self.feature = nn.Conv2d(channels, hidden, 1)
        self.gather = nn.Conv2d(channels, count, 1)
        self.distribute = nn.Conv2d(channels, count, 1)
        self.project = nn.Conv2d(hidden, channels, 1)
        self.gather_tap = Tap("gate")
        self.distribute_tap = Tap("gate")

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features plus the descriptors distributed to each position."""
        grid = x.shape[2:]
        features = at_least_float32(self.feature(x).flatten(2))  # [b h n]
        gather = at_least_float32(self.gather(x).flatten(2)).softmax(2)  # [b k n]
        distribute = at_least_float32(self.distribute(x).flatten(2)).softmax(1)
        self.gather_tap(gather.to(x.dtype).unflatten(2, grid))
        self.distribute_tap(distribute.to(x.dtype).unflatten(2, grid))
        with without_autocast(x.device):
            output = features @ gather.mT @ distribute
        return x + self.project(output.to(x.dtype).unflatten(2, grid))
