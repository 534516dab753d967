"""The block under examination, and what an examination of it found."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.registry import create


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Args:
        passed: Whether the block stood it.
        said: What was measured, or in which case the block failed and how.
        refuses: Whether it passed by saying in words what it will not do.
    """

    passed: bool
    said: str
    refuses: bool = field(default=False, repr=False)


def stood(said: str) -> CheckResult:
    """Return the finding that a block passed; `said` tells what was measured.

    Example:
        >>> stood("1x1 and 7x7")
        CheckResult(passed=True, said='1x1 and 7x7')
    """
    return CheckResult(passed=True, said=said)


def failed(said: str) -> CheckResult:
    """Return the finding that a block did not pass; `said` tells where and how.

    Example:
        >>> failed("7x7: gives [1, 8, 3, 3]").passed
        False
    """
    return CheckResult(passed=False, said=said)


@dataclass(frozen=True)
class BlockUnderTest:
    """A block that can be made at any width.

    Args:
        name: As it stands in the table.
        make: Returns a new block for so many channels.
        channels: Width at which all but the width itself is examined.
        size: Height and width of the features, where no check asks for another.
        widths: At which the block must run, and its gate must know its input.

    Example:
        >>> BlockUnderTest("batch norm", nn.BatchNorm2d).block(3)
        BatchNorm2d(3, ...)
    """

    name: str
    make: Callable[[int], nn.Module]
    channels: int = 32
    size: tuple[int, int] = (11, 13)
    widths: tuple[int, ...] = (1, 4, 8, 16, 24)

    def block(self, channels: int | None = None, *, seed: int = 0) -> nn.Module:
        """Return a new block, the same for the same seed; the global random state stays.

        Raises:
            ValueError: If it cannot be made.
        """
        many = self.channels if channels is None else channels
        with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
            torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
            with facing(f"C={many}"):
                return self.make(many)

    def features(
        self,
        batch: int = 2,
        *,
        channels: int | None = None,
        size: tuple[int, int] | None = None,
        seed: int = 0,
    ) -> Float[Tensor, "b c y x"]:
        """Return features about as loud as behind a batch norm; their channels' means differ."""
        height, width = size or self.size
        many = self.channels if channels is None else channels
        random = torch.Generator().manual_seed(seed)
        levels = torch.randn(batch, many, 1, 1, generator=random)
        return levels + torch.randn(batch, many, height, width, generator=random)


def catalogd(name: str) -> BlockUnderTest:
    """Return a block of the catalog as a subject.

    Raises:
        ValueError: When the block is made, if there is none of this name.

    Example:
        >>> catalogd("se").block(4)
        SqueezeExcite(
          4
          ...
    """
    return BlockUnderTest(name, lambda channels: create(name, channels))


@contextmanager
def facing(case: str) -> Generator[None]:
    """Name the case in what goes wrong inside, whatever another library's block may raise.

    Raises:
        ValueError: If anything was raised.

    Example:
        >>> with facing("C=1"):
        ...     _ = nn.GroupNorm(8, 1)
        Traceback (most recent call last):
        ValueError: C=1: ValueError: num_channels (1) must be divisible by num_groups (8)
    """
    try:
        yield
    except Exception as error:
        first = (str(error).strip().splitlines() or ["says nothing"])[0]
        raise ValueError(f"{case}: {type(error).__name__}: {first}") from error


def answered(block: nn.Module, x: Float[Tensor, "b c y x"], case: str) -> Float[Tensor, "b c y x"]:
    """Return what a block gives for `x`.

    Raises:
        ValueError: If it fails, or gives something else than finite features of the same shape
            and kind of number; `case` says for what.

    Example:
        >>> answered(nn.AvgPool2d(2), torch.zeros(1, 3, 4, 4), "4x4")
        Traceback (most recent call last):
        ValueError: 4x4: gives [1, 3, 2, 2] for [1, 3, 4, 4]
    """
    with facing(case):
        given: object = block(x)
    if not isinstance(given, Tensor):
        raise TypeError(f"{case}: gives a {type(given).__name__} and no tensor")
    if given.shape != x.shape:
        raise ValueError(f"{case}: gives {list(given.shape)} for {list(x.shape)}")
    if given.dtype != x.dtype:
        raise ValueError(f"{case}: gives {given.dtype} for {x.dtype}")
    if not given.is_meta and not given.isfinite().all():
        raise ValueError(f"{case}: {(~given.isfinite()).float().mean():.0%} of it is not finite")
    return given


def learn(loss: Float[Tensor, ""]) -> None:
    """Let the gradient of `loss` reach whatever it depends on.

    Example:
        >>> x = torch.ones((), requires_grad=True)
        >>> learn(3 * x)
        >>> x.grad
        tensor(3.)
    """
    loss.backward()  # pyright: ignore[reportUnknownMemberType]


def distance(one: Float[Tensor, "*axes"], other: Float[Tensor, "*axes"]) -> float:
    """Return the largest difference, as a part of the largest value of `other`.

    Example:
        >>> distance(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 4.0]))
        0.25
    """
    largest = other.abs().amax().clamp_min(1e-30)
    return float(((one - other).abs().amax() / largest).detach())
