"""The forward passes of training compile as one graph, with equal results."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile

PROGRAM = Path(__file__).parents[1] / "helpers" / "compiled_training.py"
CAPTIONERS = ("soft", "adaptive", "transformer")
ROLLOUTS = ("rnn", "lstm", "gru")


@pytest.mark.parametrize("names", [CAPTIONERS, ROLLOUTS], ids=["captioners", "rollouts"])
def test_training_compiles_as_one_graph(names: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *names], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == list(names), done.stderr[-2000:]
