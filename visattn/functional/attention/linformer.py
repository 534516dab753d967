"""Linformer: attention to a low-rank projection of keys and values."""

from jaxtyping import Bool, Float
from torch import Tensor

from visattn.functional.attention.masks import key_mask
from visattn.functional.attention.softmax import dot_product_attention


def linformer_attention(
    queries: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    key_projection: Float[Tensor, "r longest"],
    value_projection: Float[Tensor, "_ _"] | None = None,
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b n e"], Float[Tensor, "*b n r"] | None]:
    """Return attention to r linear combinations of the keys, optionally with its weights.

    This takes (n + m) r (d + e) multiplications and n r weights instead of n m (d + e) and n m;
    without weights a fused kernel is used. With identity matrices as projections (r = m) it is full
    attention. `weights @ value_projection[:, :m]` is the contribution of each token, which may be
    negative.

    Args:
        queries: Queries.
        keys: Keys.
        values: Values.
        key_projection: Projection of the keys along the sequence, for the maximum sequence length.
        value_projection: Projection of the values; that of the keys if None.
        mask: True = may attend; one row for all queries: `[..., 1, m]`. Padding is zeroed before
            the projection, and a combination of padding only is masked.
        scale: Factor of the dot products; 1 / sqrt(d) if None.
        need_weights: Whether to return the weights.

    Raises:
        ValueError: If the mask has one row per query (a causal mask would leak, since each
            combination contains keys of all steps), if there are more keys than columns of the
            projection, or if the projections differ in shape.

    Example:
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> linformer_attention(x, x, x, torch.full((1, 2), 0.5))[0]
        tensor([[2.], [2.]])

    Source:
        Wang et al. 2020, arXiv:2006.04768, equation 7. Deviation: a combination of padding only
        is masked.
    """
    count = keys.shape[-2]
    value_projection = key_projection if value_projection is None else value_projection
    _check_projections(count, key_projection, value_projection)
    key_weights, value_weights, valid = key_projection[:, :count], value_projection[:, :count], None
    if mask is not None:
        allowed = key_mask(mask, "linformer_attention").unsqueeze(-1)
        keys, values = keys.masked_fill(~allowed, 0.0), values.masked_fill(~allowed, 0.0)
        valid = ((key_weights != 0) & allowed.mT).any(-1).unsqueeze(-2)
    projected_keys, projected_values = key_weights @ keys, value_weights @ values
    return dot_product_attention(
        queries,
        projected_keys,
        projected_values,
        mask=valid,
        scale=scale,
        need_weights=need_weights,
    )


def _check_projections(
    count: int, key_projection: Float[Tensor, "r longest"], value_projection: Float[Tensor, "_ _"]
) -> None:
    if key_projection.shape != value_projection.shape:
        raise ValueError(
            "key_projection and value_projection must have the same shape, "
            f"got {list(key_projection.shape)} and {list(value_projection.shape)}"
        )
    if count > key_projection.shape[1]:
        raise ValueError(
            f"there must be at most {key_projection.shape[1]} keys, one per column of "
            f"key_projection, got {count}; "
            "create the projections for the maximum sequence length"
        )
