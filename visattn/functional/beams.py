"""Beam search for captioners, with length penalty and early stopping."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

StepOutputT = TypeVar("StepOutputT", bound=tuple[Tensor | None, ...])
Step = Callable[[Any, Int[Tensor, "b k"]], tuple[Float[Tensor, "b k v"], Any, StepOutputT]]
"""From a state and the last word of each hypothesis of each image to next-word logits, the new
state, and what is kept per word, such as attention weights."""


@dataclass(frozen=True, eq=False)
class BeamSearchOutput(Generic[StepOutputT]):
    """The best captions of each image, best first; t is the length of the longest."""

    tokens: Int[Tensor, "b k t"]
    """Tokens without start and end token; padded with the end token."""
    lengths: Int[Tensor, "b k"]
    """Number of words per caption."""
    scores: Float[Tensor, "b k"]
    """Log-probability divided by the length penalty; minus infinity if there is no caption."""
    log_probs: Float[Tensor, "b k t"]
    """Log-probability of each word, in nats; 0 for padding."""
    finished: Bool[Tensor, "b k"]
    """Whether the caption reached the end token; the others are truncated."""
    attention_steps: StepOutputT
    """Attention tensors of each word: `b k t ...`."""


@torch.no_grad()
def beam_search(
    step: Step[StepOutputT],
    state: Any,
    start: Int[Tensor, " b"],
    *,
    end_token: int,
    beam_size: int = 5,
    num_captions: int = 1,
    max_length: int = 30,
    min_length: int = 1,
    length_penalty: float = 0.0,
    banned_tokens: Sequence[int] = (),
) -> BeamSearchOutput[StepOutputT]:
    """Return the best captions of each image by beam search.

    A hypothesis ends when the end token is among the `beam_size` best continuations; the beam is
    refilled, so it never shrinks. The search of an image stops exactly when no live hypothesis can
    still beat the finished ones. The result of an image does not depend on the rest of the batch.
    With `beam_size=1` and no length penalty it is the greedy caption. Log-probabilities are in
    float32 for any dtype of the model, and no gradients are recorded.

    Args:
        step: Maps a state and the previous words to the logits of the next words, the new state
            and a named tuple of tensors `b k ...` to keep per word (attention weights, gates).
        state: State before the first word, one hypothesis per image. Its `reorder_beams(parents)`
            returns the state in which hypothesis j continues hypothesis `parents[:, j]`, its
            `select_images(index)` that of the selected images.
        start: First input token of each image.
        end_token: Token that ends a caption.
        beam_size: Live hypotheses per image.
        num_captions: Captions returned per image.
        max_length: Maximum number of words, without the end token.
        min_length: Minimum number of words.
        length_penalty: Exponent alpha; the score of n words, including the end token, is the
            log-probability divided by ((5 + n) / 6)^alpha. 0 compares log-probabilities.
        banned_tokens: Tokens that are never generated.

    Raises:
        ValueError: If the lengths contradict each other, `num_captions` exceeds `beam_size`, or the
            logits of the model are NaN.

    Example:
        >>> from collections import namedtuple
        >>> AttentionStep = namedtuple("AttentionStep", "weights")
        >>> logits = torch.tensor([0.0, 2.0, 1.0])
        >>> class Stateless:  # generates word 1 or the end token 2 at every step
        ...     reorder_beams = select_images = lambda self, index: self
        >>> def step(state, token):
        ...     output = AttentionStep(torch.ones(*token.shape, 1))
        ...     return logits.expand(*token.shape, 3), state, output
        >>> output = beam_search(
        ...     step, Stateless(), torch.tensor([0]), end_token=2, max_length=3, banned_tokens=(0,)
        ... )
        >>> output.tokens, output.finished
        (tensor([[[1]]]), tensor([[True]]))

    Source:
        Length penalty: Wu et al. 2016, arXiv:1609.08144, equation 14.
    """
    fits = 0 <= min_length <= max_length >= 1 <= num_captions <= beam_size
    if not fits or length_penalty < 0:  # no early stop is exact with a negative penalty
        raise ValueError(
            "beam search needs 0 <= min_length <= max_length, max_length >= 1, 1 <= num_captions "
            f"<= beam_size and length_penalty >= 0, got min_length={min_length}, max_length="
            f"{max_length}, num_captions={num_captions}, beam_size={beam_size}, length_penalty="
            f"{length_penalty}"
        )
    device = start.device
    penalties = [((5 + count) / 6) ** length_penalty for count in range(max_length + 2)]
    scores = torch.full((len(start), num_captions), -torch.inf, device=device)
    lengths, columns = torch.zeros_like(scores).long(), torch.zeros_like(scores).long()
    finished = torch.zeros_like(scores, dtype=torch.bool)
    best = (scores, lengths, columns, finished)
    active = torch.arange(len(start), device=device)  # images whose search goes on
    # All hypotheses start as the first one; the others have probability 0 until the beam is full.
    token = start[:, None].expand(-1, beam_size)
    state = state.reorder_beams(torch.zeros_like(token))
    total = torch.zeros(token.shape, device=device)
    total[:, 1:] = -torch.inf
    history: list[_Words] = []
    kind: Any = tuple
    for length in range(max_length + 1):
        logits, state, output = step(state, token)
        kind = type(output)
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        for banned in banned_tokens:  # a list as an index would be copied to the device
            log_probs[..., banned] = -torch.inf
        if length < min_length:
            log_probs[..., end_token] = -torch.inf
        # Twice the beam, since each hypothesis has one end token: at most `beam_size` candidates
        # end here, and as many remain to be continued.
        sums = (total.unsqueeze(-1) + log_probs).flatten(1)
        totals, index = sums.topk(2 * beam_size, dim=1)
        parents, tokens = index // logits.shape[-1], index % logits.shape[-1]
        ends = tokens == end_token
        ended = totals[:, :beam_size].masked_fill(~ends[:, :beam_size], -torch.inf)
        ending = parents[:, :beam_size]
        _keep_best(best, active, ended / penalties[length + 1], ending, length, finished=True)
        if length == max_length:
            # Live hypotheses are truncated. Parents of a caption that just ended are marked by
            # adding, since their other candidates would overwrite a 1 by a 0.
            counts = torch.zeros_like(total).scatter_add(1, ending, (ended > -torch.inf).to(total))
            total = total.masked_fill(counts > 0, -torch.inf)
            own = torch.arange(beam_size, device=device).expand_as(ending)
            _keep_best(best, active, total / penalties[length], own, length, finished=False)
            break
        # A stable sort by "ends" keeps the order of the others. If the vocabulary is too small to
        # fill the beam, ends fill it, and minus infinity removes them from the search.
        order = ends.long().argsort(dim=1, stable=True)[:, :beam_size]
        parents, token = parents.gather(1, order), tokens.gather(1, order)
        total = totals.masked_fill(ends, -torch.inf).gather(1, order)
        own = log_probs.flatten(1).gather(1, index).gather(1, order)
        words = (parents, token, own, *output)
        history.append([_of_all(x, active, len(start)) for x in words])
        state = state.reorder_beams(parents)
        if device.type != "cpu" and length % 4 < 3:
            continue  # to look which searches go on would wait for the GPU
        # The best that a live hypothesis can still reach: words only lower its sum, and the longest
        # caption has the largest penalty to divide a negative sum by.
        bound = total.amax(1) / penalties[max_length + 1]
        kept = (~(scores[active, -1] >= bound)).nonzero()[:, 0]
        if not len(kept):
            break
        if len(kept) < len(active):
            state, active = state.select_images(kept), active[kept]
            token, total = token[kept], total[kept]
    if scores.isnan().any():
        raise ValueError("the logits of the model are NaN: its weights or its input are damaged")
    lengths = lengths.masked_fill(scores == -torch.inf, 0)
    tokens, log_probs, *outputs = _read_back(history, lengths, columns)
    past = torch.arange(tokens.shape[-1], device=device) >= lengths.unsqueeze(-1)
    tokens = tokens.masked_fill(past, end_token)
    return BeamSearchOutput(tokens, lengths, scores, log_probs, finished, kind(*outputs))


_Words = list[Any]
"""Parent, word, its log-probability and what is kept per word, for all hypotheses of a step."""


def _of_all(x: Tensor | None, active: Int[Tensor, " a"], num_images: int) -> Tensor | None:
    """Scatter the values of the active images to all images."""
    if x is None or len(active) == num_images:
        return x
    return x.new_zeros(num_images, *x.shape[1:]).index_copy(0, active, x)


def _keep_best(
    best: Sequence[Tensor],
    active: Int[Tensor, " a"],
    scores: Float[Tensor, "a k"],
    columns: Int[Tensor, "a k"],
    length: int,
    *,
    finished: bool,
) -> None:
    """Merge captions of a length into the best scores, lengths, columns and whether they finished.

    A score of minus infinity means none. Truncated captions come last; in ties, earlier ones win.
    """
    new = (scores, torch.full_like(columns, length), columns, (scores != -torch.inf) & finished)
    joined = [torch.cat((old[active], x), 1) for old, x in zip(best, new, strict=True)]
    order = joined[0].argsort(dim=1, descending=True, stable=True)
    truncated = (~joined[3]).gather(1, order).long()
    order = order.gather(1, truncated.argsort(dim=1, stable=True))[:, : best[0].shape[1]]
    for old, x in zip(best, joined, strict=True):
        old[active] = x.gather(1, order)


def _read_back(
    history: Sequence[_Words], lengths: Int[Tensor, "b k"], columns: Int[Tensor, "b k"]
) -> list[Any]:
    """Backtrack captions from their ends: words, log-probabilities and what was kept per word."""
    shape = (*lengths.shape, int(lengths.max()))
    read = [x if x is None else x.new_zeros(*shape, *x.shape[2:]) for x in history[0][1:]]
    image = torch.arange(len(lengths), device=lengths.device)[:, None]
    # The search stores for each word the column of its parent. A caption is read from its end, by
    # following these columns back to the first word.
    for step in reversed(range(shape[-1])):  # no boolean index, which would synchronize a GPU
        inside = lengths > step
        parents = history[step][0].gather(1, columns)
        # A word is in its own column, its attention in the column of its parent, since it was
        # computed before the word was chosen.
        for number, (target, x) in enumerate(zip(read, history[step][1:], strict=True)):
            if target is not None:
                values = x[image, columns if number < 2 else parents]
                target[:, :, step] = values.where(
                    inside.view(*inside.shape, *(1,) * (x.ndim - 2)), 0
                )
        columns = parents.where(inside, columns)
    return read
