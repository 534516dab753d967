"""What `visattn doctor` says of the machine: processors, devices, memory, disk, data."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from visattn.commands.doctor.notices import Notice

_GIGA = 10**9
_LITTLE_DISK, _NO_DISK = _GIGA, 20 * 10**6  # bytes; a run with images takes hundreds of MB
_LITTLE_SHARED = 256 * 10**6  # a few batches of photos, on their way from workers
_LITTLE_MEMORY = 2 * _GIGA

DATA = {
    "MNIST": "MNIST/raw",
    "CIFAR-10": "cifar-10-batches-py",
    "Flickr8k": "flickr8k",
    "flowers": "flowers/train",
    "ImageNet": "imagenet/train",
    "weights": "weights",
}
"""What the configs look for below `VISATTN_DATA`."""


def device_notices(facts: Mapping[str, Any]) -> Iterator[Notice]:
    """Yield what computes here.

    Args:
        facts: What torch says of its devices; empty if it could not be asked.

    Example:
        >>> [notice.state for notice in device_notices({"threads": 1, "gpus": [["A", 8 * 10**9]]})]
        ['ok', 'ok', 'ok']
    """
    count = processors()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    threads = facts.get("threads")
    why = f" (OMP_NUM_THREADS={asked})" if asked else ""
    told = f"{count} to use" + (f"; torch takes {threads}{why}" if threads else "")
    crowd = threads is not None and threads > count
    remedy = f"more threads than processors slow each other down: export OMP_NUM_THREADS={count}"
    yield Notice("machine", "processors", "note" if crowd else "ok", told, remedy if crowd else "")
    yield memory_notice()
    if not facts:
        yield Notice("machine", "devices", "note", "torch could not be asked")
    elif gpus := facts.get("gpus"):
        named = ", ".join(f"{name} ({size / _GIGA:.0f} GB)" for name, size in gpus)
        yield Notice("machine", "devices", "ok", f"cpu; cuda: {named}")
    elif facts.get("mps"):
        yield Notice("machine", "devices", "ok", "cpu; mps")
    else:
        made = f"; this torch is made for CUDA {facts['cuda']}" if facts.get("cuda") else ""
        yield Notice("machine", "devices", "ok", f"cpu; no GPU is seen{made}")


def processors() -> int:
    """Return how many processors this process may use, also in a container with a share of them.

    Example:
        >>> processors() >= 1
        True
    """
    allowed = getattr(os, "sched_getaffinity", None)
    count = len(allowed(0)) if allowed else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        share = int(quota) / int(period)
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return count
    return max(1, min(count, round(share)))


def memory_notice() -> Notice:
    """Return how much memory there is, and how much of it is free.

    Example:
        >>> memory_notice().name
        'memory'
    """
    try:
        rows = Path("/proc/meminfo").read_text().splitlines()
        sizes = {row.split(":")[0]: int(row.split()[1]) * 1024 for row in rows if ":" in row}
        whole, free = sizes["MemTotal"], sizes["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):  # no Linux
        return Notice("machine", "memory", "note", "not known on this system")
    told = f"{_size(whole)}, {_size(free)} of it free"
    if free < _LITTLE_MEMORY:
        return Notice("machine", "memory", "amiss", told, "smaller batches may be needed")
    return Notice("machine", "memory", "ok", told)


def disk_notices(folder: Path) -> Iterator[Notice]:
    """Yield whether there is room in a folder, in shared memory, and leave to write runs.

    Args:
        folder: Where commands are typed.
    """
    free = shutil.disk_usage(folder).free
    told = f"{_size(free)} free in {folder}"
    low, none = free < _LITTLE_DISK, free < _NO_DISK
    remedy = "make room, or work elsewhere: a run's checkpoints and images must fit"
    yield Notice("disk", "room", "broken" if none else "amiss" if low else "ok", told, remedy * low)
    yield from shared_memory_notices(Path("/dev/shm"))
    yield runs_notice(folder / "runs")


def shared_memory_notices(place: Path) -> Iterator[Notice]:
    """Yield how much shared memory there is, on a system that has it.

    Args:
        place: Where it is mounted.
    """
    remedy = "workers hand images on through it: docker run --shm-size=1g, or workers: 0"
    if not sys.platform.startswith("linux"):
        return
    if not place.is_dir():
        yield Notice("disk", "shared memory", "amiss", f"there is no {place}", remedy)
        return
    usage = shutil.disk_usage(place)
    low = usage.free < _LITTLE_SHARED
    told = f"{_size(usage.free)} of {_size(usage.total)} free in {place}"
    yield Notice("disk", "shared memory", "amiss" if low else "ok", told, remedy * low)


def runs_notice(folder: Path) -> Notice:
    """Return whether runs can be written, without writing anything.

    Args:
        folder: Of all runs; need not be there yet.
    """
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        told = f"{nearest} is a file, so runs cannot be kept in {folder}"
        return Notice("disk", "runs/", "broken", told, "rename it, or say --run FOLDER")
    if not os.access(nearest, os.W_OK | os.X_OK):
        remedy = f"chmod u+w {nearest}, or work in a folder of yours, or say --run FOLDER"
        return Notice("disk", "runs/", "broken", f"{nearest} cannot be written", remedy)
    if nearest != folder:
        return Notice("disk", "runs/", "ok", "is made by the first run")
    return Notice("disk", "runs/", "ok", "can be written")


def data_notices() -> Iterator[Notice]:
    """Yield what is found where data lies, and what else was said in the environment."""
    named = os.environ.get("VISATTN_DATA", "")
    places = ", ".join(f"{name} ({place}/)" for name, place in DATA.items())
    if not named:
        told = "not set; configs of real photos look for their data there"
        yield Notice("data", "VISATTN_DATA", "note", told, "  export VISATTN_DATA=FOLDER")
    elif not Path(named).is_dir():
        told = f"{named} is no folder"
        yield Notice("data", "VISATTN_DATA", "amiss", told, "  export VISATTN_DATA=FOLDER")
    else:
        found = [name for name, place in DATA.items() if (Path(named) / place).is_dir()]
        told = f"{named}: {', '.join(found) or 'nothing that configs look for'}"
        remedy = "" if found else f"they look for {places}"
        yield Notice("data", "VISATTN_DATA", "ok" if found else "amiss", told, remedy)
    if trusted := os.environ.get("VISATTN_TRUST_MODULES"):
        told = f"configs may import from {trusted}"
        yield Notice("data", "trusted", "note", told, "  unset VISATTN_TRUST_MODULES")


def _size(count: int) -> str:
    """Return bytes as people say them.

    Example:
        >>> _size(512_000), _size(64 * 10**6), _size(1_610_000_000)
        ('1 MB', '64 MB', '1.6 GB')
    """
    if count < _GIGA:
        return f"{max(round(count / 10**6), 1)} MB"
    return f"{count / _GIGA:.1f} GB"
