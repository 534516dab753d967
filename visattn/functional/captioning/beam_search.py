"""What a beam search writes down as it goes, and how a caption is read back from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LookT = TypeVar("LookT", bound=tuple[Tensor, ...])


class History(Generic[LookT]):
    """Back-pointers: at each step, each live hypothesis's word, its parent and the parent's look.

    Nothing is copied when hypotheses change places; a caption is recovered once, from its end.

    Args:
        images: How many images.
        beam: Live hypotheses per image.
        steps: Most steps.
        look: A look of the first step; tells kinds and sizes.
    """

    def __init__(self, images: int, beam: int, steps: int, look: LookT) -> None:
        device = look[0].device
        shape = (steps, images, beam)
        self.parents = torch.zeros(shape, dtype=torch.long, device=device)
        self.tokens = torch.zeros_like(self.parents)
        self.spoken = torch.zeros(shape, device=device)
        self.looks = tuple(part.new_zeros(*shape, *part.shape[2:]) for part in look)
        self.kind = type(look)

    def look(self, step: int, active: Int[Tensor, " a"], look: LookT) -> None:
        """Write down where the live hypotheses of these images look at this step."""
        for kept, part in zip(self.looks, look, strict=True):
            kept[step, active, : part.shape[1]] = part

    def move(
        self,
        step: int,
        active: Int[Tensor, " a"],
        parents: Int[Tensor, "a k"],
        tokens: Int[Tensor, "a k"],
        spoken: Float[Tensor, "a k"],
    ) -> None:
        """Write down which parent each new hypothesis continues, with which word, how likely."""
        live = parents.shape[1]
        self.parents[step, active, :live] = parents
        self.tokens[step, active, :live] = tokens
        self.spoken[step, active, :live] = spoken

    def read(
        self, lengths: Int[Tensor, "b k"], columns: Int[Tensor, "b k"], filler: int
    ) -> tuple[Int[Tensor, "b k t"], Float[Tensor, "b k t"], LookT]:
        """Follow captions of these lengths back from the columns in which they ended."""
        longest = int(lengths.max())
        shape = (*lengths.shape, longest)
        tokens = lengths.new_full(shape, filler)
        spoken = self.spoken.new_zeros(shape)
        looks = tuple(part.new_zeros(*shape, *part.shape[3:]) for part in self.looks)
        image = torch.arange(len(lengths), device=lengths.device)[:, None].expand_as(columns)
        for step in reversed(range(longest)):
            inside = lengths > step
            at = (step, image[inside], columns[inside])
            parents = self.parents[at]
            tokens[inside, step] = self.tokens[at]
            spoken[inside, step] = self.spoken[at]
            for out, kept in zip(looks, self.looks, strict=True):
                out[inside, step] = kept[step, image[inside], parents]
            columns = columns.masked_scatter(inside, parents)
        return tokens, spoken, self.kind(*looks)


class Ended:
    """The best captions that have come to an end, per image, best first.

    Args:
        images: How many images.
        room: How many are kept per image.
        device: Where the search runs.
    """

    def __init__(self, images: int, room: int, device: torch.device) -> None:
        self.scores = torch.full((images, room), -torch.inf, device=device)
        self.lengths = torch.zeros(images, room, dtype=torch.long, device=device)
        self.columns = torch.zeros_like(self.lengths)
        self.whole = torch.zeros(images, room, dtype=torch.bool, device=device)

    def add(
        self,
        active: Int[Tensor, " a"],
        scores: Float[Tensor, "a k"],
        columns: Int[Tensor, "a k"],
        length: int,
    ) -> None:
        """Take in captions that stop now; a score of minus infinity is none. Ties keep the old."""
        room = self.scores.shape[1]
        pooled = torch.cat((self.scores[active], scores), 1)
        kept, order = pooled.sort(dim=1, descending=True, stable=True)
        order = order[:, :room]
        for field, new in (
            (self.lengths, torch.full_like(columns, length)),
            (self.columns, columns),
            (self.whole, scores > -torch.inf),
        ):
            field[active] = torch.cat((field[active], new), 1).gather(1, order)
        self.scores[active] = kept[:, :room]

    def fill(
        self,
        active: Int[Tensor, " a"],
        scores: Float[Tensor, "a k"],
        length: int,
    ) -> None:
        """Put captions cut at the maximum length into the places that are still free."""
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        taken = self.whole[active].sum(1, keepdim=True)
        rank = torch.arange(self.scores.shape[1], device=scores.device) - taken
        free = (rank >= 0) & (rank < scores.shape[1])
        rank = rank.clamp(0, scores.shape[1] - 1)
        columns = order.gather(1, rank)
        self.scores[active] = scores.gather(1, rank).where(free, self.scores[active])
        self.columns[active] = columns.where(free, self.columns[active])
        self.lengths[active] = self.lengths[active].masked_fill(free, length)

    def settled(
        self, active: Int[Tensor, " a"], best: int, bound: Float[Tensor, " a"]
    ) -> Bool[Tensor, " a"]:
        """Whether nothing that scores at most `bound` can still change the `best` captions."""
        return self.scores[active, best - 1] >= bound


LookTSearch = TypeVar("LookT", bound=tuple[Tensor, ...])
_WORTH_SHRINKING = 0.75  # done images leave the batch when this share or less is still going


@runtime_checkable
class Searchable(Protocol):
    """A state that can follow its hypotheses; they lie side by side on the beam axis."""

    def of_beams(self, parents: Int[Tensor, "b k"]) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        ...

    def of_images(self, kept: Tensor) -> Self:
        """Return the state of these images, by number or by mark."""
        ...


StateT = TypeVar("StateT", bound=Searchable)
Step = Callable[[StateT, Int[Tensor, "b k"]], tuple[Float[Tensor, "b k v"], StateT, LookTSearch]]


@dataclass(frozen=True, eq=False)
class BeamSearchOutput(Generic[LookTSearch]):
    """The best captions of each image, best first; `k` counts them, `t` their longest."""

    tokens: Int[Tensor, "b k t"]
    """Words without start and stop; past a caption's length the stop word."""
    lengths: Int[Tensor, "b k"]
    """Words per caption."""
    scores: Float[Tensor, "b k"]
    """Log-probability over length penalty; minus infinity where fewer captions exist."""
    log_probabilities: Float[Tensor, "b k t"]
    """Of each word, in nats; 0 past the end."""
    finished: Bool[Tensor, "b k"]
    """Whether the caption came to its stop word; the others were cut at the maximum length."""
    looks: LookTSearch
    """What the model returned for each word, followed through the beam: `b k t ...`."""


