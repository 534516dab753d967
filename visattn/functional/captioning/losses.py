"""What a captioner is trained to lower: surprise per word, and attention that lies elsewhere."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

Reduction = Literal["paper", "arctic", "mean"]

_FLOOR = 1e-12  # beside any weight that counts it is nothing, and one over it is still a number


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


def attention_supervision(
    weights: Float[Tensor, "p n"], targets: Float[Tensor, "p n"], shown: Bool[Tensor, " p"]
) -> Float[Tensor, ""]:
    """Return how much surprise attention leaves at where it ought to lie, in nats per shown word.

    It is least where weights and targets are equal: there it is the entropy of the targets. A
    weight of 0 where there should be some costs 27.6 nats, and gradients stay finite. Without any
    shown word it is 0, and so is its gradient.

    Args:
        weights: Attention over n places, one row per word of the batch, each summing to 1.
        targets: Where it ought to lie; of a shown word they sum to 1. `packed_targets` lays them.
        shown: Which words say something whose place is known.

    Example:
        >>> weights = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
        >>> targets = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
        >>> attention_supervision(weights, targets, torch.tensor([True, False]))
        tensor(0.6931)

    Source:
        Liu et al. 2017, arXiv:1605.09553; there the sum over words.
    """
    single = weights if weights.dtype == torch.float64 else weights.float()
    each = -(targets * (single + _FLOOR).log()).sum(-1)
    return (each * shown).sum() / shown.sum().clamp(min=1)


def packed_targets(
    rows: Int[Tensor, " s"],
    steps: Int[Tensor, " s"],
    targets: Float[Tensor, "s n"],
    lengths: Int[Tensor, " b"],
) -> tuple[Float[Tensor, "p n"], Bool[Tensor, " p"]]:
    """Return targets laid where `packed_rows` has their words, and which words have one.

    Args:
        rows: Which caption each target belongs to.
        steps: Which of its words; beyond the length of the caption a target is left out.
        targets: Where the attention ought to lie.
        lengths: Words per caption, in falling order.

    Example:
        >>> ring = torch.tensor([[0.0, 1.0]])
        >>> row, step = torch.tensor([0]), torch.tensor([1])
        >>> targets, shown = packed_targets(row, step, ring, torch.tensor([2, 1]))
        >>> shown
        tensor([False, False,  True])
    """
    row, step = packed_rows(lengths)
    place = torch.full((len(lengths), int(lengths[0])), -1, device=lengths.device)
    place[row, step] = torch.arange(len(row), device=lengths.device)
    kept = steps < lengths[rows]
    places = place[rows[kept], steps[kept]]
    shown = torch.zeros(len(row), dtype=torch.bool, device=lengths.device)
    shown[places] = True
    laid = targets.new_zeros(len(row), targets.shape[-1]).index_copy(0, places, targets[kept])
    return laid, shown


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
