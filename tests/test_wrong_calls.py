"""Wrong arguments and command lines give a clear error, and change nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wrong_calls
import wrong_lines
from command_sandbox import fill

HELPERS = Path(__file__).parent / "helpers"
# One in so many is tried in every run, all of them by `make fuzz`; the numbers are primes.
CALLS, LINES = 37, 193


def test_wrong_arguments_are_refused_by_name(tmp_path: Path) -> None:
    known = wrong_calls.calls(tmp_path)
    for name, call in known.items():
        result = wrong_calls.outcome(name, call, *next(iter(call.arguments.items())))
        assert result.kind == "accepted", result  # each call works as it stands
    listed = list(wrong_calls.wrong_calls(known))
    assert len(listed) > 700
    results = [wrong_calls.outcome(*each) for each in listed[::CALLS]]
    faults = [each for each in results if each.kind not in ("refused", "accepted")]
    assert faults == []
    assert sum(each.kind == "refused" for each in results) > len(results) * 3 // 4


def test_wrong_command_lines_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["visattn"])
    listed = list(wrong_lines.wrong_lines())
    assert len(listed) > 800
    faults = {
        tuple(line): reasons for line in listed[::LINES] if (reasons := wrong_lines.faults(line))
    }
    assert faults == {}


@pytest.mark.fuzz
@pytest.mark.parametrize("program", ["wrong_calls", "wrong_lines"])
def test_all_wrong_calls_are_refused(program: str, tmp_path: Path) -> None:
    *reports, counts = run(program, tmp_path)
    bad = [each for each in reports if each.get("kind") != "accepted"]
    assert bad == []
    assert counts.get("lines", 0) + counts.get("refused", 0) > 3_000


def run(program: str, folder: Path) -> list[dict[str, Any]]:
    """Return the report of a process of its own, without shape checks."""
    command = [sys.executable, str(HELPERS / f"{program}.py"), "0", "1", str(folder)]
    environment = {**os.environ, "JAXTYPING_DISABLE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3600, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
