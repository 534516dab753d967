"""Data whose training images may be replaced where they cannot be read, which is said aloud."""

import warnings
from collections.abc import Callable
from typing import Any

from visattn.data.loading.fallback import OnError, ReadFallback
from visattn.training.base import DataModule

_NAMED = 3  # files that a message names


class ReadFallbackDataModule(DataModule):
    """Data that know how many training images could not be read, and say so.

    The first is told of as soon as its batch has come, then each time their number has doubled,
    then the number in the end. Validation and test stop at an image that cannot be read: a score
    of other images would be another score.
    """

    on_error: OnError = "raise"
    """What happens to a training image that cannot be read."""
    seed: int
    _substitutes: ReadFallback | None = None
    _name: Callable[[int], object] = str
    _told = 0

    def stand_ins(self, count: int, name: Callable[[int], object]) -> ReadFallback | None:
        """Return what stands in for training images; None where an unreadable one is an error.

        Args:
            count: How many training images there are.
            name: Says which file a number means.
        """
        if self.on_error == "raise":
            return None
        self._substitutes, self._name, self._told = ReadFallback(count, seed=self.seed), name, 0
        return self._substitutes

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Say what was found unreadable, if that is much more than was said before."""
        self._tell(least=max(1, 2 * self._told))
        return batch

    def teardown(self, stage: str) -> None:
        """Say how many images were unreadable in the end."""
        self._tell(least=self._told + 1)

    def _tell(self, least: int) -> None:
        """Warn of unreadable images if there are at least so many."""
        lost = self._substitutes.lost if self._substitutes else []
        if not lost or len(lost) < least:
            return
        self._told = len(lost)
        names = ", ".join(str(self._name(number)) for number in lost[:_NAMED])
        more = f" and {len(lost) - _NAMED:,} more" if len(lost) > _NAMED else ""
        warnings.warn(
            f"{len(lost):,} training images could not be read so far, and others stand in for "
            f"them: {names}{more}",
            UserWarning,
            stacklevel=2,
        )
