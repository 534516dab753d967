"""The non-local block."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.base import Block, BlockInfo, hidden_width
from visattn.blocks.norm import MapNorm
from visattn.blocks.tap import Tap
from visattn.functional.attention.softmax import attention


class NonLocal(Block):
    """Add to each place what it takes from all places by likeness (embedded Gaussian).

    A new block returns its input, since its norm begins at zero. Costs 2 n² h multiplications for n
    places beside its convolutions. In training it needs more than one place in the batch.

    Args:
        channels: Width of a feature.
        reduction: By which features are narrower inside; they keep at least one channel.
        scale: Whether to divide products by the root of the inner width, which the paper does not.

    Example:
        >>> x = torch.randn(2, 8, 5, 7)
        >>> torch.equal(NonLocal(8)(x), x)
        True

    Source:
        Wang et al. 2018, arXiv:1711.07971, equations 4 and 6, section 4.1.
    """

    card: ClassVar = BlockInfo(
        name="nonlocal",
        kind="grid",
        title="Non-local block",
        paper="Wang et al. 2018, arXiv:1711.07971",
        equation="y_i = x_i + BN(Wz sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j), gamma of BN 0",
        parameters="4 C h + 3 h + 3 C, with h = max(1, C // reduction)",
        deviations=(
            "no pooling of keys and values (the paper's optional subsampling trick)",
            "scale=True divides the products by sqrt(h); the paper does not",
        ),
        aliases=("nl", "non-local block", "non-local neural network"),
    )

    def __init__(self, channels: int, *, reduction: int = 2, scale: bool = False) -> None:
        super().__init__(channels)
        hidden = hidden_width(channels, reduction)
        self.query = nn.Conv2d(channels, hidden, 1)
        self.key = nn.Conv2d(channels, hidden, 1)
        self.value = nn.Conv2d(channels, hidden, 1)
        self.project = nn.Conv2d(hidden, channels, 1)
        self.norm = MapNorm(channels)
        nn.init.zeros_(self.norm.weight)
        self.scale = hidden**-0.5 if scale else 1.0
        self.tap = Tap("tokens")

    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features, to each place added what it takes from all."""
        queries, keys, values = (
            part(x).flatten(2).mT for part in (self.query, self.key, self.value)
        )
        seen, weights = attention(
            queries, keys, values, scale=self.scale, need_weights=self.tap.wanted
        )
        if weights is not None:
            self.tap.grid = (x.shape[2], x.shape[3])
            self.tap(weights)
        return x + self.norm(self.project(seen.mT.unflatten(2, x.shape[2:])))
