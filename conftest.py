"""What every test and every example in a docstring stands on."""

import gc
import os
from collections.abc import Generator
from pathlib import Path
from random import Random

import lightning.pytorch  # noqa: F401 (see below)
import numpy as np
import pytest
import torch
from _pytest.doctest import DoctestModule
from hypothesis import settings
from shape_checks import check_shapes_alone, forget_calls

# The same cases in every run and no clock: a law that fails, fails for everybody.
settings.register_profile("visattn", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("visattn")

# Lightning is imported first: for a float beartype makes Union[float, int], which typing's cache
# then returns for Lightning's Union[int, float], so that limit_train_batches: 1 is read as 1.0.
check_shapes_alone()
TESTS = Path(__file__).parent / "tests"
# One thread sums in one order and is fastest for tensors this small; make test-machines tries more.
THREADS = int(os.environ.get("VISATTN_TEST_THREADS", "1"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the one option with which golden images are written."""
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="write tests/golden/*.png from what the tests drew, instead of comparing",
    )


def pytest_configure() -> None:
    """Compute with as many threads as the tests are asked for, while they are collected too."""
    torch.set_num_threads(THREADS)
    gc.disable()  # imports leave little garbage, and to look for it takes seconds


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no examples in tests, which have none: to import and search them takes seconds."""
    found = yield
    return [
        each
        for each in found
        if TESTS not in file_path.parents or not isinstance(each, DoctestModule)
    ]


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave notebooks and pages in a browser, which take long, to the long run; mix the order."""
    for item in items:
        if item.path.suffix == ".ipynb" or "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
    if order := os.environ.get("VISATTN_TEST_ORDER"):
        random = Random(order)
        files = sorted({item.path for item in items})
        random.shuffle(files)
        random.shuffle(items)
        items.sort(key=lambda item: files.index(item.path))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the two million objects that are imported by now."""
    gc.enable()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let it take them at the end: libraries look for what was forgotten."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, object]) -> None:
    """Let examples use torch and np without an import that their module does not need."""
    doctest_namespace["torch"] = torch
    doctest_namespace["np"] = np


@pytest.fixture(autouse=True)
def _afresh() -> None:
    """Start every test and example from the same global random state and number of threads."""
    torch.manual_seed(0)
    torch.set_num_threads(THREADS)  # tools change it; the tests after them would pay
    forget_calls()
