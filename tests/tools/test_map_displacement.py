"""Displacement of cells by mirrored photos: known maps, and a network whose kernels are even."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from tools.map_displacement import displacement, main

ROWS, COLUMNS = 9, 11


def bumps(move: tuple[float, float], centers: torch.Tensor, *, axis: int | None) -> torch.Tensor:
    """Return maps of Gaussians, drawn by cells that look elsewhere, of photos or mirrored ones."""
    y, x = torch.arange(ROWS) + 0.5, torch.arange(COLUMNS) + 0.5
    maps: list[torch.Tensor] = []
    for row, column in centers.tolist():
        row, column = (
            (ROWS - row if axis == 0 else row),
            (COLUMNS - column if axis == 1 else column),
        )
        down, along = y + move[0] - row, x + move[1] - column
        maps.append((-(down[:, None] ** 2 + along**2) / 4).exp())
    return torch.stack(maps)


def test_displacement_of_known_maps_is_found() -> None:
    centers = torch.tensor([[3.1, 7.2], [4.8, 4.4], [5.9, 6.3]])
    for move in ((0.0, 0.0), (-0.5, 0.25), (0.3, -0.45)):
        maps = bumps(move, centers, axis=None)
        for axis in (0, 1):
            cells, there, here = displacement(maps, bumps(move, centers, axis=axis), axis)
            assert cells == pytest.approx(move[axis], abs=0.051)
            assert there > 0.99
            assert there >= here


def test_even_kernels_look_where_receptive_fields_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network whose kernels are their own mirror images has the displacement of arithmetic."""
    torch.manual_seed(0)
    arguments = {"layers": "[1,1,1,1]", "channels": "[8,8,8,8]"}
    model = timm.create_model("resnet18", layers=(1, 1, 1, 1), channels=(8, 8, 8, 8))
    state = model.state_dict()
    for name, weight in state.items():
        if weight.ndim == 4:
            state[name] = (weight + weight.flip(2) + weight.flip(3) + weight.flip(2, 3)).abs()
    save_file(state, tmp_path / "even.safetensors")
    random = np.random.default_rng(0)
    for number in range(3):
        pixels = np.full((224, 224, 3), 90, np.uint8)
        row, column = random.integers(70, 130, 2)
        pixels[row : row + 30, column : column + 30] = random.integers(150, 255, 3)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    words = [str(tmp_path), "--model", "timm:resnet18", "--method", "eigencam", "--limit", "3"]
    words += ["--weights", str(tmp_path / "even.safetensors")]
    words += ["--model-arg", *(f"{name}={value}" for name, value in arguments.items())]
    assert main(words) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith("eigencam, 3 photos, 7 x 7")
    for axis, line in zip("yx", lines, strict=True):
        assert line.startswith(f"{axis}: looks -0.")
        assert float(line.split()[2]) == pytest.approx(-0.48, abs=0.12)
        assert line.endswith("receptive fields -0.48")
