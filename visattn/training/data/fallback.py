"""Base class of data modules that replace unreadable training images and report them."""

import warnings
from collections.abc import Callable
from typing import Any

from visattn.data.loading.fallback import OnError, ReadFallback
from visattn.io.messages import format_names
from visattn.training.data_module import DataModule

_MAX_LISTED = 3  # files that a warning names


class ReadFallbackDataModule(DataModule):
    """Data that can replace training images that cannot be read, with a warning.

    It warns after the batch of the first unreadable image, whenever their number has doubled, and
    at the end. Validation and test never replace an image, since the score would be another one.
    """

    on_error: OnError = "raise"
    """Whether an unreadable training image is an error, or is replaced (`substitute`)."""
    seed: int
    _fallback: ReadFallback | None = None
    _file_name: Callable[[int], object] = str
    _num_reported = 0

    def train_fallback(self, count: int, file_name: Callable[[int], object]) -> ReadFallback | None:
        """Return the replacement of unreadable training images; None if they raise an error.

        Args:
            count: Number of training images.
            file_name: Returns the file of an image, for the warning.
        """
        if self.on_error == "raise":
            return None
        self._fallback, self._file_name = ReadFallback(count, seed=self.seed), file_name
        self._num_reported = 0
        return self._fallback

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Warn if there are twice as many unreadable images as in the last warning."""
        self._warn(minimum=max(1, 2 * self._num_reported))
        return batch

    def teardown(self, stage: str) -> None:
        """Warn of the unreadable images since the last warning."""
        self._warn(minimum=self._num_reported + 1)

    def _warn(self, minimum: int) -> None:
        """Warn of unreadable images if there are at least `minimum`."""
        unreadable = self._fallback.unreadable if self._fallback else []
        if not unreadable or len(unreadable) < minimum:
            return
        self._num_reported = len(unreadable)
        names = format_names([str(self._file_name(index)) for index in unreadable], _MAX_LISTED)
        warnings.warn(
            f"{len(unreadable):,} training images could not be read so far and were replaced by "
            f"others: {names}",
            UserWarning,
            stacklevel=2,
        )
