"""Block under test, result of a check, and helpers of the checks."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.registry import create_block


@dataclass(frozen=True)
class CheckResult:
    """Result of actual check.

    Args:
        passed: Whether the block passed.
        details: Measured values, or the failing case.
        refuses: Whether it passed by raising an informative error for an unsupported input.
    """

    passed: bool
    details: str
    refuses: bool = field(default=False, repr=False)


def passed(details: str) -> CheckResult:
    """Return the result of a passed check.

    Example:
        >>> passed("1x1 and 7x7")
        CheckResult(passed=True, details='1x1 and 7x7')
    """
    return CheckResult(passed=True, details=details)


def failed(details: str) -> CheckResult:
    """Return the result of a failed check.

    Example:
        >>> failed("7x7: returns [1, 8, 3, 3]").passed
        False
    """
    return CheckResult(passed=False, details=details)


@dataclass(frozen=True)
class BlockUnderTest:
    """Block that can be created for any number of channels.

    Args:
        name: Name in the results.
        factory: Function from a number of channels to a new block.
        channels: Number of channels of all checks but that of channel counts.
        size: Height and width of the features, unless a check uses others.
        widths: Channel counts that the block must support, with a gate that depends on its input.

    Example:
        >>> BlockUnderTest("batch norm", nn.BatchNorm2d).block(3)
        BatchNorm2d(3, ...)
    """

    name: str
    factory: Callable[[int], nn.Module]
    channels: int = 32
    size: tuple[int, int] = (11, 13)
    widths: tuple[int, ...] = (1, 4, 8, 16, 24)

    def block(self, channels: int | None = None, *, seed: int = 0) -> nn.Module:
        """Create a block, the same for the same seed; the global RNG state is restored.

        Raises:
            ValueError: If the block cannot be created.
        """
        num_channels = self.channels if channels is None else channels
        with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
            torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
            with error_context(f"C={num_channels}"):
                return self.factory(num_channels)

    def features(
        self,
        batch: int = 2,
        *,
        channels: int | None = None,
        size: tuple[int, int] | None = None,
        seed: int = 0,
    ) -> Float[Tensor, "b c y x"]:
        """Return random features with unit variance and different channel means."""
        height, width = size or self.size
        num_channels = self.channels if channels is None else channels
        random = torch.Generator().manual_seed(seed)
        levels = torch.randn(batch, num_channels, 1, 1, generator=random)
        return levels + torch.randn(batch, num_channels, height, width, generator=random)


def registered_block(name: str) -> BlockUnderTest:
    """Return a registered block for testing.

    Raises:
        ValueError: When the block is created, if there is no such name.

    Example:
        >>> registered_block("se").block(4)
        SqueezeExcite(
          4
          ...
    """
    return BlockUnderTest(name, lambda channels: create_block(name, channels))


@contextmanager
def error_context(case: str) -> Generator[None]:
    """Turn any exception into a ValueError that names the case.

    Raises:
        ValueError: If anything was raised.

    Example:
        >>> with error_context("C=1"):
        ...     _ = nn.GroupNorm(8, 1)
        Traceback (most recent call last):
        ValueError: C=1: ValueError: num_channels (1) must be divisible by num_groups (8)
    """
    try:
        yield
    except Exception as error:
        first = (str(error).strip().splitlines() or ["no message"])[0]
        raise ValueError(f"{case}: {type(error).__name__}: {first}") from error


def checked_forward(
    block: nn.Module, x: Float[Tensor, "b c y x"], case: str
) -> Float[Tensor, "b c y x"]:
    """Run a block and check its output.

    Raises:
        ValueError: If it fails, or if the output is not finite or has another shape or dtype than
            the input; the message names the case.

    Example:
        >>> checked_forward(nn.AvgPool2d(2), torch.zeros(1, 3, 4, 4), "4x4")
        Traceback (most recent call last):
        ValueError: 4x4: returns [1, 3, 2, 2] for [1, 3, 4, 4]
    """
    with error_context(case):
        output: object = block(x)
    if not isinstance(output, Tensor):
        raise TypeError(f"{case}: returns a {type(output).__name__} instead of a tensor")
    if output.shape != x.shape:
        raise ValueError(f"{case}: returns {list(output.shape)} for {list(x.shape)}")
    if output.dtype != x.dtype:
        raise ValueError(f"{case}: returns {output.dtype} for {x.dtype}")
    if not output.is_meta and not output.isfinite().all():
        raise ValueError(f"{case}: {(~output.isfinite()).float().mean():.0%} of it is not finite")
    return output


def backward(loss: Float[Tensor, ""]) -> None:
    """Backpropagate a loss.

    Example:
        >>> x = torch.ones((), requires_grad=True)
        >>> backward(3 * x)
        >>> x.grad
        tensor(3.)
    """
    loss.backward()  # pyright: ignore[reportUnknownMemberType]


def relative_error(actual: Float[Tensor, "*axes"], expected: Float[Tensor, "*axes"]) -> float:
    """Return the largest absolute difference, relative to the largest value of `expected`.

    Example:
        >>> relative_error(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 4.0]))
        0.25
    """
    largest = expected.abs().amax().clamp_min(1e-30)
    return float(((actual - expected).abs().amax() / largest).detach())
