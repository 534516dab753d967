"""Base of blocks: what they say of themselves, and dropout of features."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.functional.numerics import can_write_inplace

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


def check_odd(name: str, value: int) -> None:
    """Raise unless a kernel size is odd and positive.

    Raises:
        ValueError: If the value is even or below 1.

    Example:
        >>> check_odd("kernel_size", 7)
    """
    if value < 1 or value % 2 == 0:
        raise ValueError(f"{name} must be odd, so that the map keeps its size, got {value}")


def apply_gate(
    x: Float[Tensor, "b c y x"], gate: Float[Tensor, "b c y x"], tap: Tap
) -> Float[Tensor, "b c y x"]:
    """Return the features multiplied by a gate of the same shape, which passes through the tap.

    The product is written into the memory of the gate if no gradient is needed and no recorder
    listens: for a gate as large as the features this avoids a second allocation. The gate must not
    be used afterwards.

    Example:
        >>> apply_gate(torch.full((1, 1, 1, 1), 3.0), torch.full((1, 1, 1, 1), 0.5), Tap("gate"))
        tensor([[[[1.5000]]]])
    """
    gate = tap(gate)
    keep_gate = tap.wanted or not can_write_inplace(x, gate)
    # The result has the memory of the gate, so that other strides would change the memory format.
    if keep_gate or torch.compiler.is_compiling() or gate.stride() != x.stride():
        return x * gate
    return gate.mul_(x)


BlockKind = Literal["channel", "spatial", "combined", "branch", "self_attention", "other"]


@dataclass(frozen=True)
class BlockInfo:
    """Metadata of an attention block.

    Args:
        name: Name in the registry.
        kind: What the attention weights: each `channel`, each position (`spatial`), both
            (`combined`), the `branch` outputs of several convolutions, or pairs of positions
            (`self_attention`); `other` for a registered block without metadata.
        title: Name in the literature.
        paper: Authors, year and reference.
        equation: Computation in a few lines; x is the input, y the output, s the sigmoid.
        parameters: Number of parameters in closed form, for C channels.
        deviations: Differences from the paper or from common implementations, one per entry.
    """

    name: str
    kind: BlockKind
    title: str
    paper: str
    equation: str
    parameters: str
    deviations: tuple[str, ...] = ()


class Block(nn.Module, ABC):
    """Base class of attention blocks: maps features to features of the same shape, for any size.

    Args:
        channels: Number of input channels.

    Example:
        >>> import torch
        >>> class Halved(Block):
        ...     def attend(self, x):
        ...         return x / 2
        >>> Halved(5)(torch.ones(1, 5, 2, 3)).sum()
        tensor(15.)
    """

    info: ClassVar[BlockInfo]
    """Metadata: paper, equation, number of parameters, deviations."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        self.channels = channels

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Apply attention to the features.

        Raises:
            ValueError: If the features are not [batch, channels, height, width] with the number of
                channels that the block was created for.
        """
        self._check_features(x)
        return self.attend(x)

    @abstractmethod
    def attend(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        """Apply attention to features whose shape has been checked."""

    def _check_features(self, x: Float[Tensor, "b c y x"]) -> None:
        if x.ndim != 4 or x.shape[1] != self.channels:
            raise ValueError(
                f"{type(self).__name__} takes [batch, {self.channels}, height, width], "
                f"got {list(x.shape)}; create the block with channels={x.shape[1]}, or permute "
                "channels-last features"
                if x.ndim == 4
                else f"{type(self).__name__} takes 4-D features, got {list(x.shape)}"
            )

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"{self.channels}"


def reduced_channels(channels: int, reduction: int, *, minimum: int = 1) -> int:
    """Return the number of hidden channels of a bottleneck.

    Raises:
        ValueError: If channels or reduction are below 1.

    Example:
        >>> reduced_channels(256, 16), reduced_channels(8, 16)
        (16, 1)
    """
    if channels < 1 or reduction < 1:
        raise ValueError(
            f"channels and reduction must be at least 1, got {channels} and {reduction}"
        )
    return max(minimum, channels // reduction)
