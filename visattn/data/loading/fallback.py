"""What stands in for an image that cannot be read, so that an epoch stays as long as it was."""

from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import torch

from visattn.data.images.reader import ImageError
from visattn.data.loading.sample_seed import mixed, numbered_uniforms

OnError = Literal["raise", "substitute"]
Sample = TypeVar("Sample")
_TRIES = 32
_OTHERS = 2  # sets what is drawn here apart from what else a seed is for


class ReadFallback:
    """Another sample in place of each whose image cannot be read, and the count of these.

    Which one it is depends on the seed and on the number of the sample: not on the epoch, the
    process, or what was read before. All processes that read for this one count together.

    Args:
        count: How many samples there are.
        seed: Another seed, other substitutes.

    Example:
        >>> def read(number):
        ...     if number == 1:
        ...         raise ImageError("b.jpg: truncated")
        ...     return "abc"[number]
        >>> substitutes = ReadFallback(3)
        >>> substitutes.read(0, read), substitutes.read(1, read) in ("a", "c")
        ('a', True)
        >>> substitutes.lost
        [1]
    """

    def __init__(self, count: int, *, seed: int = 0) -> None:
        self.count, self.seed = count, seed
        self._lost = torch.zeros(count, dtype=torch.uint8).share_memory_()

    def read(self, number: int, reading: Callable[[int], Sample]) -> Sample:
        """Return what `reading` makes of a number, or of another if its image is unreadable.

        Raises:
            ImageError: If none of many others can be read either.
        """
        try:
            return reading(number)
        except ImageError as error:
            self._lost[number] = 1
            return self._other(number, reading, error)

    @property
    def lost(self) -> list[int]:
        """The numbers of the samples that were to be read and could not."""
        return self._lost.nonzero().flatten().tolist()

    def others(self, number: int) -> Iterator[int]:
        """Yield the numbers that may stand in for this one, the first to be tried first."""
        drawn = numbered_uniforms(mixed(self.seed, _OTHERS), [number], _TRIES)
        for draw in drawn[0].tolist():
            other = int(draw * (self.count - 1))
            yield other + (other >= number)  # not itself

    def _other(self, number: int, reading: Callable[[int], Sample], first: ImageError) -> Sample:
        for other in self.others(number) if self.count > 1 else ():
            try:
                return reading(other)
            except ImageError:
                self._lost[other] = 1
        raise ImageError(
            f"{first}; nor can one of the {min(_TRIES, self.count - 1)} images be read that "
            "might stand in for it"
        ) from first
