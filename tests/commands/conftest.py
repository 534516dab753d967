"""Fixtures of the tests of commands."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def bulk_photos(tmp_path: Path) -> Path:
    """Folder of five photos, the third of which cannot be read."""
    random, folder = np.random.default_rng(3), tmp_path / "in"
    folder.mkdir()
    for index in range(5):
        pixels = random.integers(0, 256, (31 + index, 47, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    (folder / "2.png").write_bytes(b"no photo")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Folder of a tall and a wide photo."""
    folder = tmp_path / "in"
    folder.mkdir()
    for seed, (name, size) in enumerate({"tall": (59, 29), "wide": (23, 101)}.items()):
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder
