"""The share of the photos that a process gets, from what its scheduler says.

Imports only the standard library, since it is a part of the argument parser.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple


class Share(NamedTuple):
    """One of several parts of the photos.

    Args:
        number: Number of the part, from 1.
        parts: Number of parts; 0 if a scheduler does not say it.
        origin: What it was taken from; "" if it was typed.
    """

    number: int
    parts: int
    origin: str = ""

    def __str__(self) -> str:
        """Return the part as `--shard` takes it."""
        return f"{self.number}/{self.parts or 'N'}"


def shard(text: str) -> Share:
    """Parse a part of the images: `2/4`; `auto`, what the scheduler says; `auto/8`, of 8 parts.

    Raises:
        argparse.ArgumentTypeError: If it is neither, or the environment names no part, or several.

    Example:
        >>> shard("2/4")
        Share(number=2, parts=4, origin='')
    """
    match = re.fullmatch(r"(auto|[0-9]{1,6})(?:/([0-9]{1,6}))?", text)
    if match and match[1] == "auto":
        return scheduled_share(os.environ, int(match[2] or 0))
    number, count = (int(match[1]), int(match[2] or 0)) if match else (0, 0)
    if not 1 <= number <= count:
        raise argparse.ArgumentTypeError(
            f"must be I/N with I from 1 to N, such as 2/4, or auto; got {text[:40]!r}"
        )
    return Share(number, count)


def scheduled_share(environment: Mapping[str, str], count: int = 0) -> Share:
    """Return the part of the photos that the scheduler of this process assigns to it.

    Args:
        environment: Environment variables.
        count: Number of parts, if it is known; Kubernetes does not say it.

    Raises:
        argparse.ArgumentTypeError: If no scheduler is known, two of them disagree, or the number of
            parts is unknown or another one.

    Example:
        >>> scheduled_share({"RANK": "2", "WORLD_SIZE": "4"})
        Share(number=3, parts=4, origin='RANK and WORLD_SIZE')
    """
    shares = [share for read in _READERS for share in read(environment)]
    # A single task is no share of the work: a job of Slurm with one task may be one of an array.
    shares = [share for share in shares if share.parts != 1] or shares
    if not shares:
        raise argparse.ArgumentTypeError(
            "auto needs a scheduler: no array of Slurm or AWS Batch, no ranks (srun, torchrun) and "
            "no indexed job of Kubernetes is in the environment; name the part, as in 2/4"
        )
    if len({share[:2] for share in shares}) > 1:
        named = "; ".join(f"{share} by {share.origin}" for share in shares)
        raise argparse.ArgumentTypeError(
            f"auto is not unique: {named}; name the part, as in 2/4, computed from both"
        )
    share = shares[0]
    if not (count or share.parts):
        raise argparse.ArgumentTypeError(
            f"{share.origin} says which part this is, but not of how many: auto/8 for 8 parts"
        )
    if count and share.parts not in (0, count):
        raise argparse.ArgumentTypeError(
            f"auto/{count} contradicts {share.origin}, which says {share}"
        )
    share = share._replace(parts=count or share.parts)
    if share.number > share.parts:
        raise argparse.ArgumentTypeError(
            f"{share.origin} says part {share.number} of {share.parts}: the indices of the tasks "
            "must be consecutive, and as many as there are parts"
        )
    return share


def _slurm_array(environment: Mapping[str, str]) -> Iterator[Share]:
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "STEP", "COUNT")]
    if names[0] in environment and names[3] in environment:
        index, first, step, count = (
            _number(environment, name, default)
            for name, default in zip(names, (0, 0, 1, 1), strict=True)
        )
        place, rest = divmod(index - first, max(step, 1))
        # Of a list such as --array=1,3,7 nothing says which one this is.
        number = place + 1 if rest == 0 and place >= 0 else count + 1
        yield Share(number, count, "SLURM_ARRAY_TASK_ID and _COUNT")


def _slurm_tasks(environment: Mapping[str, str]) -> Iterator[Share]:
    if "SLURM_PROCID" in environment and "SLURM_NTASKS" in environment:
        count = _number(environment, "SLURM_NTASKS")
        if count > 1 and "SLURM_STEP_ID" not in environment:
            # A batch script is task 0 itself: the other tasks would never run.
            raise argparse.ArgumentTypeError(
                f"the job of Slurm has {count} tasks, of which this is the script: start the "
                "command by srun, which runs it in each task"
            )
        number = _number(environment, "SLURM_PROCID") + 1
        yield Share(number, count, "SLURM_PROCID and SLURM_NTASKS")


def _ranks(environment: Mapping[str, str]) -> Iterator[Share]:
    if "RANK" in environment and "WORLD_SIZE" in environment:
        number, count = _number(environment, "RANK") + 1, _number(environment, "WORLD_SIZE")
        yield Share(number, count, "RANK and WORLD_SIZE")


def _aws_batch(environment: Mapping[str, str]) -> Iterator[Share]:
    name = "AWS_BATCH_JOB_ARRAY_INDEX"
    if name in environment:
        count = _number(environment, "AWS_BATCH_JOB_ARRAY_SIZE", 0)
        yield Share(_number(environment, name) + 1, count, name)


def _kubernetes(environment: Mapping[str, str]) -> Iterator[Share]:
    name = "JOB_COMPLETION_INDEX"
    if name in environment:
        yield Share(_number(environment, name) + 1, 0, name)


_READERS: tuple[Callable[[Mapping[str, str]], Iterator[Share]], ...] = (
    _slurm_array, _slurm_tasks, _ranks, _aws_batch, _kubernetes,
)  # fmt: skip


def _number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environment.get(name, str(default))
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{name} must be a number, got {text[:40]!r}")
    return int(text)
