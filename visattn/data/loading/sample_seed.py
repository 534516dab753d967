"""Random numbers that belong to the number of a sample, whoever asks and in whatever order."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt64
from torch import Tensor

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, made odd
_ALL = 2**64 - 1


def mixed(*numbers: int) -> int:
    """Return one number, at least 0 and below 2^63, for several: other numbers, another one.

    It is the same on every machine and in every process, unlike Python's `hash`.

    Args:
        numbers: Their order matters.

    Example:
        >>> mixed(3, 5) == mixed(3, 5), mixed(3, 5) == mixed(5, 3)
        (True, False)

    Source:
        The mixing constants of SplitMix64: Steele, Lea, Flood 2014, section 4.
    """
    found = 0
    for number in numbers:
        found = (found + number + int(_STEP)) & _ALL
        found = ((found ^ found >> 30) * 0xBF58476D1CE4E5B9) & _ALL
        found = ((found ^ found >> 27) * 0x94D049BB133111EB) & _ALL
        found ^= found >> 31
    return found >> 1


def numbered_uniforms(seed: int, numbers: Sequence[int], count: int) -> Float[Tensor, "n {count}"]:
    """Return `count` random numbers for each sample, even in [0, 1), in float64.

    They depend on the seed and the sample's own number alone: not on the batch it comes in, the
    process that reads it, or what was drawn before. No generator has a state to be kept.

    Args:
        seed: Another seed, other random numbers; at least 0.
        numbers: Of the samples, each at least 0 and below 2^63.
        count: How many random numbers a sample gets.

    Raises:
        ValueError: If the seed or a number is below 0.

    Example:
        >>> drawn = numbered_uniforms(0, [7, 3], 2)
        >>> bool((drawn[1] == numbered_uniforms(0, [3, 5, 11], 2)[0]).all())
        True

    Source:
        Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", section 4 and
        the mixing constants of SplitMix64. Each sample has a stream of its own, whose start is
        itself mixed from the seed and the number.
    """
    if seed < 0 or min(numbers, default=0) < 0:
        raise ValueError(
            f"seed and numbers must be at least 0, got seed {seed}, least number "
            f"{min(numbers, default=0)}"
        )
    start = _mixed(_mixed(np.array([seed], np.uint64)) + np.array(numbers, np.uint64))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _STEP
    mixed = _mixed(start[:, None] + steps)
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mixed(values: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Return values in which each bit of those given has a say in every bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
