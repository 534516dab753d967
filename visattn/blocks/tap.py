"""Tap: an identity module through which a block passes its attention weights to recorders."""

from collections.abc import Callable, Generator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class RecordRequest:
    """Rows and heads of an attention matrix that a recorder asks a block for.

    Args:
        queries: Query rows: `all` tokens, the `patches`, the prefix tokens of one role (`class`,
            `distillation`, `register`), or token indices, with prefix tokens first.
        heads: Head indices; None for all.
        differentiable: Whether the block computes its output from the recorded weights, so that
            gradients with respect to them exist; all rows and heads are recorded then.

    Example:
        >>> RecordRequest("register").query_indices(("class", "register", "register"), 9)
        slice(1, 3, None)
    """

    queries: str | tuple[int, ...] = "all"
    heads: tuple[int, ...] | None = None
    differentiable: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all rows of all heads are requested."""
        return self.queries == "all" and self.heads is None

    def query_indices(self, roles: Sequence[str], count: int) -> slice | list[int]:
        """Return the indices of the requested query tokens.

        Raises:
            ValueError: If there is no such token.
        """
        if isinstance(self.queries, tuple):
            return _check_indices(self.queries, count, "tokens")
        if self.queries == "all":
            return slice(None)
        if self.queries == "patches":
            return slice(len(roles), count)
        if self.queries not in roles:
            raise ValueError(
                f"this layer has no {self.queries} token; its prefix tokens are "
                f"{', '.join(roles) or 'none'}; pass one of these, or queries='patches' or 'all'"
            )
        first = list(roles).index(self.queries)
        return slice(first, first + list(roles).count(self.queries))

    def head_indices(self, count: int) -> slice | list[int]:
        """Return the indices of the requested heads.

        Raises:
            ValueError: If there is no such head.
        """
        return slice(None) if self.heads is None else _check_indices(self.heads, count, "heads")


def _check_indices(indices: tuple[int, ...], count: int, noun: str) -> list[int]:
    if wrong := [index for index in indices if not -count <= index < count]:
        raise ValueError(f"{noun} must be indices from {-count} to {count - 1}, got {wrong[0]}")
    return [index % count for index in indices]


class Tap(nn.Module):
    """Identity module that passes attention weights, so that forward hooks can record them.

    A block that can run without computing its weights first checks `wanted`. A block that can
    compute single rows or heads follows `request` and stores it in `fulfilled`. If the tap is
    `differentiable`, the block computes its output from the weights that the tap returns.

    Args:
        kind: Kind of map, of `visattn.results.kinds.MapKind`: a `gate` per pixel, a row of
            `tokens`, one map per word, ...
        grid: Height and width of the grid that the last axis flattens in row-major order; a block
            whose grid varies sets it before each use. None if the weights end in `y x` or `c`.
            `tokens`, `words` and `queries` have one flat axis and need a grid to become maps.
        single_query: Whether there is only one query row, as in pooling, so that `queries` of a
            request does not apply.

    Example:
        >>> Tap("gate")(torch.tensor([0.25, 0.75]))
        tensor([0.2500, 0.7500])
    """

    def __init__(
        self, kind: str, *, grid: tuple[int, int] | None = None, single_query: bool = False
    ) -> None:
        super().__init__()
        self.kind = kind
        self.grid = grid
        self.single_query = single_query
        self.roles: tuple[str, ...] = ()
        """Roles of the prefix tokens before the grid in the last axis; set by the block."""
        self.unsupported = ""
        """Why the weights cannot become maps, if they do not pass through the tap; else ""."""
        self.fulfilled: RecordRequest | None = None
        """The request that the block followed; None if the block always records everything."""
        self.requests: list[tuple[int, RecordRequest]] = []
        """Requests of all listening recorders, each with the thread that it listens to."""

    @property
    def request(self) -> RecordRequest:
        """What to record: the request of all listeners, or everything if they differ."""
        requests = set(self._heard())
        return (
            requests.pop()
            if len(requests) == 1
            else RecordRequest(differentiable=self.differentiable)
        )

    @property
    def differentiable(self) -> bool:
        """Whether the block must compute its output from the weights the tap returns."""
        return any(request.differentiable for request in self._heard())

    @property
    def wanted(self) -> bool:
        """Whether a recorder or another forward hook listens."""
        others = len(self.requests) - len(self._heard()) if self.requests else 0
        return len(cast("Sized", self._forward_hooks)) > others and not self.unsupported

    def _heard(self) -> list[RecordRequest]:
        return [request for thread, request in self.requests if thread == get_ident()]

    @contextmanager
    def listening(
        self, request: RecordRequest, hook: Callable[["Tap", Any, Tensor], None]
    ) -> Generator[None]:
        """Request rows in this thread, and pass them to a forward hook."""
        entry = (get_ident(), request)
        handle = self.register_forward_hook(hook)
        self.requests.append(entry)
        try:
            yield
        finally:
            handle.remove()
            self.requests.remove(entry)

    def forward(self, weights: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the weights unchanged."""
        return weights
