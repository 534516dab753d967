"""Which stretch of the keys a query looks at, and how its weights lie there.

`masked_softmax` over all keys is Luong's global alignment. The local ones look at a window around
a center. All scores are computed and those outside the window masked, so a window saves no work.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import linear

from visattn.functional.attention.softmax import masked_softmax


def monotonic_centers(
    queries: int, *, first: int = 0, device: torch.device | str | None = None
) -> Float[Tensor, " queries"]:
    """Return the centers of queries that go along the keys in step: query t looks at key t.

    Args:
        queries: How many there are.
        first: The place of the first of them; in a loop over steps, the number of the step.
        device: Where the centers lie.

    Example:
        >>> monotonic_centers(3, first=5)
        tensor([5., 6., 7.])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.2, local-m.
    """
    return torch.arange(first, first + queries, dtype=torch.float32, device=device)


def predicted_centers(
    query: Float[Tensor, "*b n d"],
    weight: Float[Tensor, "hidden d"],
    vector: Float[Tensor, " hidden"],
    lengths: Int[Tensor, "*#b"] | int,
) -> Float[Tensor, "*b n"]:
    """Return where each query would look: a place, not a whole number, between 0 and the length.

    Args:
        query: What decides where to look.
        weight: Of the hidden layer.
        vector: What the hidden layer is like when the place is far.
        lengths: How many keys are real: one number for all, or one for each row of the batch.

    Example:
        >>> predicted_centers(torch.ones(1, 2), torch.zeros(3, 2), torch.ones(3), 7)
        tensor([3.5000])

    Source:
        Luong et al. 2015, arXiv:1508.04025, equation 9.
    """
    share = (linear(query, weight).tanh() @ vector).sigmoid()
    return share * (lengths.unsqueeze(-1) if isinstance(lengths, Tensor) else lengths)


def window_mask(
    centers: Float[Tensor, "*b n"], keys: int, *, radius: float
) -> Bool[Tensor, "*b n keys"]:
    """Return the mask under which a query sees the keys at most `radius` places from its center.

    Raises:
        ValueError: If the radius is below 1: a center between two keys might then see neither.

    Example:
        >>> window_mask(torch.tensor([0.0, 2.5]), 5, radius=1).int()
        tensor([[1, 1, 0, 0, 0],
                [0, 0, 1, 1, 0]], dtype=torch.int32)

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.2.
    """
    if radius < 1:
        raise ValueError(f"the radius of a window must be at least 1 place, got {radius}")
    return _distances(centers, keys).abs() <= radius


def local_alignment(
    scores: Float[Tensor, "*b n m"],
    centers: Float[Tensor, "*#b #n"],
    *,
    radius: float,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
) -> Float[Tensor, "*b n m"]:
    """Return weights that sum to 1 over the window around a center, and are 0 outside.

    With `monotonic_centers` this is local-m. A window past the end of the keys gives zeros.

    Args:
        scores: How well each query fits each key.
        centers: Where each query looks.
        radius: How many places the window reaches to each side.
        mask: True = may attend; joined with the window.

    Raises:
        ValueError: If the radius is below 1.

    Example:
        >>> local_alignment(torch.zeros(2, 4), monotonic_centers(2), radius=1)
        tensor([[0.5000, 0.5000, 0.0000, 0.0000],
                [0.3333, 0.3333, 0.3333, 0.0000]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.2, local-m.
    """
    window = window_mask(centers, scores.shape[-1], radius=radius)
    return masked_softmax(scores, window if mask is None else window & mask)


def predictive_alignment(
    scores: Float[Tensor, "*b n m"],
    centers: Float[Tensor, "*#b #n"],
    *,
    radius: float,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
) -> Float[Tensor, "*b n m"]:
    """Return the weights of a window that fade away from its center, through which it learns.

    With `predicted_centers` this is local-p. As in the paper the weights are not made to sum to 1
    again after the fading, so they sum to less.

    Args:
        scores: How well each query fits each key.
        centers: Where each query looks.
        radius: How many places the window reaches to each side: two standard deviations.
        mask: True = may attend; joined with the window.

    Raises:
        ValueError: If the radius is below 1.

    Example:
        >>> predictive_alignment(torch.zeros(1, 4), torch.tensor([0.0]), radius=2)
        tensor([[0.3333, 0.2022, 0.0451, 0.0000]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, equation 10; keys are counted from 0.
    """
    nearness = torch.exp(-2 * (_distances(centers, scores.shape[-1]) / radius).square())
    return local_alignment(scores, centers, radius=radius, mask=mask) * nearness.to(scores.dtype)


def _distances(centers: Float[Tensor, "*b n"], keys: int) -> Float[Tensor, "*b n keys"]:
    wide = torch.promote_types(centers.dtype, torch.float32)  # half precision counts to 2048 only
    return torch.arange(keys, dtype=wide, device=centers.device) - centers.unsqueeze(-1)
