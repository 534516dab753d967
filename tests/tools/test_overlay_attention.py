"""The overlay tool from any folder of a checkout."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "overlay_attention.py"
PHOTO = np.random.default_rng(3).integers(0, 256, (97, 131, 3), dtype=np.uint8)


def test_runs_from_any_folder(tmp_path: Path) -> None:
    Image.fromarray(PHOTO).save(tmp_path / "photo.png")
    np.save(tmp_path / "maps.npy", np.eye(7, dtype=np.float32))
    done = subprocess.run(
        [sys.executable, SCRIPT, "photo.png", "--maps", "maps.npy", "--out", "a.png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "a.png", "")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (131, 97)


def test_maps_of_another_photo_are_refused(tmp_path: Path) -> None:
    import visattn as va

    Image.fromarray(PHOTO).save(tmp_path / "photo.png")
    grid = va.AttentionMap.from_array(np.eye(3), image_size=(20, 30))
    (tmp_path / "maps.json").write_text(json.dumps(grid.to_dict()))
    words = ["photo.png", "--maps", "maps.json", "--out", "a.svg"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "belongs to an image of (20, 30) pixels" in done.stderr
