"""Fallback samples for unreadable training images."""

from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import torch

from visattn.data.loading.sample_seed import mix_seed, per_sample_uniforms
from visattn.images.reader import ImageError

OnError = Literal["raise", "substitute"]
Sample = TypeVar("Sample")
_MAX_ATTEMPTS = 32
_SEED_STREAM = 2  # separates these random numbers from others with the same seed


class ReadFallback:
    """Replaces each sample whose image cannot be read, and records the unreadable ones.

    The replacement depends on the seed and on the index of the sample: not on the epoch, the
    worker process, or what was read before. All worker processes share one record.

    Args:
        num_samples: Size of the dataset.
        seed: Seed of the choice of replacements.

    Example:
        >>> def load(index):
        ...     if index == 1:
        ...         raise ImageError("b.jpg: truncated")
        ...     return "abc"[index]
        >>> fallback = ReadFallback(3)
        >>> fallback.read(0, load), fallback.read(1, load) in ("a", "c")
        ('a', True)
        >>> fallback.unreadable
        [1]
    """

    def __init__(self, num_samples: int, *, seed: int = 0) -> None:
        self.num_samples, self.seed = num_samples, seed
        self._unreadable = torch.zeros(num_samples, dtype=torch.uint8).share_memory_()

    def read(self, index: int, load: Callable[[int], Sample]) -> Sample:
        """Return the sample that `load` returns, or a replacement if its image is unreadable.

        Raises:
            ImageError: If no replacement can be read either.
        """
        try:
            return load(index)
        except ImageError as error:
            self._unreadable[index] = 1
            return self._load_replacement(index, load, error)

    @property
    def unreadable(self) -> list[int]:
        """Indices of the samples that could not be read so far."""
        return self._unreadable.nonzero().flatten().tolist()

    def candidates(self, index: int) -> Iterator[int]:
        """Yield the indices of the replacements of a sample, in the order of preference."""
        uniforms = per_sample_uniforms(mix_seed(self.seed, _SEED_STREAM), [index], _MAX_ATTEMPTS)
        for uniform in uniforms[0].tolist():
            other = int(uniform * (self.num_samples - 1))
            yield other + (other >= index)  # never the sample itself

    def _load_replacement(
        self, index: int, load: Callable[[int], Sample], first_error: ImageError
    ) -> Sample:
        for other in self.candidates(index) if self.num_samples > 1 else ():
            try:
                return load(other)
            except ImageError:
                self._unreadable[other] = 1
        raise ImageError(
            f"{first_error}; none of the {min(_MAX_ATTEMPTS, self.num_samples - 1)} images that "
            "could replace it can be read either"
        ) from first_error
