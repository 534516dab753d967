"""Masks of keys alone, for attention that cannot keep queries from single keys."""

from jaxtyping import Bool
from torch import Tensor


def mask_of_keys(mask: Bool[Tensor, "*b n m"], attention: str) -> Bool[Tensor, "*b m"]:
    """Return the one row of a mask that is the same for all queries.

    Args:
        mask: True = may be attended to; one row, as `masks.from_lengths` makes it.
        attention: Whose mask it is, for the message.

    Raises:
        ValueError: If queries have rows of their own, as in a causal mask.

    Example:
        >>> mask_of_keys(torch.tensor([[True, False]]), "linear_attention")
        tensor([ True, False])
    """
    if mask.shape[-2] != 1:
        raise ValueError(
            f"the mask of {attention} must be one row of keys, [..., 1, {mask.shape[-1]}], because "
            f"it mixes keys before queries meet them; got {list(mask.shape)}: a causal mask, and "
            "any other with a row per query, needs functional.attentions.attention"
        )
    return mask.squeeze(-2)
