"""What a beam search writes down as it goes, and how a caption is read back from it."""

from typing import Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LookT = TypeVar("LookT", bound=tuple[Tensor, ...])


class History(Generic[LookT]):
    """Back-pointers: at each step, each live hypothesis's word, its parent and the parent's look.

    Nothing is copied when hypotheses change places; a caption is recovered once, from its end.

    Args:
        pictures: How many pictures.
        beam: Live hypotheses per picture.
        steps: Most steps.
        look: A look of the first step; tells kinds and sizes.
    """

    def __init__(self, pictures: int, beam: int, steps: int, look: LookT) -> None:
        device = look[0].device
        shape = (steps, pictures, beam)
        self.parents = torch.zeros(shape, dtype=torch.long, device=device)
        self.tokens = torch.zeros_like(self.parents)
        self.spoken = torch.zeros(shape, device=device)
        self.looks = tuple(part.new_zeros(*shape, *part.shape[2:]) for part in look)
        self.kind = type(look)

    def look(self, step: int, active: Int[Tensor, " a"], look: LookT) -> None:
        """Write down where the live hypotheses of these pictures look at this step."""
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
        picture = torch.arange(len(lengths), device=lengths.device)[:, None].expand_as(columns)
        for step in reversed(range(longest)):
            inside = lengths > step
            at = (step, picture[inside], columns[inside])
            parents = self.parents[at]
            tokens[inside, step] = self.tokens[at]
            spoken[inside, step] = self.spoken[at]
            for out, kept in zip(looks, self.looks, strict=True):
                out[inside, step] = kept[step, picture[inside], parents]
            columns = columns.masked_scatter(inside, parents)
        return tokens, spoken, self.kind(*looks)


class Ended:
    """The best captions that have come to an end, per picture, best first.

    Args:
        pictures: How many pictures.
        room: How many are kept per picture.
        device: Where the search runs.
    """

    def __init__(self, pictures: int, room: int, device: torch.device) -> None:
        self.scores = torch.full((pictures, room), -torch.inf, device=device)
        self.lengths = torch.zeros(pictures, room, dtype=torch.long, device=device)
        self.columns = torch.zeros_like(self.lengths)
        self.whole = torch.zeros(pictures, room, dtype=torch.bool, device=device)

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
