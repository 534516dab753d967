"""Captions of unequal length: packing, losses, sampling."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import cross_entropy

from visattn.functional.beams import Step
from visattn.functional.numerics import at_least_float32


class WordPacking(NamedTuple):
    """Positions of the p words of a batch of captions, for teacher forcing.

    All sizes are Python numbers, computed on the CPU by a data loader, so that teacher forcing
    neither synchronizes with a GPU nor breaks the graph of `torch.compile`.
    """

    rows: Int[Tensor, " p"]
    """Caption of each word."""
    steps: Int[Tensor, " p"]
    """Position of each word in its caption."""
    image_indices: Int[Tensor, " p"]
    """Image of each word."""
    ranks: Int[Tensor, " p"]
    """Number of earlier words of the same image."""
    counts: tuple[int, ...]
    """Number of captions that have a word at each step."""
    words_per_image: int
    """Largest number of words of an image, in all of its captions."""

    def to(self, device: torch.device | str) -> Self:
        """Return the packing with its tensors on another device."""
        return self._make(
            value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
            for value in self
        )

    def by_image(
        self, packed: Shaped[Tensor, "p ..."], num_images: int, fill: int = 0
    ) -> Shaped[Tensor, "b m ..."]:
        """Return the values of the words of each image as one row, padded at the end."""
        shape = (num_images, self.words_per_image)
        rows: Tensor = packed.new_full((shape[0] * shape[1], *packed.shape[1:]), fill)
        index = self.image_indices * self.words_per_image + self.ranks
        return rows.index_copy(0, index, packed).reshape(*shape, *packed.shape[1:])

    def from_images(self, rows: Shaped[Tensor, "b m ..."]) -> Shaped[Tensor, "p ..."]:
        """Invert `by_image`."""
        index = self.image_indices * self.words_per_image + self.ranks
        return rows.flatten(0, 1).index_select(0, index)


def pack_words(
    lengths: Int[Tensor, " r"] | WordPacking, image_indices: Int[Tensor, " r"] | None = None
) -> WordPacking:
    """Return the packed order of the words of a batch; a packing is returned unchanged.

    Args:
        lengths: Words per caption, in decreasing order.
        image_indices: Image of each caption; None if caption i belongs to image i.

    Raises:
        ValueError: If the lengths are not in decreasing order, or one is below 1.

    Example:
        >>> packing = pack_words(torch.tensor([3, 1]), torch.tensor([0, 0]))
        >>> packing.rows, packing.steps
        (tensor([0, 1, 0, 0]), tensor([0, 0, 1, 2]))
        >>> packing.ranks, packing.counts, packing.words_per_image
        (tensor([0, 1, 2, 3]), (2, 1, 1), 4)
        >>> packing.by_image(packing.steps, 1)
        tensor([[0, 0, 1, 2]])
    """
    if isinstance(lengths, WordPacking):
        return lengths
    on_host = lengths.cpu()
    if (on_host.diff() > 0).any() or (on_host < 1).any():
        raise ValueError(f"lengths must be in decreasing order and at least 1, got {lengths}")
    # Captions of 3, 3 and 1 words: words are taken column by column, so that each step of a decoder
    # reads one slice, and captions that have ended drop out at the end of the batch.
    #
    #               step 0  step 1  step 2        packed  0 1 2 3 4 5 6
    #     caption 0    0       3       5          rows    0 1 2 0 1 0 1
    #     caption 1    1       4       6          steps   0 0 0 1 1 2 2
    #     caption 2    2                          counts  3     2   2
    present = torch.arange(int(on_host[0]))[:, None] < on_host
    steps, rows = present.nonzero(as_tuple=True)
    images = rows if image_indices is None else image_indices.cpu()[rows]
    # Rank of a word: its position in the stable order by image, minus the start of its image.
    counts = images.bincount()
    order = images.argsort(stable=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[images[order]]
    packing = WordPacking(
        rows, steps, images, ranks, tuple(map(int, present.sum(1))), int(counts.max())
    )
    return packing.to(lengths.device)


Reduction = Literal["paper", "arctic", "mean"]
AttentionLoss = Literal["cross_entropy", "mass"]

_EPS = 1e-12  # negligible compared with attention weights; its inverse is finite in float32


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
    weights: Float[Tensor, "p n"],
    targets: Float[Tensor, "p n"],
    supervised: Bool[Tensor, " p"],
    kind: AttentionLoss = "cross_entropy",
) -> Float[Tensor, ""]:
    """Return the loss of attention against target maps, in nats per supervised word.

    The cross-entropy is minimal for weights equal to the targets, where it is the entropy of the
    targets. `mass` is minus the log of the attention inside the boxes, however it is distributed
    there: cells count in proportion to their coverage, the best-covered ones fully.

    The loss of a word is at most 27.6 nats, and gradients stay finite, even if all attention is
    outside of the boxes. Without supervised words the loss and its gradient are 0.

    Args:
        weights: Attention over n locations, one row per word of the batch; rows sum to 1.
        targets: Target attention; rows of supervised words sum to 1. See `pack_targets`.
        supervised: Words that have a target.
        kind: `cross_entropy` or `mass`.

    Example:
        >>> weights = torch.tensor([[0.5, 0.3, 0.2]])
        >>> targets = torch.tensor([[0.5, 0.5, 0.0]])  # the box covers the first two cells
        >>> attention_supervision_loss(weights, targets, torch.tensor([True]), "mass")
        tensor(0.2231)

    Source:
        Liu et al. 2017, arXiv:1605.09553, for the cross-entropy, which is summed over words there.
    """
    weights = at_least_float32(weights)
    if kind == "cross_entropy":
        losses = -(targets * (weights + _EPS).log()).sum(-1)
    else:
        inside = targets / targets.amax(-1, keepdim=True).clamp(min=_EPS)
        losses = -((inside * weights).sum(-1) + _EPS).log()
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
        lengths: Words per caption, in decreasing order; or the result of `pack_words`.

    Example:
        >>> target = torch.tensor([[0.0, 1.0]])
        >>> row, step = torch.tensor([0]), torch.tensor([1])
        >>> targets, supervised = pack_targets(row, step, target, torch.tensor([2, 1]))
        >>> supervised
        tensor([False, False,  True])
    """
    packing = pack_words(lengths)
    shape = (packing.counts[0], len(packing.counts))
    kept = steps < shape[1]
    at = (rows[kept], steps[kept])
    # by caption and step; values beyond the end of a shorter caption are not read
    padded = targets.new_zeros(*shape, targets.shape[-1]).index_put(at, targets[kept])
    known = torch.zeros(shape, dtype=torch.bool, device=rows.device)
    known[at] = True
    words = (packing.rows, packing.steps)
    return padded[words], known[words]


