"""What every test and every example in a docstring stands on."""

import numpy as np
import pytest
import torch
from hypothesis import settings

# The same cases in every run and no clock: a law that fails, fails for everybody.
settings.register_profile("visattn", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("visattn")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one option with which golden pictures are written."""
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="write tests/golden/*.png from what the tests drew, instead of comparing",
    )


def pytest_configure() -> None:
    """Sum in one order: with several threads the last digits would depend on the machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, object]) -> None:
    """Let examples use torch and np without an import that their module does not need."""
    doctest_namespace["torch"] = torch
    doctest_namespace["np"] = np


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test and example from the same global random state."""
    torch.manual_seed(0)
