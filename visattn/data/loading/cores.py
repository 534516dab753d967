"""Number of cores that this process may use."""

import os


def available_cores() -> int:
    """Return the number of cores that this process may use, which a container may limit.

    Example:
        >>> available_cores() >= 1
        True
    """
    affinity = getattr(os, "sched_getaffinity", None)  # missing on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1
