"""Options that are one of a few words."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.numerics import may_overwrite


def check_choice(option: str, given: str, choices: tuple[str, ...]) -> None:
    """Let one of the choices pass.

    Raises:
        ValueError: If it is none of them.

    Example:
        >>> check_choice("combine", "add", ("add", "mul"))
    """
    if given not in choices:
        raise ValueError(f"{option} must be one of {', '.join(choices)}, got {given!r}")


def check_odd(option: str, given: int) -> None:
    """Let a size pass that has a middle.

    Raises:
        ValueError: If it is even or below 1.

    Example:
        >>> check_odd("kernel", 7)
    """
    if given < 1 or given % 2 == 0:
        raise ValueError(f"{option} must be odd, so that the map keeps its size, got {given}")


def scaled(
    x: Float[Tensor, "b c y x"], gate: Float[Tensor, "b c y x"], tap: Tap
) -> Float[Tensor, "b c y x"]:
    """Return the features, each scaled by its own gate, which passes the tap.

    The gate is used up: where no slope is to come and nobody listens, its memory holds the result.
    Of a gate that is as large as the features, this saves the time to fetch as much memory again.

    Args:
        x: Features.
        gate: Made for this use, and not needed after it.
        tap: Where the gate can be seen.

    Example:
        >>> scaled(torch.full((1, 1, 1, 1), 3.0), torch.full((1, 1, 1, 1), 0.5), Tap("gate"))
        tensor([[[[1.5000]]]])
    """
    gate = tap(gate)
    needed = tap.wanted or not may_overwrite(x, gate)
    if needed or torch.compiler.is_compiling() or gate.stride() != x.stride():
        return x * gate
    return gate.mul_(x)


Kind = Literal["channel", "spatial", "both", "branches", "grid", "other"]


@dataclass(frozen=True)
class BlockInfo:
    """What somebody wants to know of a block before using it.

    Args:
        name: In the catalog.
        kind: What it weighs: each `channel`, each place (`spatial`), `both`, the `branches` of
            several convolutions, or, on a `grid`, what each place takes from the others; `other`
            for a registered block that does not say.
        title: Its name in the literature.
        paper: Authors, year, and where to find it.
        equation: What it computes, in a line or a few; x is the input, y the output, s the sigmoid.
        parameters: How many there are at C channels, in closed form.
        deviations: Where it differs from the paper or from code that people know, a line each.
        weights: Whose weights fit as they are or by a converter, a line each.
        aliases: Other names under which it is known. Case, spaces, hyphens and underscores do not
            matter, and the name of its class is known anyway.
    """

    name: str
    kind: Kind
    title: str
    paper: str
    equation: str
    parameters: str
    deviations: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class Block(nn.Module, ABC):
    """Attention that takes a grid of features and gives one of the same shape, whatever its size.

    Args:
        channels: Width of a feature.

    Example:
        >>> import torch
        >>> class Halved(Block):
        ...     def attend(self, x):
        ...         return x / 2
        >>> Halved(5)(torch.ones(1, 5, 2, 3)).sum()
        tensor(15.)
    """

    card: ClassVar[BlockInfo]
    """Paper, equation, and where we deviate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        self.channels = channels

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features under attention.

        Raises:
            ValueError: If they are not of the width that the block is made for.
        """
        self._check(x)
        return self.attend(x)

    @abstractmethod
    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Return the features under attention; their width is right."""

    def _check(self, x: Float[Tensor, "b c y x"]) -> None:
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"{type(self).__name__} takes [batch, {self.channels}, height, width], "
                f"got {list(x.shape)}; say channels={x.shape[1]} when it is made, or permute "
                "channels-last features"
                if x.ndim == 4
                else f"{type(self).__name__} takes four axes, got {list(x.shape)}"
            )

    def extra_repr(self) -> str:
        """Return what is printed of it beside its parts."""
        return f"{self.channels}"


def hidden_width(channels: int, reduction: int, *, least: int = 1) -> int:
    """Return the width of a bottleneck, which never falls below `least`.

    Raises:
        ValueError: If channels or reduction are below 1.

    Example:
        >>> hidden_width(256, 16), hidden_width(8, 16)
        (16, 1)
    """
    if channels < 1 or reduction < 1:
        raise ValueError(
            f"channels and reduction must be at least 1, got {channels} and {reduction}"
        )
    return max(least, channels // reduction)
