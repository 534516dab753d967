"""The one place where an attention block's map can be seen."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal, cast

from jaxtyping import Float
from torch import Tensor, nn

MapKind = Literal["gate", "tokens", "words", "glimpse", "gradient", "saliency", "channel"]


@dataclass(frozen=True)
class RecordRequest:
    """What somebody wants to see of attention among tokens.

    Args:
        queries: Whose rows: of `all` tokens, of the `patches`, of the tokens before them that have
            some role (`class`, `distillation`, `register`), or of those with these numbers, the
            tokens before the patches counted first.
        heads: Numbers of the heads; None for all.
        woven: Whether the block is to compute with the weights that it shows, so that gradients
            with respect to them can be taken; all rows and heads are shown then.

    Example:
        >>> RecordRequest("register").rows(("class", "register", "register"), 9)
        slice(1, 3, None)
    """

    queries: str | tuple[int, ...] = "all"
    heads: tuple[int, ...] | None = None
    woven: bool = False

    @property
    def whole(self) -> bool:
        """Whether all rows of all heads are wanted."""
        return self.queries == "all" and self.heads is None

    def rows(self, roles: Sequence[str], count: int) -> slice | list[int]:
        """Return which of the tokens are meant.

        Args:
            roles: Of the tokens before the patches.
            count: Tokens in all.

        Raises:
            ValueError: If there is no such token.
        """
        if isinstance(self.queries, tuple):
            return _numbered(self.queries, count, "tokens")
        if self.queries == "all":
            return slice(None)
        if self.queries == "patches":
            return slice(len(roles), count)
        if self.queries not in roles:
            raise ValueError(
                f"there is no {self.queries} token here, whose row could be a map; the tokens "
                f"before the patches are {', '.join(roles) or 'none'}: ask for queries='patches' "
                "or 'all', or for one of these"
            )
        first = list(roles).index(self.queries)
        return slice(first, first + list(roles).count(self.queries))

    def chosen_heads(self, count: int) -> slice | list[int]:
        """Return which of the heads are meant.

        Raises:
            ValueError: If there is no such head.
        """
        return slice(None) if self.heads is None else _numbered(self.heads, count, "heads")


def _numbered(numbers: tuple[int, ...], count: int, of: str) -> list[int]:
    if wrong := [number for number in numbers if not -count <= number < count]:
        raise ValueError(f"there are {count} {of}, counted from 0, got number {wrong[0]}")
    return [number % count for number in numbers]


class Tap(nn.Module):
    """Pass attention weights through unchanged, so that a recorder can listen to them.

    A block that can also run without computing its weights asks `wanted` first. One that can
    compute single rows or heads follows `wish`, and says so in `shown`. If the tap is `woven`, the
    block goes on with the weights that the tap gives back, all of them.

    Args:
        kind: What the weights are: a `gate` per pixel, a row of `tokens`, one map per word, ...
        grid: Height and width of the grid that the last axis runs over, row by row. A block whose
            grid changes sets it before each use. None when the weights already end in `y x`, or
            in `c`; `tokens` and `words` always run over one axis, and are no maps without a grid.
        lone: Whether there is one row of tokens only, as in pooling, from which no wish picks.

    Example:
        >>> Tap("gate")(torch.tensor([0.25, 0.75]))
        tensor([0.2500, 0.7500])
    """

    def __init__(
        self, kind: MapKind, *, grid: tuple[int, int] | None = None, lone: bool = False
    ) -> None:
        super().__init__()
        self.kind: MapKind = kind
        self.grid = grid
        self.lone = lone
        self.roles: tuple[str, ...] = ()
        """Of the tokens that stand before the grid in the last axis; the block sets it."""
        self.notes: dict[str, Any] = {}
        """How the weights were made, in plain values; the block sets it."""
        self.shown: RecordRequest | None = None
        """The wish that the block followed; None for one that knows no wishes and shows all."""
        self.wishes: list[RecordRequest] = []
        """Of those who listen."""

    @property
    def wish(self) -> RecordRequest:
        """What to show: what all listeners want, or everything if they want different things."""
        wanted = set(self.wishes)
        return wanted.pop() if len(wanted) == 1 else RecordRequest(woven=self.woven)

    @property
    def woven(self) -> bool:
        """Whether the block is to compute with what the tap gives back."""
        return any(wish.woven for wish in self.wishes)

    @property
    def wanted(self) -> bool:
        """Whether anybody is listening."""
        return len(cast("Sized", self._forward_hooks)) > 0

    def forward(self, weights: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the weights as they are."""
        return weights
