"""Several ways timed in turn, so that a noisy hour is noisy for all of them."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Timing(NamedTuple):
    """How long one way took, beside ours.

    Args:
        seconds: Median over the rounds.
        ratio: Median over the rounds of its seconds to ours: above 1, ours is faster.
        least: Smallest of these ratios.
        most: Largest.
    """

    seconds: float
    ratio: float
    least: float
    most: float


def in_turn(
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    seconds_at_least: float = 0.0,
    seconds_a_turn: float = 0.02,
) -> dict[str, Timing]:
    """Run each way twice to warm up, then all of them in each round; one is called `ours`.

    Short ways get more rounds, up to ten times as many, until the seconds are spent: a median
    over few runs of some milliseconds says more about the machine than about the way. In each
    turn the fastest is called so often that it has its seconds, and the others as often.
    """
    fastest = min([_spent(run, 1) for _ in range(2) for run in ways.values()])
    calls = max(1, round(seconds_a_turn / max(fastest, 1e-6)))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    for turn in range(10 * rounds):
        if turn >= rounds and time.perf_counter() - started >= seconds_at_least:
            break
        names = list(ways) if turn % 2 else list(ways)[::-1]  # nobody is always the first
        for name in names:
            seconds[name].append(_spent(ways[name], calls))
    timings = {}
    for name, spent in seconds.items():
        ratios = [one / ours for one, ours in zip(spent, seconds["ours"], strict=True)]
        middle, ratio = statistics.median(spent), statistics.median(ratios)
        timings[name] = Timing(middle, ratio, min(ratios), max(ratios))
    return timings


def _spent(run: Callable[[], object], calls: int) -> float:
    """Return the seconds of one call, by some in a row."""
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - begin) / calls
