"""Randomly mutated files yield a result or an error, quickly, without a crash."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HELPERS = Path(__file__).parents[1] / "helpers"
MOST = 10**9  # cases of a kind; the time ends them
MORE = float(os.environ.get("VISATTN_FUZZ_SECONDS", "840"))


def fuzzed(
    what: str, first: int, count: int, folder: Path, seconds: float = 600
) -> list[dict[str, Any]]:
    """Return the report of a separate process on this number of cases, or fewer in the time."""
    program = str(HELPERS / "fuzz_worker.py")
    child = subprocess.run(
        [sys.executable, program, what, str(first), str(count), str(seconds), str(folder)],
        capture_output=True,
        text=True,
        timeout=60 + 2 * seconds,
        check=False,
    )
    last = (folder / "progress").read_text().strip() if (folder / "progress").exists() else "none"
    assert child.returncode == 0, f"died at case {last} of {what}: {child.stderr[-2000:]}"
    return [json.loads(line) for line in child.stdout.splitlines()]


def check(content: dict[str, Any], count: int) -> None:
    assert content["cases"] == count
    assert content["read"] + content["refused"] + len(content["escaped"]) >= count
    assert content["escaped"] == [], content["kind"]
    assert content["slow"] == [], f"{content['kind']}: over a second"
    assert content["megabytes"] < 500, content["kind"]
    assert content["refused"] > count // 10, content["kind"]  # most cases are invalid
    # some are readable; a record of a map hardly ever: each of its entries counts
    assert content["read"] > 0 or content["kind"] == "map record", content["kind"]


def test_damaged_images_do_not_crash_the_reader(tmp_path: Path) -> None:
    [content] = fuzzed("images", 0, 2_000, tmp_path)
    check(content, 2_000)
    assert content["read"] > 200


def test_damaged_annotations_do_not_crash_the_readers(tmp_path: Path) -> None:
    for content in fuzzed("annotations", 0, 120, tmp_path):
        check(content, 120)


@pytest.mark.fuzz
def test_many_damaged_images_do_not_crash_the_reader(tmp_path: Path) -> None:
    [content] = fuzzed("images", 1_000_000, MOST, tmp_path, MORE / 3)
    check(content, content["cases"])
    assert content["cases"] > 10 * MORE


@pytest.mark.fuzz
def test_many_damaged_annotations_do_not_crash_the_readers(tmp_path: Path) -> None:
    for content in fuzzed("annotations", 1_000_000, MOST, tmp_path, 2 * MORE / 3):
        check(content, content["cases"])
        assert content["cases"] > MORE / 10, content["kind"]
