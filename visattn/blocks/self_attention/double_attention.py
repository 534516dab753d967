"""Double attention: gather, then distribute."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, hidden_width
from visattn.blocks.tap import Tap
from visattn.functional.attention.cnn import double_attention


class DoubleAttention(Block):
    """Add to each place what it picks out of a few descriptors, gathered from all places.

    Costs 2 n h k multiplications for n places and k descriptors, beside its convolutions: it grows
    with the number of places, not with its square. What is gathered is seen at `gather_tap`, a map
    per descriptor; what is picked at `distribute_tap`, also a map per descriptor.

    Args:
        channels: Width of a feature.
        reduction: By which features are narrower inside; they keep at least one channel.
        descriptors: How many there are; as many as channels inside if None, but at least 2: of a
            single one there is nothing to pick.

    Raises:
        ValueError: If there is no descriptor.

    Example:
        >>> DoubleAttention(16)(torch.zeros(1, 16, 5, 7)).shape
        torch.Size([1, 16, 5, 7])

    Source:
        Chen et al. 2018, arXiv:1810.11579, equations 3 to 6.
    """

    card: ClassVar = BlockInfo(
        name="a2",
        kind="grid",
        title="Double attention (A2)",
        paper="Chen et al. 2018, arXiv:1810.11579",
        equation="y = x + Wz (G softmax_k(Wd x)), G = (Wf x) softmax_n(Wg x)^T: softmax over the n "
        "places to gather, over the k descriptors to distribute",
        parameters="2 C h + h + 2 (C k + k) + C, with h = max(1, C // reduction), k = max(2, h)",
        aliases=("A2-Net", "double attn"),
    )

    def __init__(
        self, channels: int, *, reduction: int = 2, descriptors: int | None = None
    ) -> None:
        super().__init__(channels)
        hidden = hidden_width(channels, reduction)
        many = max(2, hidden) if descriptors is None else descriptors
        if many < 1:
            raise ValueError(f"descriptors must be at least 1, got {many}")
        self.feature = nn.Conv2d(channels, hidden, 1)
        self.gather = nn.Conv2d(channels, many, 1)
        self.distribute = nn.Conv2d(channels, many, 1)
        self.project = nn.Conv2d(hidden, channels, 1)
        self.gather_tap = Tap("gate")
        self.distribute_tap = Tap("gate")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, to each place added what it picks out of the descriptors."""
        grid = x.shape[2:]
        given, (gathering, distributing) = double_attention(
            self.feature(x).flatten(2), self.gather(x).flatten(2), self.distribute(x).flatten(2)
        )
        self.gather_tap(gathering.unflatten(2, grid))
        self.distribute_tap(distributing.unflatten(2, grid))
        return x + self.project(given.unflatten(2, grid))
