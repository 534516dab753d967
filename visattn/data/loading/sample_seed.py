"""Counter-based random numbers that depend on the seed and the index of a sample alone."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt64
from torch import Tensor

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, made odd
_MASK_64 = 2**64 - 1


def mix_seed(*numbers: int) -> int:
    """Return a seed, 0 to 2^63 - 1, derived from several integers.

    It is the same on every machine and in every process, unlike Python's `hash`.

    Args:
        numbers: Their order matters.

    Example:
        >>> mix_seed(3, 5) == mix_seed(3, 5), mix_seed(3, 5) == mix_seed(5, 3)
        (True, False)

    Source:
        The mixing constants of SplitMix64: Steele, Lea, Flood 2014, section 4.
    """
    state = 0
    for number in numbers:
        state = (state + number + int(_GOLDEN_GAMMA)) & _MASK_64
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK_64
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK_64
        state ^= state >> 31
    return state >> 1


def per_sample_uniforms(
    seed: int, indices: Sequence[int], count: int
) -> Float[Tensor, "n {count}"]:
    """Return `count` float64 random numbers for each sample, uniform in [0, 1).

    They depend on the seed and the index of the sample alone: not on its batch, on the worker
    process, or on earlier draws. There is no generator state to save.

    Args:
        seed: At least 0.
        indices: Indices of the samples, each at least 0 and below 2^63.
        count: Random numbers per sample.

    Raises:
        ValueError: If the seed or an index is negative.

    Example:
        >>> uniforms = per_sample_uniforms(0, [7, 3], 2)
        >>> bool((uniforms[1] == per_sample_uniforms(0, [3, 5, 11], 2)[0]).all())
        True

    Source:
        Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", section 4 and
        the mixing constants of SplitMix64. Each sample has its own stream, whose start is mixed
        from the seed and the index.
    """
    if seed < 0 or min(indices, default=0) < 0:
        raise ValueError(
            f"seed and indices must be at least 0, got seed {seed}, smallest index "
            f"{min(indices, default=0)}"
        )
    start = _mix_bits(_mix_bits(np.array([seed], np.uint64)) + np.array(indices, np.uint64))
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN_GAMMA
    bits = _mix_bits(start[:, None] + steps)
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _mix_bits(values: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Apply the finalizer of SplitMix64: each output bit depends on every input bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
