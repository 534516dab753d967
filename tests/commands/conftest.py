"""Fixtures of the tests of commands."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from net_cases import fill_net_sandbox
from PIL import Image

from visattn.cli import main


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of photos, masks, small models and damaged files, which tests only read."""
    folder = tmp_path_factory.mktemp("sandbox")
    fill_net_sandbox(folder)
    return folder


@pytest.fixture
def run(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a command in the sandbox: words of a line, then further words."""
    monkeypatch.chdir(sandbox)

    def command(line: str, *words: object) -> int:
        return main([*line.split(), *map(str, words)])

    return command


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Folder of a tall and a wide photo, and of a small one in a folder below."""
    folder = tmp_path / "in"
    for seed, (name, size) in enumerate(
        {"tall": (59, 29), "wide": (23, 101), "deeper/dot": (32, 40)}.items()
    ):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder
