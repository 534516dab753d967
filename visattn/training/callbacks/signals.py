"""What happens when a run is told to end: by its scheduler, or by Ctrl-C."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer

_SAID = b"\nvisattn: stopping after this step; the same signal once more stops at once\n"


class GracefulExit(SystemExit):
    """A run did what a signal asked for; its exit code is 128 and the number of the signal.

    Args:
        number: Of the signal.

    Example:
        >>> GracefulExit(signal.SIGTERM).code
        143
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        return signal.Signals(self.number).name


class LeaveAtSignal(Callback):
    """Let SIGTERM end the scoring of a model; Lightning would score on, and say all went well."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signal over, if this is no part of training."""
        if trainer.state.fn == "validate":
            signal.signal(signal.SIGTERM, _leave)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signal over."""
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    raise GracefulExit(number)


class SignalWatch:
    """Notes SIGTERM and Ctrl-C for a step to be finished first; the second one ends all at once.

    Example:
        >>> watch = SignalWatch()
        >>> watch.listen()
        >>> signal.raise_signal(signal.SIGTERM)
        >>> watch.rest()
        >>> watch.asked == signal.SIGTERM
        True
    """

    def __init__(self) -> None:
        self.asked = 0
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """Take over both signals, unless they are to be ignored; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)

    def rest(self) -> None:
        """Give both signals back."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.asked = number
        os.write(2, _SAID)