class SampledCaptions(NamedTuple):
    """Captions sampled for each image."""

    tokens: Int[Tensor, "b k t"]
    """Words including the end token; padded with the end token."""
    lengths: Int[Tensor, "b k"]
    """Words per caption, including the end token; a truncated caption has none."""


@torch.no_grad()
def sample_captions(
    step: Step[Any],
    state: Any,
    start: Int[Tensor, "b k"],
    *,
    end_token: int,
    max_length: int = 20,
    banned_tokens: tuple[int, ...] = (),
    uniforms: Callable[[], Float[Tensor, "b k"]] | None = None,
) -> SampledCaptions:
    """Return captions of each image, sampled word by word from the model.

    Args:
        step: Maps a state and the previous words to the logits of the next words, the new state
            and attention tensors.
        state: State before the first word, one hypothesis per image.
        start: First input token of each caption: as many per image as there are columns.
        end_token: Token that ends a caption.
        max_length: Maximum number of words, including the end token.
        banned_tokens: Tokens that are never generated.
        uniforms: Returns a uniform number in [0, 1) per caption for each step, from which words
            are sampled; `torch.rand` if None.

    Example:
        >>> class Stateless:  # generates word 1 or the end token 2 at every step
        ...     reorder_beams = select_images = lambda self, index: self
        >>> def step(state, token):
        ...     return torch.tensor([9.0, 0.0, 0.0]).expand(*token.shape, 3), state, ()
        >>> samples = sample_captions(
        ...     step, Stateless(), torch.zeros(2, 5).long(), end_token=2, max_length=7,
        ...     banned_tokens=(0,),
        ... )
        >>> samples.lengths.shape, bool((samples.tokens > 0).all())
        (torch.Size([2, 5]), True)
    """
    token = start
    state = state.reorder_beams(torch.zeros_like(token))  # all samples continue the same start
    banned = torch.tensor(banned_tokens, device=start.device).long()
    lengths = torch.zeros_like(token)
    active = torch.ones_like(token, dtype=torch.bool)
    words: list[Tensor] = []
    while active.any() and len(words) < max_length:
        logits, state, _ = step(state, token)
        logits = logits.index_fill(-1, banned, -torch.inf)
        numbers = torch.rand(token.shape, device=start.device) if uniforms is None else uniforms()
        token = sample_categorical(logits.softmax(-1), numbers).where(active, end_token)
        words.append(token)
        lengths += active
        active = active & (token != end_token)
    return SampledCaptions(torch.stack(words, -1), lengths)


def sample_categorical(
    probabilities: Float[Tensor, "*b v"], uniforms: Float[Tensor, "*b"]
) -> Int[Tensor, "*b"]:
    """Sample categories by inverting the cumulative distribution at uniform numbers.

    Args:
        probabilities: Probabilities of words or locations; rows need not sum to 1.

    Example:
        >>> probabilities = torch.tensor([0.25, 0.0, 0.75]).expand(3, 3)
        >>> sample_categorical(probabilities, torch.tensor([0.0, 0.25, 0.99]))
        tensor([0, 2, 2])
    """
    ends = probabilities.double().cumsum(-1)  # in float64 a number below 1 stays below the end
    targets = uniforms.double().unsqueeze(-1) * ends[..., -1:]
    return torch.searchsorted(ends, targets, right=True).squeeze(-1)
