"""The part of the photos that a scheduler assigns."""

import argparse

import pytest

from visattn.commands.schedulers import scheduled_share, shard

ARRAY = {"SLURM_ARRAY_TASK_ID": "14", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "10",
         "SLURM_ARRAY_TASK_STEP": "2"}  # fmt: skip
TASKS = {"SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_STEP_ID": "0"}
AWS = {"AWS_BATCH_JOB_ARRAY_INDEX": "0", "AWS_BATCH_JOB_ARRAY_SIZE": "5"}


@pytest.mark.parametrize(
    ("environment", "count", "share"),
    [
        (ARRAY, 0, (3, 4)),
        (ARRAY | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 4, (3, 4)),
        (TASKS, 0, (2, 3)),
        (TASKS | {"RANK": "1", "WORLD_SIZE": "3"}, 0, (2, 3)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 0, (1, 1)),
        (AWS, 0, (1, 5)),
        ({"JOB_COMPLETION_INDEX": "7"}, 8, (8, 8)),
    ],
)
def test_schedulers_assign_parts(
    environment: dict[str, str], count: int, share: tuple[int, int]
) -> None:
    assert scheduled_share(environment, count)[:2] == share


@pytest.mark.parametrize(
    ("environment", "count", "reason"),
    [
        ({}, 0, "auto needs a scheduler"),
        (ARRAY | TASKS, 0, "auto is not unique: 3/4 by SLURM_ARRAY_TASK_ID"),
        (TASKS | {"RANK": "1", "WORLD_SIZE": "6"}, 0, "auto is not unique"),
        (ARRAY, 8, "auto/8 contradicts SLURM_ARRAY_TASK_ID and _COUNT, which says 3/4"),
        (ARRAY | {"SLURM_ARRAY_TASK_ID": "13"}, 0, "must be consecutive"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "3"}, 0, "start the command by srun"),
        ({"JOB_COMPLETION_INDEX": "7"}, 0, "not of how many: auto/8"),
        ({"JOB_COMPLETION_INDEX": "8"}, 8, "must be consecutive"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, 0, "RANK must be a number, got 'x'"),
    ],
)
def test_parts_that_are_not_known_are_refused(
    environment: dict[str, str], count: int, reason: str
) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=reason):
        scheduled_share(environment, count)


def test_the_option_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    assert shard("auto")[:2] == shard("auto/5")[:2] == (1, 5)
    for text in ("auto/6", "auto/", "2", "3/2"):
        with pytest.raises(argparse.ArgumentTypeError):
            shard(text)
