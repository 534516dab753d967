"""Fixtures of the tests of commands."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from random_numbers import photo

from visattn.cli import main


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
        Image.fromarray(photo(*size, seed)).save(path)
    return folder
