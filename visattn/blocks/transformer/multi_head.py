"""Multi-head attention: self-attention or cross-attention."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention import dot_product_attention
from visattn.functional.masks import CausalAlignment


class MultiHeadAttention(nn.Module):
    """Multi-head scaled dot-product attention of queries over keys and values.

    Unless weights are requested or recorded, a fused kernel computes the output without storing
    them. A caller that knows the grid of the keys (row-major) sets `tap.grid` before the call;
    without a grid the weights are no maps of an image and do not pass through the tap.

    Args:
        embed_dim: Dimension of queries and output.
        num_heads: Number of heads.
        head_dim: Dimension of a head; embed_dim / num_heads if None.
        kdim: Dimension of keys; that of queries if None.
        vdim: Dimension of values; that of keys if None.
        bias: Whether the four linear layers have biases.

    Raises:
        ValueError: If a number is below 1, or head_dim is None and num_heads does not divide
            embed_dim.

    Example:
        >>> import torch
        >>> attention = MultiHeadAttention(12, num_heads=3, kdim=5)
        >>> words, positions = torch.zeros(1, 2, 12), torch.zeros(1, 7, 5)
        >>> output, weights = attention(words, positions, need_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([1, 2, 12]), torch.Size([1, 3, 2, 7]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2, without dropout.
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        num_heads: int = 8,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim = _resolve_head_dim(embed_dim, num_heads, head_dim)
        kdim = embed_dim if kdim is None else kdim
        vdim = kdim if vdim is None else vdim
        self.query = _xavier_linear(embed_dim, num_heads * head_dim, bias=bias)
        self.key = _xavier_linear(kdim, num_heads * head_dim, bias=bias)
        self.value = _xavier_linear(vdim, num_heads * head_dim, bias=bias)
        self.out = _xavier_linear(num_heads * head_dim, embed_dim, bias=bias)
        self.tap = Tap("tokens")

    def forward(
        self,
        query: Float[Tensor, "b n c"],
        keys: Float[Tensor, "b m k"] | None = None,
        values: Float[Tensor, "b m v"] | None = None,
        *,
        mask: Bool[Tensor, "*masks #n #m"] | None = None,
        causal: CausalAlignment | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b h n m"] | None]:
        """Return the attention output, and the weights of each head if requested.

        Args:
            query: Queries.
            keys: Keys; the queries if None.
            values: Values; the keys if None.
            mask: True = may attend. `n m` for all, `b n m` per sample, or `b h n m` per head;
                axes of size one are broadcast.
            causal: Alignment of queries and keys in a causal mask; None for no causal mask.
            need_weights: Whether to return the weights, which takes h × n × m numbers of memory.

        Raises:
            ValueError: If queries, keys or values do not have the expected dimension.
        """
        keys = query if keys is None else keys
        values = keys if values is None else values
        recorded = self.tap.wanted and self.tap.grid is not None
        output, weights = dot_product_attention(
            self._split_heads(self.query, query, "query"),
            self._split_heads(self.key, keys, "key"),
            self._split_heads(self.value, values, "value"),
            mask=mask.unsqueeze(1) if mask is not None and mask.ndim == 3 else mask,
            causal=causal,
            need_weights=need_weights or recorded,
        )
        if weights is not None and recorded:
            weights = self.tap(weights)
        return self.out(output.transpose(1, 2).flatten(2)), weights if need_weights else None

    def _split_heads(
        self, projection: nn.Linear, tokens: Float[Tensor, "b n c"], name: str
    ) -> Float[Tensor, "b h n d"]:
        if tokens.shape[-1] != projection.in_features:
            raise ValueError(
                f"the last axis of a {name} must be {projection.in_features}, got "
                f"{list(tokens.shape)}; pass embed_dim, kdim or vdim to match"
            )
        return projection(tokens).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}"


def _resolve_head_dim(width: int, heads: int, dim: int | None) -> int:
    if min(width, heads, 1 if dim is None else dim) < 1:
        raise ValueError(f"width, heads and dim must be at least 1, got {width}, {heads} and {dim}")
    if dim is None and width % heads:
        raise ValueError(
            f"heads must divide the width {width}, got {heads}; or say dim, the width of a head"
        )
    return width // heads if dim is None else dim


def _xavier_linear(width: int, out: int, *, bias: bool) -> nn.Linear:
    """Return a linear layer with Xavier-uniform weights and zero bias."""
    linear = nn.Linear(width, out, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
