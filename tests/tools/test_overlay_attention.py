"""The overlay tool from any folder of a checkout."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tool_modules import TOOLS, tool_module

import visattn as va

PHOTO = np.random.default_rng(3).integers(0, 256, (97, 131, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(PHOTO).save("photo.png")
    return tmp_path


@pytest.mark.slow
def test_runs_from_any_folder(folder: Path) -> None:
    np.save("maps.npy", np.eye(7, dtype=np.float32))
    words = [TOOLS / "overlay_attention.py", "photo.png", "--maps", "maps.npy", "--out", "a.png"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "a.png", "")


def test_maps_are_drawn_on_their_photo_and_refused_on_another(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = tool_module("overlay_attention").draw_saved_maps
    np.save("maps.npy", np.eye(7, dtype=np.float32))
    assert draw(["photo.png", "--maps", "maps.npy", "--out", "a.png"]) == 0
    with Image.open(folder / "a.png") as image:
        assert image.size == (131, 97)
    grid = va.AttentionMap.from_array(np.eye(3), image_size=(20, 30))
    Path("maps.json").write_text(json.dumps(grid.to_dict()))
    with pytest.raises(SystemExit, match="2"):
        draw(["photo.png", "--maps", "maps.json", "--out", "a.svg"])
    assert "belongs to an image of (20, 30) pixels" in capsys.readouterr().err