class DecodingConstraints(NamedTuple):
    """What a search may say.

    Args:
        stop: The word that ends a caption.
        max_length: Most words of a caption, the stop word not counted.
        min_length: Fewest words of a caption.
        length_penalty: Exponent alpha; a caption of n words, stop word counted, scores its
            log-probability over ((5 + n) / 6)^alpha. 0 compares log-probabilities.
        banned: Words never said.
    """

    stop: int
    max_length: int
    min_length: int
    length_penalty: float
    banned: tuple[int, ...]

    def check(self, beam: int, best: int) -> None:
        """Raise ValueError where the rules, the beam or the number of results make no sense."""
        if not 0 <= self.min_length <= self.max_length or self.max_length < 1:
            raise ValueError(
                f"lengths must be 0 <= min_length <= max_length and max_length >= 1, "
                f"got {self.min_length} and {self.max_length}"
            )
        if not 1 <= best <= beam:
            raise ValueError(f"best must lie between 1 and beam, got best={best}, beam={beam}")
        if self.length_penalty < 0 or self.stop in self.banned:
            raise ValueError(
                f"length_penalty must be >= 0 and the stop word {self.stop} not banned, "
                f"got {self.length_penalty} and banned={self.banned}"
            )

    def allowed(self, logits: Float[Tensor, "b k v"], said: int) -> Float[Tensor, "b k v"]:
        """Return log-probabilities with minus infinity where a word may not follow `said` words."""
        spoken = logits.log_softmax(-1, dtype=torch.float32)
        if self.banned:
            spoken[..., list(self.banned)] = -torch.inf
        if said < self.min_length:
            spoken[..., self.stop] = -torch.inf
        return spoken

    def penalty(self, words: int) -> float:
        """Return what the log-probability of so many words, stop word counted, is divided by."""
        return ((5 + words) / 6) ** self.length_penalty


