"""What a captioner is trained to lower: surprise per word, and attention that skips places."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

Reduction = Literal["paper", "arctic", "mean"]


def doubly_stochastic_penalty(
    weights: Float[Tensor, "p n"],
    rows: Int[Tensor, " p"],
    count: int,
    *,
    reduction: Reduction = "paper",
) -> Float[Tensor, ""]:
    """Return how far the attention of a caption is from looking at every place once, >= 0.

    Args:
        weights: Attention over n places, one row per word of the batch, captions mixed.
        rows: Which caption each word belongs to, 0 to `count - 1`.
        count: Captions in the batch.
        reduction: `paper` sums over places and takes the mean over captions (for a loss summed
            over time); `arctic`, the authors' code, sums over captions and takes the mean over
            places; `mean` takes both means (for a loss averaged over words).

    Example:
        >>> once = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> doubly_stochastic_penalty(once, torch.tensor([0, 0]), 1)
        tensor(0.)
        >>> doubly_stochastic_penalty(once[[0, 0]], torch.tensor([0, 0]), 1)
        tensor(2.)

    Source:
        Xu et al. 2015, arXiv:1502.03044, section 4.2.1.
    """
    looked = weights.new_zeros(count, weights.shape[-1]).index_add(0, rows, weights)
    missed = (1 - looked).square()
    if reduction == "paper":
        return missed.sum(-1).mean()
    return missed.mean(-1).sum() if reduction == "arctic" else missed.mean()


def caption_loss(
    logits: Float[Tensor, "p v"],
    targets: Int[Tensor, " p"],
    count: int,
    *,
    reduction: Reduction = "paper",
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the surprise at the right words, in nats.

    Args:
        logits: Scores over the vocabulary, one row per word of the batch.
        targets: The right words.
        count: Captions in the batch.
        reduction: `mean` is nats per word; `paper` and `arctic` are nats per caption.
        smoothing: Share of the probability spread over the whole vocabulary.

    Example:
        >>> caption_loss(torch.zeros(3, 4), torch.tensor([0, 1, 2]), 1, reduction="mean")
        tensor(1.3863)
    """
    total = cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return total / (len(targets) if reduction == "mean" else count)


def packed_rows(lengths: Int[Tensor, " b"]) -> tuple[Int[Tensor, " p"], Int[Tensor, " p"]]:
    """Return row and step of each word when captions are read step by step, longest first.

    Args:
        lengths: Words per caption, in falling order.

    Raises:
        ValueError: If the lengths are not in falling order, or one is below 1.

    Example:
        >>> packed_rows(torch.tensor([3, 1]))
        (tensor([0, 1, 0, 0]), tensor([0, 0, 1, 2]))
    """
    if (lengths.diff() > 0).any() or (lengths < 1).any():
        raise ValueError(f"lengths must fall and be at least 1, got {lengths}")
    steps, rows = (torch.arange(int(lengths[0]))[:, None] < lengths.cpu()).nonzero(as_tuple=True)
    return rows.to(lengths.device), steps.to(lengths.device)
