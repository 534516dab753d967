"""Local attention of Luong et al.: windows around monotonic or predicted centers.

`masked_softmax` over all keys is Luong's global attention. The local variants attend to a window
around a center. All scores are computed and those outside the window are masked.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import linear

from visattn.functional.attention import masked_softmax


def monotonic_centers(
    num_queries: int, *, start: int = 0, device: torch.device | str | None = None
) -> Float[Tensor, " queries"]:
    """Return monotonic window centers: query t attends around key t.

    Args:
        start: Center of the first query; in a decoding loop, the step number.

    Example:
        >>> monotonic_centers(3, start=5)
        tensor([5., 6., 7.])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.2, local-m.
    """
    return torch.arange(start, start + num_queries, dtype=torch.float32, device=device)


def predicted_centers(
    query: Float[Tensor, "*b n d"],
    weight: Float[Tensor, "hidden d"],
    vector: Float[Tensor, " hidden"],
    lengths: Int[Tensor, "*#b"] | int,
) -> Float[Tensor, "*b n"]:
    """Return predicted window centers: real numbers between 0 and the number of keys.

    Args:
        weight: Weight W_p of the hidden layer.
        vector: Output vector v_p.
        lengths: Number of valid keys, one number for all or one per row of the batch.

    Example:
        >>> predicted_centers(torch.ones(1, 2), torch.zeros(3, 2), torch.ones(3), 7)
        tensor([3.5000])

    Source:
        Luong et al. 2015, arXiv:1508.04025, equation 9.
    """
    fraction = (linear(query, weight).tanh() @ vector).sigmoid()
    return fraction * (lengths.unsqueeze(-1) if isinstance(lengths, Tensor) else lengths)


def window_mask(
    centers: Float[Tensor, "*b n"], keys: int | Float[Tensor, " m"], *, radius: float
) -> Bool[Tensor, "*b n _"]:
    """Return the mask in which a query attends to keys within `radius` of its center.

    Args:
        keys: Number of keys, at positions 0, 1, 2 and so on; or the position of each key, such as
            its column in an image.

    Raises:
        ValueError: If the radius is below 1: a center between two keys might reach neither.

    Example:
        >>> window_mask(torch.tensor([0.0, 2.5]), 5, radius=1).int()
        tensor([[1, 1, 0, 0, 0],
                [0, 0, 1, 1, 0]], dtype=torch.int32)

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.2.
    """
    if radius < 1:
        raise ValueError(f"the radius of a window must be at least 1 key, got {radius}")
    return _distances(centers, keys).abs() <= radius


def local_alignment(
    scores: Float[Tensor, "*b n m"],
    centers: Float[Tensor, "*#b #n"],
    *,
    radius: float,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    positions: Float[Tensor, " m"] | None = None,
) -> Float[Tensor, "*b n m"]:
    """Return softmax weights over the window around each center; 0 outside.

    With `monotonic_centers` this is local-m. A window past the last key gives zeros.

    Args:
        radius: Keys to each side of the center.
        positions: Position of each key; 0, 1, 2 and so on if None.

    Raises:
        ValueError: If the radius is below 1.

    Example:
        >>> local_alignment(torch.zeros(2, 4), monotonic_centers(2), radius=1)
        tensor([[0.5000, 0.5000, 0.0000, 0.0000],
                [0.3333, 0.3333, 0.3333, 0.0000]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.2, local-m.
    """
    keys = scores.shape[-1] if positions is None else positions
    window = window_mask(centers, keys, radius=radius)
    return masked_softmax(scores, window if mask is None else window & mask)


def predictive_alignment(
    scores: Float[Tensor, "*b n m"],
    centers: Float[Tensor, "*#b #n"],
    *,
    radius: float,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    positions: Float[Tensor, " m"] | None = None,
) -> Float[Tensor, "*b n m"]:
    """Return window weights times a Gaussian around each center, which makes centers trainable.

    With `predicted_centers` this is local-p. As in the paper the products are not normalized again,
    so they sum to less than 1.

    Args:
        radius: Keys to each side of the center: two standard deviations.

    Raises:
        ValueError: If the radius is below 1.

    Example:
        >>> predictive_alignment(torch.zeros(1, 4), torch.tensor([0.0]), radius=2)
        tensor([[0.3333, 0.2022, 0.0451, 0.0000]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, equation 10; keys are counted from 0.
    """
    keys = scores.shape[-1] if positions is None else positions
    gaussian = torch.exp(-2 * (_distances(centers, keys) / radius).square())
    weights = local_alignment(scores, centers, radius=radius, mask=mask, positions=positions)
    return weights * gaussian.to(scores.dtype)


def _distances(
    centers: Float[Tensor, "*b n"], keys: int | Float[Tensor, " m"]
) -> Float[Tensor, "*b n _"]:
    """Return the position of each key relative to each center."""
    dtype = torch.promote_types(centers.dtype, torch.float32)  # float16 counts to 2048 only
    if isinstance(keys, int):
        keys = torch.arange(keys, dtype=dtype, device=centers.device)
    return keys.to(dtype) - centers.unsqueeze(-1)
