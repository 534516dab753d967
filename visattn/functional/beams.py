"""Beam search for captioners, with back-pointers, length penalty and early stopping."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

StepOutputT = TypeVar("StepOutputT", bound=tuple[Tensor | None, ...])


class BeamHistory(Generic[StepOutputT]):
    """Back-pointers of a beam search: token, parent and attention tensors of each hypothesis.

    Nothing is copied when hypotheses are reordered; captions are read back once, from their end.
    """

    def __init__(
        self,
        num_images: int,
        beam_size: int,
        max_steps: int,
        output: StepOutputT,
        device: torch.device,
    ) -> None:
        shape = (max_steps, num_images, beam_size)
        self.parents = torch.zeros(shape, dtype=torch.long, device=device)
        self.tokens = torch.zeros_like(self.parents)
        self.log_probs = torch.zeros(shape, device=device)
        self.outputs = tuple(
            None if tensor is None else tensor.new_zeros(*shape, *tensor.shape[2:])
            for tensor in output
        )
        self.output_type: Callable[..., StepOutputT] = type(output)

    def record_output(self, step: int, active: Int[Tensor, " a"], output: StepOutputT) -> None:
        """Store the attention tensors of the live hypotheses of the active images."""
        for stored, tensor in zip(self.outputs, output, strict=True):
            if stored is not None and tensor is not None:
                # Before the first word an image has one hypothesis, later up to `beam_size`.
                stored[step, active, : tensor.shape[1]] = tensor

    def record_tokens(
        self,
        step: int,
        active: Int[Tensor, " a"],
        parents: Int[Tensor, "a k"],
        tokens: Int[Tensor, "a k"],
        log_probs: Float[Tensor, "a k"],
    ) -> None:
        """Store parent, token and token log-probability of each new hypothesis."""
        live = parents.shape[1]
        self.parents[step, active, :live] = parents
        self.tokens[step, active, :live] = tokens
        self.log_probs[step, active, :live] = log_probs

    def read(
        self, lengths: Int[Tensor, "b k"], columns: Int[Tensor, "b k"], pad_token: int
    ) -> tuple[Int[Tensor, "b k t"], Float[Tensor, "b k t"], StepOutputT]:
        """Read captions of the given lengths back from the columns in which they ended."""
        longest = int(lengths.max())
        shape = (*lengths.shape, longest)
        tokens = lengths.new_full(shape, pad_token)
        log_probs = self.log_probs.new_zeros(shape)
        outputs = tuple(
            None if tensor is None else tensor.new_zeros(*shape, *tensor.shape[3:])
            for tensor in self.outputs
        )
        image = torch.arange(len(lengths), device=lengths.device)[:, None]
        # Nothing is moved while searching: each step stores the column that its words continue. A
        # caption is read from its end, by following these columns back to the first word.
        for step in reversed(range(longest)):  # no boolean index, for which a GPU would wait
            inside = lengths > step
            # A word stands in its own column, its attention in that of its parent: it was computed
            # before the words were chosen.
            parents = self.parents[step].gather(1, columns)
            tokens[:, :, step] = self.tokens[step].gather(1, columns).where(inside, pad_token)
            log_probs[:, :, step] = self.log_probs[step].gather(1, columns).where(inside, 0.0)
            for output, stored in zip(outputs, self.outputs, strict=True):
                if output is not None and stored is not None:
                    kept = inside.view(*inside.shape, *(1,) * (stored.ndim - 3))
                    output[:, :, step] = stored[step][image, parents].where(kept, 0)
            columns = parents.where(inside, columns)
        return tokens, log_probs, self.output_type(*outputs)


class FinishedHypotheses:
    """The best finished hypotheses of each image, best first."""

    def __init__(self, num_images: int, capacity: int, device: torch.device) -> None:
        self.scores = torch.full((num_images, capacity), -torch.inf, device=device)
        self.lengths = torch.zeros(num_images, capacity, dtype=torch.long, device=device)
        self.columns = torch.zeros_like(self.lengths)
        self.complete = torch.zeros(num_images, capacity, dtype=torch.bool, device=device)

    def add(
        self,
        active: Int[Tensor, " a"],
        scores: Float[Tensor, "a k"],
        columns: Int[Tensor, "a k"],
        length: int,
    ) -> None:
        """Add hypotheses that end now; a score of minus infinity means none. Ties keep the old."""
        capacity = self.scores.shape[1]
        pooled = torch.cat((self.scores[active], scores), 1)
        ordered, order = pooled.sort(dim=1, descending=True, stable=True)
        order = order[:, :capacity]
        for field, new in (
            (self.lengths, torch.full_like(columns, length)),
            (self.columns, columns),
            (self.complete, scores > -torch.inf),
        ):
            field[active] = torch.cat((field[active], new), 1).gather(1, order)
        self.scores[active] = ordered[:, :capacity]

    def add_truncated(
        self,
        active: Int[Tensor, " a"],
        scores: Float[Tensor, "a k"],
        length: int,
    ) -> None:
        """Fill free slots with hypotheses that are truncated at the maximum length."""
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        used = self.complete[active].sum(1, keepdim=True)
        # Slot i gets the truncated hypothesis of rank i - used: finished captions stay before
        # truncated ones, whatever their scores.
        rank = torch.arange(self.scores.shape[1], device=scores.device) - used
        free = (rank >= 0) & (rank < scores.shape[1])
        rank = rank.clamp(0, scores.shape[1] - 1)
        columns = order.gather(1, rank)
        self.scores[active] = scores.gather(1, rank).where(free, self.scores[active])
        self.columns[active] = columns.where(free, self.columns[active])
        self.lengths[active] = self.lengths[active].masked_fill(free, length)

    def is_final(
        self, active: Int[Tensor, " a"], num_captions: int, bound: Float[Tensor, " a"]
    ) -> Bool[Tensor, " a"]:
        """Return whether no hypothesis with a score up to `bound` can change the result."""
        return self.scores[active, num_captions - 1] >= bound


_SHRINK_THRESHOLD = 0.75  # finished images leave the batch when fewer than this are active


@runtime_checkable
class BeamSearchState(Protocol):
    """Decoder state of a beam search; hypotheses lie along the beam axis."""

    def reorder_beams(self, parents: Int[Tensor, "b k"]) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        ...

    def select_images(self, index: Tensor) -> Self:
        """Return the state of the given images, by index or boolean mask."""
        ...


StateT = TypeVar("StateT", bound=BeamSearchState)
DecoderStep = Callable[
    [StateT, Int[Tensor, "b k"]], tuple[Float[Tensor, "b k v"], StateT, StepOutputT]
]


@dataclass(frozen=True, eq=False)
class BeamSearchOutput(Generic[StepOutputT]):
    """The k best captions of each image, best first; t is the length of the longest."""

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
    """Attention tensors of each word, reordered with the beam: `b k t ...`."""


class DecodingConstraints(NamedTuple):
    """Constraints of beam search.

    Args:
        end_token: Token that ends a caption.
        max_length: Maximum number of words, without the end token.
        min_length: Minimum number of words.
        length_penalty: Exponent alpha; the score of n words, including the end token, is the
            log-probability divided by ((5 + n) / 6)^alpha. 0 compares log-probabilities.
        banned_tokens: Tokens that are never generated.
    """

    end_token: int
    max_length: int
    min_length: int
    length_penalty: float
    banned_tokens: tuple[int, ...]

    def check(self, beam_size: int, num_captions: int) -> None:
        """Raise ValueError if constraints, beam size and number of captions contradict."""
        if not 0 <= self.min_length <= self.max_length or self.max_length < 1:
            raise ValueError(
                f"lengths must be 0 <= min_length <= max_length and max_length >= 1, "
                f"got {self.min_length} and {self.max_length}"
            )
        if not 1 <= num_captions <= beam_size:
            raise ValueError(
                "num_captions must be at least 1 and at most beam_size, "
                f"got num_captions={num_captions}, beam_size={beam_size}"
            )
        if self.length_penalty < 0 or self.end_token in self.banned_tokens:
            raise ValueError(
                f"length_penalty must be >= 0 and the end token {self.end_token} not banned, "
                f"got {self.length_penalty} and banned_tokens={self.banned_tokens}"
            )

    def constrained_log_probs(
        self, logits: Float[Tensor, "b k v"], num_words: int
    ) -> Float[Tensor, "b k v"]:
        """Return log-probabilities; minus infinity for tokens not allowed after `num_words`."""
        log_probs = logits.log_softmax(-1, dtype=torch.float32)
        for token in self.banned_tokens:  # a list as an index would be copied to the device
            log_probs[..., token] = -torch.inf
        if num_words < self.min_length:
            log_probs[..., self.end_token] = -torch.inf
        return log_probs

    def penalty(self, num_words: int) -> float:
        """Return the length penalty of a number of words, including the end token."""
        return ((5 + num_words) / 6) ** self.length_penalty


@torch.no_grad()
def beam_search(
    step: DecoderStep[StateT, StepOutputT],
    state: StateT,
    *,
    num_images: int,
    start_token: int,
    constraints: DecodingConstraints,
    beam_size: int = 5,
    num_captions: int = 1,
    device: torch.device | str = "cpu",
) -> BeamSearchOutput[StepOutputT]:
    """Return the best captions of each image by beam search.

    A hypothesis ends when the end token is among the `beam_size` best continuations; the beam is
    refilled, so it never shrinks. The search of an image stops exactly when no live hypothesis can
    still beat the finished ones. The result of an image does not depend on the rest of the batch.
    With `beam_size=1` and no length penalty it is the greedy caption. Log-probabilities are in
    float32 whatever the dtype of the model, and no gradients are recorded.

    Args:
        step: Maps a state and the previous words to the logits of the next words, the new state
            and a named tuple of tensors `b k ...` to keep per word (attention weights, gates).
        state: State before the first word, one hypothesis per image.
        num_images: Number of images.
        start_token: First input token.
        constraints: Lengths, length penalty, end token and banned tokens.
        beam_size: Live hypotheses per image.
        num_captions: Captions returned per image.
        device: Device of the model.

    Raises:
        ValueError: If the constraints contradict each other, `num_captions` exceeds `beam_size`,
            or the logits of the model are NaN.

    Example:
        >>> from collections import namedtuple
        >>> AttentionStep = namedtuple("AttentionStep", "weights")
        >>> logits = torch.tensor([0.0, 2.0, 1.0])
        >>> class Stateless:  # generates word 1 or the end token 2 at every step
        ...     reorder_beams = select_images = lambda self, index: self
        >>> def step(state, token):
        ...     output = AttentionStep(torch.ones(*token.shape, 1))
        ...     return logits.expand(*token.shape, 3), state, output
        >>> constraints = DecodingConstraints(
        ...     end_token=2, max_length=3, min_length=1, length_penalty=0.0, banned_tokens=(0,)
        ... )
        >>> output = beam_search(
        ...     step, Stateless(), num_images=1, start_token=0, constraints=constraints
        ... )
        >>> output.tokens, output.finished
        (tensor([[[1]]]), tensor([[True]]))

    Source:
        Length penalty: Wu et al. 2016, arXiv:1609.08144, equation 14.
    """
    constraints.check(beam_size, num_captions)
    token = torch.full((num_images, 1), start_token, device=device)
    total = torch.zeros(num_images, 1, device=device)
    active = torch.arange(num_images, device=device)
    finished = FinishedHypotheses(num_images, beam_size, active.device)
    history: BeamHistory[StepOutputT] | None = None
    for length in range(constraints.max_length + 1):
        logits, state, output = step(state, token)
        history = history or BeamHistory(
            num_images, beam_size, constraints.max_length + 1, output, active.device
        )
        history.record_output(length, active, output)
        log_probs = constraints.constrained_log_probs(logits, length)
        # Twice the beam, since each hypothesis has one end token: at most `beam_size` candidates
        # end here, and as many remain to go on with.
        candidates = _best_candidates(total, log_probs, 2 * beam_size)
        ends = candidates.ending(constraints.end_token, beam_size)
        finished.add(active, ends.totals / constraints.penalty(length + 1), ends.parents, length)
        if length == constraints.max_length:
            truncated = _truncated_scores(total, ends) / constraints.penalty(length)
            finished.add_truncated(active, truncated, length)
            break
        candidates = candidates.continuing(constraints.end_token, beam_size)
        history.record_tokens(
            length, active, candidates.parents, candidates.tokens, candidates.log_probs
        )
        # The best that a live hypothesis can still reach: words only lower its sum, and the longest
        # caption has the largest penalty to divide a negative sum by.
        bound = candidates.totals.amax(1) / constraints.penalty(constraints.max_length + 1)
        unfinished = ~finished.is_final(active, num_captions, bound)
        check = (length + 1) % _steps_per_check(active.device) == 0
        count = int(unfinished.sum()) if check else len(active)
        if not count:
            break
        state = state.reorder_beams(candidates.parents)
        token = candidates.tokens
        total = candidates.totals
        if count < _SHRINK_THRESHOLD * len(active):
            kept = unfinished.nonzero()[:, 0]
            state, active = state.select_images(kept), active[kept]
            token, total = token[kept], total[kept]
    if history is None:
        raise RuntimeError("a search takes at least one step")
    return _read_output(history, finished, num_captions, constraints.end_token)


def _steps_per_check(device: torch.device) -> int:
    """Return after how many words the search looks whether images are finished.

    More words do not change the result; on a GPU each look waits for all kernels.
    """
    return 1 if device.type == "cpu" else 4


class _Candidates(NamedTuple):
    """Continuations of live hypotheses, best first; `totals` includes the parent."""

    parents: Int[Tensor, "a m"]
    tokens: Int[Tensor, "a m"]
    totals: Float[Tensor, "a m"]
    log_probs: Float[Tensor, "a m"]

    def ending(self, end_token: int, beam_size: int) -> "_Candidates":
        """Return the first `beam_size` candidates, with minus infinity for those that continue."""
        first = _Candidates(*(values[:, :beam_size] for values in self))
        return first._replace(
            totals=first.totals.masked_fill(first.tokens != end_token, -torch.inf)
        )

    def continuing(self, end_token: int, beam_size: int) -> "_Candidates":
        """Return the best `beam_size` candidates that do not end."""
        # A stable sort by "ends" keeps the order of the others. If the vocabulary is too small to
        # fill the beam, ends follow, which minus infinity takes out of the search.
        ends = self.tokens == end_token
        order = ends.long().argsort(dim=1, stable=True)[:, :beam_size]
        candidates = self._replace(totals=self.totals.masked_fill(ends, -torch.inf))
        return _Candidates(*(values.gather(1, order) for values in candidates))


def _best_candidates(
    total: Float[Tensor, "a k"], log_probs: Float[Tensor, "a k v"], count: int
) -> _Candidates:
    vocab_size = log_probs.shape[-1]
    sums = (total.unsqueeze(-1) + log_probs).flatten(1)
    totals, index = sums.topk(min(count, sums.shape[1]), dim=1)
    own = log_probs.flatten(1).gather(1, index)
    return _Candidates(index // vocab_size, index % vocab_size, totals, own)


def _truncated_scores(total: Float[Tensor, "a k"], ends: _Candidates) -> Float[Tensor, "a k"]:
    """Return log-probabilities of live hypotheses; minus infinity for those that just ended."""
    is_end = (ends.totals > -torch.inf).long()
    # Added, not written: other candidates of the same parent go on, and would write a 0 over its 1.
    num_ends = torch.zeros_like(total, dtype=torch.long).scatter_add(1, ends.parents, is_end)
    return total.masked_fill(num_ends > 0, -torch.inf)


def _read_output(
    history: BeamHistory[StepOutputT], finished: FinishedHypotheses, count: int, pad_token: int
) -> BeamSearchOutput[StepOutputT]:
    scores = finished.scores[:, :count]
    columns = finished.columns[:, :count]
    if scores.isnan().any():
        raise ValueError("the logits of the model are NaN: its weights or its input are damaged")
    lengths = finished.lengths[:, :count].masked_fill(scores == -torch.inf, 0)
    tokens, log_probs, outputs = history.read(lengths, columns, pad_token)
    complete = finished.complete[:, :count]
    return BeamSearchOutput(tokens, lengths, scores, log_probs, complete, outputs)
