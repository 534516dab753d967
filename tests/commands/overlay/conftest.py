"""Fixtures of the tests of `visattn overlay`."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three photos of different shapes in a folder."""
    rng = np.random.default_rng(3)
    folder = tmp_path / "in"
    (folder / "deeper").mkdir(parents=True)
    for name, size in (("tall.png", (59, 31)), ("wide.png", (29, 97)), ("deeper/dot.png", (1, 1))):
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / name)
    return folder
