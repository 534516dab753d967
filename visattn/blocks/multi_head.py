"""Multi-head attention: self-attention or cross-attention."""

from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention


class MultiHeadAttention(nn.Module):
    """Multi-head scaled dot-product attention of queries over keys and values.

    Unless weights are requested or recorded, a fused kernel computes the output without storing
    them. A caller that knows the grid of the keys (row-major) sets `tap.grid` before the call;
    without a grid the weights cannot become maps and do not pass through the tap.

    Args:
        embed_dim: Dimension of queries, keys, values and output.
        num_heads: Number of heads; must divide `embed_dim`.

    Example:
        >>> import torch
        >>> attention = MultiHeadAttention(12, num_heads=3)
        >>> words, positions = torch.zeros(1, 2, 12), torch.zeros(1, 7, 12)
        >>> output, weights = attention(words, positions, need_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([1, 2, 12]), torch.Size([1, 3, 2, 7]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2, without dropout.
    """

    def __init__(self, embed_dim: int, *, num_heads: int = 8) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.out = (_xavier_linear(embed_dim) for _ in range(4))
        self.tap = Tap("tokens")

    def forward(
        self,
        query: Float[Tensor, "b n c"],
        keys: Float[Tensor, "b m c"] | None = None,
        values: Float[Tensor, "b m c"] | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b h n m"] | None]:
        """Return the attention output, and the weights of each head if requested.

        Args:
            query: Queries.
            keys: Keys; the queries if None.
            values: Values; the keys if None.
            need_weights: Whether to return the weights, which need memory for h × n × m values.
        """
        keys = query if keys is None else keys
        values = keys if values is None else values
        recorded = self.tap.wanted and self.tap.grid is not None
        projected = (self.query(query), self.key(keys), self.value(values))
        output, weights = dot_product_attention(
            *(part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in projected),
            need_weights=need_weights or recorded,
        )
        if weights is not None and recorded:
            weights = self.tap(weights)
        return self.out(output.transpose(1, 2).flatten(2)), weights if need_weights else None

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"num_heads={self.num_heads}"


def _xavier_linear(dim: int) -> nn.Linear:
    linear = nn.Linear(dim, dim)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
