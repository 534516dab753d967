"""How the learning rate moves over a run."""


def trapezoid(
    step: int, total: int, *, warm: int = 0, hold: float = 0.4, last: float = 0.02
) -> float:
    """Return the share of the full learning rate at a step: up, level, then down in a line.

    Args:
        step: Steps done.
        total: Steps of the whole run.
        warm: Steps of the way up.
        hold: Share of the run after which it goes down.
        last: Share of the rate that is left at the end.

    Example:
        >>> [round(trapezoid(step, 10, warm=2, hold=0.5, last=0.0), 2) for step in (0, 1, 4, 6, 10)]
        [0.5, 1.0, 1.0, 0.8, 0.0]
    """
    rising = min(1.0, (step + 1) / (warm + 1e-9)) if warm else 1.0
    done = min(1.0, step / total)
    falling = 1.0 if done <= hold else 1.0 - (1.0 - last) * (done - hold) / (1.0 - hold)
    return min(rising, falling)
