"""Fixtures and options that all tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 2  # of 255: Pillow and torch round differently from release to release


@pytest.fixture
def own_methods() -> Iterator[None]:
    """Attribution methods that a test registers are unknown to other tests."""
    from visattn.attribution import METHODS

    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of photos, masks, small models, runs and damaged files, which tests only read."""
    from command_sandbox import fill

    folder = tmp_path_factory.mktemp("sandbox")
    fill(folder)
    return folder


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, np.ndarray], None]:
    """Compare a drawn image (uint8, [y x 3]) with tests/golden/NAME.png.

    With --write-golden the file is written and not compared: look at it before it is committed.
    """

    def check(name: str, drawn: np.ndarray) -> None:
        path = GOLDEN / f"{name}.png"
        if request.config.getoption("--write-golden"):
            Image.fromarray(drawn).save(path, optimize=True)
        with Image.open(path) as opened:
            kept = np.asarray(opened.convert("RGB")).astype(int)
        np.testing.assert_allclose(drawn, kept, rtol=0, atol=TOLERANCE)

    return check


@pytest.fixture(autouse=True)
def _fresh_compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forget compiled graphs between tests that compile.

    Functions with shapes in their signature share one wrapper, so torch takes all of them for one
    function that is compiled again and again, and gives up at the ninth.
    """
    yield
    if request.node.get_closest_marker("compile"):
        torch.compiler.reset()
