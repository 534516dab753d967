"""Timing of several implementations in interleaved rounds, so that load affects all alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch


class Timing(NamedTuple):
    """Time of one implementation, compared with ours.

    Args:
        seconds: Median over the rounds.
        ratio: Median over the rounds of its time divided by ours; above 1, ours is faster.
        least: Smallest of these ratios.
        most: Largest.
    """

    seconds: float
    ratio: float
    least: float
    most: float


def in_turn(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    seconds_at_least: float = 0.0,
    seconds_a_turn: float = 0.02,
) -> dict[str, Timing]:
    """Run each implementation twice to warm up, then all in each round; one is named `ours`.

    Short runs get up to ten times as many rounds, until `seconds_at_least` have passed. In each
    round the fastest is called often enough to take `seconds_a_turn`, and the others as often.
    """
    fastest = min([_time_calls(run, 1) for _ in range(2) for run in runs.values()])
    calls = max(1, round(seconds_a_turn / max(fastest, 1e-6)))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    started = time.perf_counter()
    for turn in range(10 * rounds):
        if turn >= rounds and time.perf_counter() - started >= seconds_at_least:
            break
        names = list(runs) if turn % 2 else list(runs)[::-1]  # alternate the order
        for name in names:
            seconds[name].append(_time_calls(runs[name], calls))
    timings = {}
    for name, times in seconds.items():
        ratios = [theirs / ours for theirs, ours in zip(times, seconds["ours"], strict=True)]
        middle, ratio = statistics.median(times), statistics.median(ratios)
        timings[name] = Timing(middle, ratio, min(ratios), max(ratios))
    return timings


def clock() -> float:
    """Return seconds of the CPU with one thread, which other processes lengthen less; else of time.

    A GPU works while its process waits: it needs those of time.
    """
    if torch.get_num_threads() == 1 and not torch.cuda.is_available():
        return time.process_time()
    return time.perf_counter()


def _time_calls(run: Callable[[], object], calls: int) -> float:
    """Return the mean seconds of a call over several in a row."""
    begin = clock()
    for _ in range(calls):
        run()
    return (clock() - begin) / calls
