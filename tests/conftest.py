"""Fixtures and options that all tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 2  # of 255: Pillow and torch round differently from release to release
LARGEST = 96  # pixels on a side: small enough to keep, large enough to look at


def _compare(path: Path, drawn: np.ndarray) -> None:
    """Fail with a message unless `drawn` is the golden image at `path`."""
    if not path.exists():
        pytest.fail(f"no golden image {path.name}; draw it with --write-golden and look at it")
    with Image.open(path) as opened:
        kept = np.asarray(opened.convert("RGB")).astype(int)
    if kept.shape != drawn.shape:
        pytest.fail(f"{path.name} is {kept.shape}, drawn was {drawn.shape}")
    distance = np.abs(kept - drawn.astype(int))
    if distance.max() > TOLERANCE:
        y, x, _ = np.unravel_index(distance.argmax(), distance.shape)
        pytest.fail(
            f"{path.name} differs by up to {distance.max()}/255, most at y={y} x={x}; "
            f"{(distance.max(axis=2) > TOLERANCE).sum()} pixels differ by more than {TOLERANCE}"
        )


@pytest.fixture
def own_methods() -> Iterator[None]:
    """Attribution methods that a test registers are unknown to other tests."""
    from visattn.attribution import METHODS

    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.fixture(scope="session")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a small classifier of cats and dogs at 32 x 40 pixels, with random weights."""
    import visattn as va
    from visattn.models import AttentionResNet

    torch.manual_seed(4)
    path = tmp_path_factory.mktemp("models") / "cnn.safetensors"
    va.save(AttentionResNet(("cat", "dog"), depth=8, stem_width=4, img_size=(32, 40)), path)
    return str(path)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, np.ndarray], None]:
    """Compare a drawn image (uint8, [y x 3]) with tests/golden/NAME.png.

    At most 2/255 may differ anywhere. A missing golden fails. With --write-golden the file is
    written and not compared: look at it before it is committed.
    """
    writing = request.config.getoption("--write-golden")

    def check(name: str, drawn: np.ndarray) -> None:
        if drawn.dtype != np.uint8 or drawn.ndim != 3 or drawn.shape[2] != 3:
            pytest.fail(f"a golden image is uint8 [y x 3], got {drawn.dtype} {drawn.shape}")
        if max(drawn.shape[:2]) > LARGEST:
            pytest.fail(f"a golden image has at most {LARGEST} pixels a side, got {drawn.shape}")
        if writing:
            GOLDEN.mkdir(exist_ok=True)
            Image.fromarray(drawn).save(GOLDEN / f"{name}.png", optimize=True)
        else:
            _compare(GOLDEN / f"{name}.png", drawn)

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
