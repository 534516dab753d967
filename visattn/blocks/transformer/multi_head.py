"""Attention of several heads, over a row of tokens itself or over another."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.attention.masks import Alignment
from visattn.functional.attention.softmax import attention


class MultiHeadAttention(nn.Module):
    """Let each query take from the values what several heads, each in its own way, find fitting.

    Scores are scaled by the width of a head. Unless weights are asked for, or somebody listens to
    the tap, a fused kernel computes the same and never holds them. Whoever knows the grid that the
    keys are laid out on, row by row, sets `tap.grid` before the call; without a grid the weights
    are no maps of an image, and the tap is passed by.

    Args:
        width: Width of a query, and of what comes out.
        heads: How many there are.
        dim: Width of a head; width / heads if not said.
        key_width: Width of a key; that of a query if not said.
        value_width: Width of a value; that of a key if not said.
        bias: Whether the four linear maps have biases.

    Raises:
        ValueError: If a number is below 1, or no dim is said and the heads do not divide the width.

    Example:
        >>> import torch
        >>> attend = MultiHeadAttention(12, heads=3, key_width=5)
        >>> words, places = torch.zeros(1, 2, 12), torch.zeros(1, 7, 5)
        >>> seen, weights = attend(words, places, need_weights=True)
        >>> seen.shape, weights.shape
        (torch.Size([1, 2, 12]), torch.Size([1, 3, 2, 7]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. Nothing is dropped out.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int = 8,
        dim: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.dim = dim = _head_width(width, heads, dim)
        key_width = width if key_width is None else key_width
        value_width = key_width if value_width is None else value_width
        self.query = _linear(width, heads * dim, bias=bias)
        self.key = _linear(key_width, heads * dim, bias=bias)
        self.value = _linear(value_width, heads * dim, bias=bias)
        self.out = _linear(heads * dim, width, bias=bias)
        self.tap = Tap("tokens")

    def forward(
        self,
        query: Float[Tensor, "b n c"],
        keys: Float[Tensor, "b m k"] | None = None,
        values: Float[Tensor, "b m v"] | None = None,
        *,
        mask: Bool[Tensor, "*masks #n #m"] | None = None,
        causal: Alignment | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b h n m"] | None]:
        """Return what each query sees, and where each head looks if that is asked for.

        Args:
            query: What is looked for.
            keys: What it is compared with; the queries themselves if not said.
            values: What is seen; the keys if not said.
            mask: True = may attend. `n m` for all, `b n m` for each of the batch, or `b h n m`
                for each head; axes of size one are shared.
            causal: How queries and keys are aligned when no query may see what comes after it.
            need_weights: Whether to return the weights, which costs h × n × m numbers.

        Raises:
            ValueError: If queries, keys or values are not as wide as they were said to be.
        """
        keys = query if keys is None else keys
        values = keys if values is None else values
        shown = self.tap.wanted and self.tap.grid is not None
        seen, weights = attention(
            self._in_heads(self.query, query, "query"),
            self._in_heads(self.key, keys, "key"),
            self._in_heads(self.value, values, "value"),
            mask=mask.unsqueeze(1) if mask is not None and mask.ndim == 3 else mask,
            causal=causal,
            need_weights=need_weights or shown,
        )
        if weights is not None and shown:
            weights = self.tap(weights)
        return self.out(seen.transpose(1, 2).flatten(2)), weights if need_weights else None

    def _in_heads(
        self, projection: nn.Linear, tokens: Float[Tensor, "b n c"], name: str
    ) -> Float[Tensor, "b h n d"]:
        if tokens.shape[-1] != projection.in_features:
            raise ValueError(
                f"a {name} must be of width {projection.in_features}, got {list(tokens.shape)}; "
                f"say its width when the attention is made"
            )
        return projection(tokens).unflatten(-1, (self.heads, self.dim)).transpose(1, 2)

    def extra_repr(self) -> str:
        """Return what is printed of it beside its parts."""
        return f"heads={self.heads}, dim={self.dim}"


def _head_width(width: int, heads: int, dim: int | None) -> int:
    if min(width, heads, 1 if dim is None else dim) < 1:
        raise ValueError(f"width, heads and dim must be at least 1, got {width}, {heads} and {dim}")
    if dim is None and width % heads:
        raise ValueError(
            f"heads must divide the width {width}, got {heads}; or say dim, the width of a head"
        )
    return width // heads if dim is None else dim


def _linear(width: int, out: int, *, bias: bool) -> nn.Linear:
    """Return a linear map that keeps variances, and begins without preference."""
    linear = nn.Linear(width, out, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
