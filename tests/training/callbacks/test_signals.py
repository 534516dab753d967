"""Signal handling: the first signal waits for the end of the step, the second exits at once."""

import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from visattn.training.callbacks.guards import ExitOnSignal, GracefulExit, SignalHandler

BOTH = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    kept = {number: signal.getsignal(number) for number in BOTH}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run unattended
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def ended(work: Callable[[], object]) -> int:
    """Return how a process that does some work ends."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("number", BOTH)
def test_signals_are_recorded_until_the_handler_is_restored(number: int) -> None:
    watch, before = SignalHandler(), signal.getsignal(number)
    watch.install()
    signal.raise_signal(number)
    assert watch.received == number
    watch.restore()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("second", BOTH)
def test_the_second_signal_ends_the_process_at_once(second: int) -> None:
    def work() -> None:
        SignalHandler().install()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(second)

    assert ended(work) == -second


def test_ignored_signals_stay_ignored(capfd: pytest.CaptureFixture[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as `nohup` and background jobs have it
    watch = SignalHandler()
    watch.install()
    signal.raise_signal(signal.SIGINT)
    assert not watch.received
    signal.raise_signal(signal.SIGTERM)
    assert watch.received == signal.SIGTERM
    assert "send the signal again to stop at once" in capfd.readouterr().err


def test_exit_codes_are_those_of_shells() -> None:
    assert [GracefulExit(number).code for number in BOTH] == [143, 130]
    assert str(GracefulExit(signal.SIGINT)) == "SIGINT"


@pytest.mark.parametrize("hook", ["on_validation_start", "on_test_start"])
def test_scoring_ends_at_once(hook: str) -> None:
    trainer: Any = SimpleNamespace(state=SimpleNamespace(fn="validate"))
    getattr(ExitOnSignal(), hook)(trainer, None)
    with pytest.raises(GracefulExit, match="SIGTERM"):
        signal.raise_signal(signal.SIGTERM)


def test_validation_within_training_waits_for_its_step() -> None:
    trainer: Any = SimpleNamespace(state=SimpleNamespace(fn="fit"))
    before = signal.getsignal(signal.SIGTERM)
    ExitOnSignal().on_validation_start(trainer, None)  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGTERM) is before
