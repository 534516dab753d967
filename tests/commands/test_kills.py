"""Commands that are killed over the results of other settings: repeated, they write the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from killed_commands import COMMANDS

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_run_leaves_no_mixture(name: str, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(HELPERS), str(HELPERS.parents[1])])
    done = subprocess.run(
        [sys.executable, HELPERS / "killed_commands.py", tmp_path, name, "3"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["killed"] >= 3
    assert result["wrong"] == []