@torch.no_grad()
def beam_search(
    step: Step[StateT, LookTSearch],
    state: StateT,
    *,
    images: int,
    start: int,
    rules: DecodingConstraints,
    beam: int = 5,
    best: int = 1,
    device: torch.device | str = "cpu",
) -> BeamSearchOutput[LookTSearch]:
    """Return the `best` captions of each image found with `beam` live hypotheses.

    A hypothesis ends when the stop word is among the `beam` best continuations; the live ones are
    filled up again, so the beam never shrinks. An image is done, exactly, when no live
    hypothesis can still beat its `best` ended ones. The result for an image does not depend on
    the others in the batch. With `beam=1` and no length penalty it is the greedy caption.
    Log-probabilities are in single precision whatever the model computes in; nothing is kept for
    gradients.

    Args:
        step: From a state and the last words to the logits of the next, the new state, and a
            named tuple of tensors `b k ...` to be kept per word (attention weights, gates).
        state: The state before the first word, one hypothesis per image.
        images: How many images.
        start: The word that is read first.
        rules: What may be said.
        beam: Live hypotheses per image.
        best: Captions returned per image.
        device: Where the model computes.

    Raises:
        ValueError: If the rules contradict each other, `best` exceeds `beam`, or the model's
            scores are NaN.

    Example:
        >>> from collections import namedtuple
        >>> AttentionStep = namedtuple("AttentionStep", "weights")
        >>> logits = torch.tensor([0.0, 2.0, 1.0])
        >>> class Still:  # says word 1 or stops (2), whatever was said before
        ...     of_beams = of_images = lambda self, index: self
        >>> def step(state, token):
        ...     return logits.expand(*token.shape, 3), state,
        AttentionStep(torch.ones(*token.shape, 1))
        >>> rules = DecodingConstraints(
        ...     stop=2, max_length=3, min_length=1, length_penalty=0.0, banned=(0,)
        ... )
        >>> found = beam_search(step, Still(), images=1, start=0, rules=rules)
        >>> found.tokens, found.finished
        (tensor([[[1]]]), tensor([[True]]))

    Source:
        Length penalty: Wu et al. 2016, arXiv:1609.08144, equation 14.
    """
    rules.check(beam, best)
    token = torch.full((images, 1), start, device=device)
    total = torch.zeros(images, 1, device=device)
    active = torch.arange(images, device=device)
    ended = Ended(images, beam, active.device)
    history: History[LookTSearch] | None = None
    for said in range(rules.max_length + 1):
        logits, state, look = step(state, token)
        history = history or History(images, beam, rules.max_length + 1, look)
        history.look(said, active, look)
        moves = _best_moves(total, rules.allowed(logits, said), 2 * beam)
        stops = moves.stopping(rules.stop, beam)
        ended.add(active, stops.totals / rules.penalty(said + 1), stops.parents, said)
        if said == rules.max_length:
            ended.fill(active, _cut(total, stops) / rules.penalty(said), said)
            break
        moves = moves.going_on(rules.stop, beam)
        history.move(said, active, moves.parents, moves.tokens, moves.spoken)
        bound = moves.totals.amax(1) / rules.penalty(rules.max_length + 1)
        going = ~ended.settled(active, best, bound)
        if not going.any():
            break
        state, token, total = state.of_beams(moves.parents), moves.tokens, moves.totals
        if going.sum() < _WORTH_SHRINKING * len(going):
            state, token, total, active = (
                state.of_images(going),
                token[going],
                total[going],
                active[going],
            )
    if history is None:
        raise RuntimeError("a search takes at least one step")
    return _read(history, ended, best, rules.stop)


class _Moves(NamedTuple):
    """Continuations of live hypotheses, best first: whose, with which word, how likely."""

    parents: Int[Tensor, "a m"]
    tokens: Int[Tensor, "a m"]
    totals: Float[Tensor, "a m"]
    spoken: Float[Tensor, "a m"]

    def stopping(self, stop: int, beam: int) -> "_Moves":
        """Return the first `beam` moves, those that do not stop at minus infinity."""
        first = _Moves(*(part[:, :beam] for part in self))
        return first._replace(totals=first.totals.masked_fill(first.tokens != stop, -torch.inf))

    def going_on(self, stop: int, beam: int) -> "_Moves":
        """Return the best `beam` moves that do not stop."""
        stops = self.tokens == stop
        order = stops.long().argsort(dim=1, stable=True)[:, :beam]
        kept = self._replace(totals=self.totals.masked_fill(stops, -torch.inf))
        return _Moves(*(part.gather(1, order) for part in kept))


def _best_moves(total: Float[Tensor, "a k"], spoken: Float[Tensor, "a k v"], count: int) -> _Moves:
    words = spoken.shape[-1]
    every = (total.unsqueeze(-1) + spoken).flatten(1)
    totals, flat = every.topk(min(count, every.shape[1]), dim=1)
    return _Moves(flat // words, flat % words, totals, spoken.flatten(1).gather(1, flat))


def _cut(total: Float[Tensor, "a k"], stops: _Moves) -> Float[Tensor, "a k"]:
    """Return log-probabilities of live hypotheses; minus infinity for those that just stopped."""
    ended = (stops.totals > -torch.inf).long()
    stopped = torch.zeros_like(total, dtype=torch.long).scatter_add(1, stops.parents, ended)
    return total.masked_fill(stopped > 0, -torch.inf)


def _read(
    history: History[LookTSearch], ended: Ended, best: int, filler: int
) -> BeamSearchOutput[LookTSearch]:
    scores, columns = ended.scores[:, :best], ended.columns[:, :best]
    if scores.isnan().any():
        raise ValueError("the model scores words with NaN: its weights or its input are broken")
    lengths = ended.lengths[:, :best].masked_fill(scores == -torch.inf, 0)
    tokens, spoken, looks = history.read(lengths, columns, filler)
    return BeamSearchOutput(tokens, lengths, scores, spoken, ended.whole[:, :best], looks)
