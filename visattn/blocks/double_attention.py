"""Double attention (A2-Net)."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, reduced_channels
from visattn.blocks.tap import Tap
from visattn.functional.numerics import at_least_float32, without_autocast


def double_attention(
    features: Float[Tensor, "b c n"],
    gather: Float[Tensor, "b k n"],
    distribute: Float[Tensor, "b k n"],
) -> tuple[Float[Tensor, "b c n"], tuple[Float[Tensor, "b k n"], Float[Tensor, "b k n"]]]:
    """Return double attention: features gathered into k descriptors and distributed again.

    Each descriptor is a weighted mean over all positions; each position receives a weighted mean of
    the descriptors. This takes 2 n k c multiplications and 2 n k weights.

    Args:
        gather: Logits of the positions for each descriptor; a softmax over positions follows.
        distribute: Logits of the descriptors at each position; a softmax over descriptors follows.

    Returns:
        The output features and both attention weights: the first sum to 1 over positions, the
        second over descriptors.

    Example:
        >>> features = torch.tensor([[[1.0, 3.0]]])
        >>> double_attention(features, torch.zeros(1, 5, 2), torch.zeros(1, 5, 2))[0]
        tensor([[[2., 2.]]])

    Source:
        Chen et al. 2018, arXiv:1810.11579, equations 3 to 6.
    """
    gather_weights = at_least_float32(gather).softmax(-1)
    distribute_weights = at_least_float32(distribute).softmax(-2)
    with without_autocast(features.device):
        output = at_least_float32(features) @ gather_weights.mT @ distribute_weights
    weights = gather_weights.to(features.dtype), distribute_weights.to(features.dtype)
    return output.to(features.dtype), weights


class DoubleAttention(Block):
    """Double attention: gathers global descriptors and distributes them to all positions (A2-Net).

    Costs 2 n h k MACs for n positions and k descriptors, in addition to its convolutions: linear in
    the number of positions. `gather_tap` and `distribute_tap` receive one map per descriptor.

    Args:
        channels: Number of input channels.
        reduction: Reduction ratio of the inner features, which keep at least one channel.
        num_descriptors: Number of descriptors; the number of inner channels if None, but at least
            2, since the softmax over a single descriptor is constant.

    Raises:
        ValueError: If num_descriptors is below 1.

    Example:
        >>> DoubleAttention(16)(torch.zeros(1, 16, 5, 7)).shape
        torch.Size([1, 16, 5, 7])

    Source:
        Chen et al. 2018, arXiv:1810.11579, equations 3 to 6.
    """

    info: ClassVar = BlockInfo(
        name="a2",
        kind="self_attention",
        title="Double attention (A2)",
        paper="Chen et al. 2018, arXiv:1810.11579",
        equation="y = x + Wz (G softmax_k(Wd x)), G = (Wf x) softmax_n(Wg x)^T: softmax over the n "
        "positions to gather, over the k descriptors to distribute",
        parameters="2 C h + h + 2 (C k + k) + C, with h = max(1, C // reduction), k = max(2, h)",
    )

    def __init__(
        self, channels: int, *, reduction: int = 2, num_descriptors: int | None = None
    ) -> None:
        super().__init__(channels)
        hidden = reduced_channels(channels, reduction)
        # A softmax over a single descriptor would be 1 everywhere, whatever the features.
        count = max(2, hidden) if num_descriptors is None else num_descriptors
        if count < 1:
            raise ValueError(f"num_descriptors must be at least 1, got {count}")
        self.feature = nn.Conv2d(channels, hidden, 1)
        self.gather = nn.Conv2d(channels, count, 1)
        self.distribute = nn.Conv2d(channels, count, 1)
        self.project = nn.Conv2d(hidden, channels, 1)
        self.gather_tap = Tap("gate")
        self.distribute_tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features plus the descriptors distributed to each position."""
        grid = x.shape[2:]
        output, (gathering, distributing) = double_attention(
            self.feature(x).flatten(2), self.gather(x).flatten(2), self.distribute(x).flatten(2)
        )
        self.gather_tap(gathering.unflatten(2, grid))
        self.distribute_tap(distributing.unflatten(2, grid))
        return x + self.project(output.unflatten(2, grid))
