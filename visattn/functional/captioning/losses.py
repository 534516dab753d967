"""Captioning losses: token cross-entropy, doubly stochastic penalty, attention supervision."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from visattn.functional.captioning.packing import WordPacking, pack_words

Reduction = Literal["paper", "arctic", "mean"]
AttentionLoss = Literal["cross_entropy", "mass"]

_EPS = 1e-12  # negligible beside attention weights, and its inverse is finite in float32


def doubly_stochastic_penalty(
    weights: Float[Tensor, "p n"],
    rows: Int[Tensor, " p"],
    num_captions: int,
    *,
    reduction: Reduction = "paper",
) -> Float[Tensor, ""]:
    """Return the doubly stochastic penalty: squared deviation of summed attention from 1.

    Args:
        weights: Attention over n locations, one row per word of the batch (packed).
        rows: Caption of each word, 0 to `num_captions - 1`.
        num_captions: Number of captions in the batch.
        reduction: `paper` sums over locations and averages over captions (for a loss summed over
            time); `arctic`, the authors' code, sums over captions and averages over locations;
            `mean` averages over both (for a loss averaged over words).

    Example:
        >>> once = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> doubly_stochastic_penalty(once, torch.tensor([0, 0]), 1)
        tensor(0.)
        >>> doubly_stochastic_penalty(once[[0, 0]], torch.tensor([0, 0]), 1)
        tensor(2.)

    Source:
        Xu et al. 2015, arXiv:1502.03044, section 4.2.1.
    """
    total = weights.new_zeros(num_captions, weights.shape[-1]).index_add(0, rows, weights)
    penalty = (1 - total).square()
    if reduction == "paper":
        return penalty.sum(-1).mean()
    return penalty.mean(-1).sum() if reduction == "arctic" else penalty.mean()


def caption_loss(
    logits: Float[Tensor, "p v"],
    targets: Int[Tensor, " p"],
    num_captions: int,
    *,
    reduction: Reduction = "paper",
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Return the token cross-entropy, in nats.

    Args:
        logits: Logits over the vocabulary, one row per word of the batch (packed).
        targets: Target words.
        num_captions: Number of captions in the batch.
        reduction: `mean` gives nats per word; `paper` and `arctic` give nats per caption.
        label_smoothing: Probability mass spread over the whole vocabulary.

    Example:
        >>> caption_loss(torch.zeros(3, 4), torch.tensor([0, 1, 2]), 1, reduction="mean")
        tensor(1.3863)
    """
    total = cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)
    return total / (len(targets) if reduction == "mean" else num_captions)


def attention_supervision_loss(
    weights: Float[Tensor, "p n"], targets: Float[Tensor, "p n"], supervised: Bool[Tensor, " p"]
) -> Float[Tensor, ""]:
    """Return the cross-entropy of attention against target maps, in nats per supervised word.

    Its minimum, at equal weights and targets, is the entropy of the targets. A weight of 0 at a
    target location costs at most 27.6 nats, and gradients stay finite. Without any supervised word
    the loss and its gradient are 0.

    Args:
        weights: Attention over n locations, one row per word of the batch; rows sum to 1.
        targets: Target attention; rows of supervised words sum to 1. See `pack_targets`.
        supervised: Words with a target.

    Example:
        >>> weights = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
        >>> targets = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
        >>> attention_supervision_loss(weights, targets, torch.tensor([True, False]))
        tensor(0.6931)

    Source:
        Liu et al. 2017, arXiv:1605.09553; there the sum over words.
    """
    float_weights = weights if weights.dtype == torch.float64 else weights.float()
    losses = -(targets * (float_weights + _EPS).log()).sum(-1)
    return (losses * supervised).sum() / supervised.sum().clamp(min=1)


def attention_mass_loss(
    weights: Float[Tensor, "p n"], targets: Float[Tensor, "p n"], supervised: Bool[Tensor, " p"]
) -> Float[Tensor, ""]:
    """Return minus the log of the attention mass inside the boxes, in nats per supervised word.

    In contrast to `attention_supervision_loss` it does not ask for uniform attention: its minimum,
    0, is reached by any attention on cells that are covered as much as the best-covered one. Other
    cells count by their share of that coverage. An empty mass costs 27.6 nats, and gradients stay
    finite. Without any supervised word the loss and its gradient are 0.

    Args:
        weights: Attention over n locations, one row per word of the batch; rows sum to 1.
        targets: Target attention, proportional to the covered area of each cell.
        supervised: Words with a target.

    Example:
        >>> weights = torch.tensor([[0.5, 0.3, 0.2]])
        >>> targets = torch.tensor([[0.5, 0.5, 0.0]])  # the box covers the first two cells
        >>> attention_mass_loss(weights, targets, torch.tensor([True]))
        tensor(0.2231)
    """
    float_weights = weights if weights.dtype == torch.float64 else weights.float()
    inside = targets / targets.amax(-1, keepdim=True).clamp(min=_EPS)
    losses = -((inside * float_weights).sum(-1) + _EPS).log()
    return (losses * supervised).sum() / supervised.sum().clamp(min=1)


def pack_targets(
    rows: Int[Tensor, " s"],
    steps: Int[Tensor, " s"],
    targets: Float[Tensor, "s n"],
    lengths: Int[Tensor, " b"] | WordPacking,
) -> tuple[Float[Tensor, "p n"], Bool[Tensor, " p"]]:
    """Return targets in the packed order of `pack_words`, and which words have one.

    Args:
        rows: Caption of each target.
        steps: Word of each target; targets beyond the length of the caption are dropped.
        targets: Target attention.
        lengths: Words per caption, in decreasing order; or the result of `pack_words`.

    Example:
        >>> target = torch.tensor([[0.0, 1.0]])
        >>> row, step = torch.tensor([0]), torch.tensor([1])
        >>> targets, supervised = pack_targets(row, step, target, torch.tensor([2, 1]))
        >>> supervised
        tensor([False, False,  True])
    """
    packing = pack_words(lengths)
    row, step, device = packing.rows, packing.steps, packing.rows.device
    positions = torch.full((packing.counts[0], len(packing.counts)), -1, device=device)
    positions[row, step] = torch.arange(len(row), device=device)
    word_indices = positions[rows, steps.clamp(max=len(packing.counts) - 1)]
    kept = (word_indices >= 0) & (steps < len(packing.counts))
    indices = word_indices[kept]
    supervised = torch.zeros(len(row), dtype=torch.bool, device=device)
    supervised[indices] = True
    packed = targets.new_zeros(len(row), targets.shape[-1]).index_copy(0, indices, targets[kept])
    return packed, supervised
