"""One batched beam search over any model that can take one step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.functional.beams import Ended, History

LookT = TypeVar("LookT", bound=tuple[Tensor, ...])
_WORTH_SHRINKING = 0.75  # done pictures leave the batch when this share or less is still going


@runtime_checkable
class Searchable(Protocol):
    """A state that can follow its hypotheses; they lie side by side on the beam axis."""

    def of_beams(self, parents: Int[Tensor, "b k"]) -> Self:
        """Return the state in which hypothesis j continues hypothesis `parents[:, j]`."""
        ...

    def of_pictures(self, kept: Tensor) -> Self:
        """Return the state of these pictures, by number or by mark."""
        ...


StateT = TypeVar("StateT", bound=Searchable)
Step = Callable[[StateT, Int[Tensor, "b k"]], tuple[Float[Tensor, "b k v"], StateT, LookT]]


@dataclass(frozen=True, eq=False)
class Hypotheses(Generic[LookT]):
    """The best captions of each picture, best first; `k` counts them, `t` their longest."""

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
    looks: LookT
    """What the model returned for each word, followed through the beam: `b k t ...`."""


class Rules(NamedTuple):
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
    step: Step[StateT, LookT],
    state: StateT,
    *,
    pictures: int,
    start: int,
    rules: Rules,
    beam: int = 5,
    best: int = 1,
    device: torch.device | str = "cpu",
) -> Hypotheses[LookT]:
    """Return the `best` captions of each picture found with `beam` live hypotheses.

    A hypothesis ends when the stop word is among the `beam` best continuations; the live ones are
    filled up again, so the beam never shrinks. A picture is done, exactly, when no live
    hypothesis can still beat its `best` ended ones. The result for a picture does not depend on
    the others in the batch. With `beam=1` and no length penalty it is the greedy caption.
    Log-probabilities are in single precision whatever the model computes in; nothing is kept for
    gradients.

    Args:
        step: From a state and the last words to the logits of the next, the new state, and a
            named tuple of tensors `b k ...` to be kept per word (attention weights, gates).
        state: The state before the first word, one hypothesis per picture.
        pictures: How many pictures.
        start: The word that is read first.
        rules: What may be said.
        beam: Live hypotheses per picture.
        best: Captions returned per picture.
        device: Where the model computes.

    Raises:
        ValueError: If the rules contradict each other, `best` exceeds `beam`, or the model's
            scores are NaN.

    Example:
        >>> from collections import namedtuple
        >>> Look, logits = namedtuple("Look", "weights"), torch.tensor([0.0, 2.0, 1.0])
        >>> class Still:  # says word 1 or stops (2), whatever was said before
        ...     of_beams = of_pictures = lambda self, index: self
        >>> def step(state, token):
        ...     return logits.expand(*token.shape, 3), state, Look(torch.ones(*token.shape, 1))
        >>> rules = Rules(stop=2, max_length=3, min_length=1, length_penalty=0.0, banned=(0,))
        >>> found = beam_search(step, Still(), pictures=1, start=0, rules=rules)
        >>> found.tokens, found.finished
        (tensor([[[1]]]), tensor([[True]]))

    Source:
        Length penalty: Wu et al. 2016, arXiv:1609.08144, equation 14.
    """
    rules.check(beam, best)
    token = torch.full((pictures, 1), start, device=device)
    total = torch.zeros(pictures, 1, device=device)
    active = torch.arange(pictures, device=device)
    ended = Ended(pictures, beam, active.device)
    history: History[LookT] | None = None
    for said in range(rules.max_length + 1):
        logits, state, look = step(state, token)
        history = history or History(pictures, beam, rules.max_length + 1, look)
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
                state.of_pictures(going),
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


def _read(history: History[LookT], ended: Ended, best: int, filler: int) -> Hypotheses[LookT]:
    scores, columns = ended.scores[:, :best], ended.columns[:, :best]
    if scores.isnan().any():
        raise ValueError("the model scores words with NaN: its weights or its input are broken")
    lengths = ended.lengths[:, :best].masked_fill(scores == -torch.inf, 0)
    tokens, spoken, looks = history.read(lengths, columns, filler)
    return Hypotheses(tokens, lengths, scores, spoken, ended.whole[:, :best], looks)
