"""Attention to a few mixtures of the keys (Linformer)."""

from jaxtyping import Bool, Float
from torch import Tensor

from visattn.functional.attention.masks import mask_of_keys
from visattn.functional.attention.softmax import attention


def low_rank_attention(
    queries: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    mix_keys: Float[Tensor, "r longest"],
    mix_values: Float[Tensor, "_ _"] | None = None,
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b n e"], Float[Tensor, "*b n r"] | None]:
    """Return attention to r mixtures of the keys, and its weights over the mixtures if asked for.

    Takes (n + m) r (d + e) multiplications and n r numbers, instead of n m (d + e) and n m; without
    weights the fused kernel keeps even those away. With r = m and both mixtures the unit matrix it
    is full attention, masked or not. `weights @ mix_values[:, :m]` tells each key's share; shares
    may be negative.

    Args:
        queries: What is looked for.
        keys: What is compared with it.
        values: What is given.
        mix_keys: Which keys each mixture is made of, up to the longest row of keys.
        mix_values: The same for values; as for the keys if None.
        mask: Which keys may be attended to, one row for all queries: `[..., 1, m]`. Padding is
            taken out before anything is mixed, and a mixture of nothing but padding is left out.
        scale: Factor of the products; 1 / sqrt(d) if None.
        need_weights: Whether to compute the weights.

    Raises:
        ValueError: If the mask has a row per query (a causal one would leak: each mixture holds
            keys of all times), if there are more keys than can be mixed, or if the two mixtures
            differ in shape.

    Example:
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> low_rank_attention(x, x, x, torch.full((1, 2), 0.5))[0]
        tensor([[2.], [2.]])

    Source:
        Wang et al. 2020, arXiv:2006.04768, equation 7. Deviation: a mixture without any real key is
        masked.
    """
    count = keys.shape[-2]
    mix_values = mix_keys if mix_values is None else mix_values
    _check_mixtures(count, mix_keys, mix_values)
    of_keys, of_values, real = mix_keys[:, :count], mix_values[:, :count], None
    if mask is not None:
        alone = mask_of_keys(mask, "low_rank_attention").unsqueeze(-1)
        keys, values = keys.masked_fill(~alone, 0.0), values.masked_fill(~alone, 0.0)
        real = ((of_keys != 0) & alone.mT).any(-1).unsqueeze(-2)
    mixed_keys, mixed_values = of_keys @ keys, of_values @ values
    return attention(
        queries, mixed_keys, mixed_values, mask=real, scale=scale, need_weights=need_weights
    )


def _check_mixtures(
    count: int, mix_keys: Float[Tensor, "r longest"], mix_values: Float[Tensor, "_ _"]
) -> None:
    if mix_keys.shape != mix_values.shape:
        raise ValueError(
            "mix_keys and mix_values must have one shape, "
            f"got {list(mix_keys.shape)} and {list(mix_values.shape)}"
        )
    if count > mix_keys.shape[1]:
        raise ValueError(
            f"there must be at most {mix_keys.shape[1]} keys, one per column of mix_keys, "
            f"got {count}; make the mixtures for the longest row of keys"
        )
