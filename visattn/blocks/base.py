"""Base class of the attention blocks, and what they state of themselves."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

_LEVELS = 2**16


class FastDropout(nn.Dropout):
    """Dropout, three times as fast as `torch.nn.Dropout` on a CPU and equal to it elsewhere.

    On a CPU an element is dropped if a random 16-bit integer is below `p` · 2¹⁶. The probability is
    thus rounded to a multiple of 2⁻¹⁶, and the scale of the kept elements follows from it.

    Example:
        >>> FastDropout(0.5).eval()(torch.ones(3))
        tensor([1., 1., 1.])

    Source:
        Srivastava et al. 2014, JMLR 15.
    """

    def forward(self, input: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:  # noqa: A002
        """Return the input, with elements set to 0 and the others scaled up in training."""
        threshold = round(self.p * _LEVELS)
        if input.device.type != "cpu" or not self.training or threshold in (0, _LEVELS):
            return super().forward(input)
        # A random number of 64 bits makes four of 16. They are signed: -2^15 stands for 0.
        words = torch.empty((input.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = words.view(torch.int16)[: input.numel()].view(input.shape)
        keep = bits >= threshold - _LEVELS // 2
        return input * keep.to(input.dtype).mul_(_LEVELS / (_LEVELS - threshold))


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless the value is one of the choices.

    Raises:
        ValueError: If the value is not one of the choices.

    Example:
        >>> check_choice("combine", "add", ("add", "mul"))
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


BlockKind = Literal["channel", "spatial", "combined", "branch", "self_attention", "other"]


@dataclass(frozen=True)
class BlockInfo:
    """What a block states of itself beside its docstring.

    Args:
        name: Name in the registry.
        kind: What the attention weights: each `channel`, each position (`spatial`), both
            (`combined`), the `branch` outputs of several convolutions, or pairs of positions
            (`self_attention`); `other` for a registered block without metadata.
        paper: Authors, year and reference.
    """

    name: str
    kind: BlockKind
    paper: str


class Block(nn.Module):
    """Base class of attention blocks: features in, features of the same shape out, for any size.

    The first argument of a block is its number of channels, its `forward` is the equation, and the
    weights that a recorder may see pass through a `Tap`.

    Example:
        >>> class Halved(Block):
        ...     info = BlockInfo("halved", "other", "Nobody 2024")
        ...     def __init__(self, channels):
        ...         super().__init__()
        ...     def forward(self, x):
        ...         return x / 2
        >>> Halved(5)(torch.ones(1, 5, 2, 3)).sum()
        tensor(15.)
    """

    info: ClassVar[BlockInfo]
