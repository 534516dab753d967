"""Graceful exit of training on SIGTERM and Ctrl-C."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer

_MESSAGE = b"\nvisattn: stopping after this step; send the signal again to stop at once\n"


class GracefulExit(SystemExit):
    """Exit after a signal, with the code 128 plus the number of the signal.

    Args:
        number: Number of the signal.

    Example:
        >>> GracefulExit(signal.SIGTERM).code
        143
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        return signal.Signals(self.number).name


class ExitOnSignal(Callback):
    """Exit `validate` and `test` at SIGTERM; Lightning would continue and exit with code 0."""

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the handler, unless validation is part of training."""
        if trainer.state.fn == "validate":
            signal.signal(signal.SIGTERM, _exit)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the handler."""
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _: FrameType | None) -> None:
    raise GracefulExit(number)


class SignalHandler:
    """Record SIGTERM and Ctrl-C, so that a step is finished first; a second signal ends at once.

    Example:
        >>> handler = SignalHandler()
        >>> handler.install()
        >>> signal.raise_signal(signal.SIGTERM)
        >>> handler.restore()
        >>> handler.received == signal.SIGTERM
        True
    """

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Handle both signals, unless they are ignored; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._record)

    def restore(self) -> None:
        """Restore the previous handlers."""
        while self._previous:
            signal.signal(*self._previous.popitem())

    def _record(self, number: int, _: FrameType | None) -> None:
        if self.received:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received = number
        os.write(2, _MESSAGE)
