"""Data whose training pictures may be replaced where they cannot be read, which is said aloud."""

import warnings
from collections.abc import Callable
from typing import Any

from visattn.data.substitutes import OnError, Substitutes
from visattn.tasks.bases import Data

_NAMED = 3  # files that a message names


class SubstitutingData(Data):
    """Data that know how many training pictures could not be read, and say so.

    The first is told of as soon as its batch has come, then each time their number has doubled,
    then the number in the end. Validation and test stop at a picture that cannot be read: a score
    of other pictures would be another score.
    """

    on_error: OnError = "raise"
    """What happens to a training picture that cannot be read."""
    seed: int
    _substitutes: Substitutes | None = None
    _name: Callable[[int], object] = str
    _told = 0

    def stand_ins(self, count: int, name: Callable[[int], object]) -> Substitutes | None:
        """Return what stands in for training pictures; None where an unreadable one is an error.

        Args:
            count: How many training pictures there are.
            name: Says which file a number means.
        """
        if self.on_error == "raise":
            return None
        self._substitutes, self._name, self._told = Substitutes(count, seed=self.seed), name, 0
        return self._substitutes

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Say what was found unreadable, if that is much more than was said before."""
        self._tell(least=max(1, 2 * self._told))
        return batch

    def teardown(self, stage: str) -> None:
        """Say how many pictures were unreadable in the end."""
        self._tell(least=self._told + 1)

    def _tell(self, least: int) -> None:
        """Warn of unreadable pictures if there are at least so many."""
        lost = self._substitutes.lost if self._substitutes else []
        if not lost or len(lost) < least:
            return
        self._told = len(lost)
        names = ", ".join(str(self._name(number)) for number in lost[:_NAMED])
        more = f" and {len(lost) - _NAMED:,} more" if len(lost) > _NAMED else ""
        warnings.warn(
            f"{len(lost):,} training pictures could not be read so far, and others stand in for "
            f"them: {names}{more}",
            UserWarning,
            stacklevel=2,
        )
