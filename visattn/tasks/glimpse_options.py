"""Which numbers a glimpse model can be trained with."""

from collections.abc import Mapping
from typing import Any

_AT_LEAST_0 = (
    "policy_weight",
    "every_glimpse",
    "entropy",
    "policy_rate",
    "baseline_rate",
    "random_epochs",
    "warm",
)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse numbers that make no sense.

    Args:
        options: Those of a `GlimpseTask`, by name; what is missing is not looked at.

    Raises:
        ValueError: If one makes no sense, or rollouts are to be compared and there is one.

    Example:
        >>> check_options({"entropy": 0.0, "rollouts": 2, "baseline": "leave_one_out"})
    """
    low = {name: options[name] for name in _AT_LEAST_0 if not options.get(name, 0) >= 0}
    if low:
        raise ValueError(f"{', '.join(low)} must be at least 0, got {low}")
    smoothing, last = options.get("smoothing", 0.0), options.get("last_spread")
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}")
    if last is not None and not last > 0:
        raise ValueError(f"last_spread must be above 0, got {last}")
    rollouts = options.get("rollouts", 1)
    if rollouts < 1:
        raise ValueError(f"rollouts must be at least 1, got {rollouts}")
    if rollouts < 2 and options.get("baseline") == "leave_one_out":
        raise ValueError(
            "leave_one_out compares the rollouts of a picture: say rollouts of 2 or more, or "
            f"another baseline; got rollouts={rollouts}"
        )
