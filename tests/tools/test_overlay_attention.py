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
from visattn.results.captions import Caption

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
    assert draw(["photo.png", "--maps", "maps.npy", "--out", "one.svg"]) == 0
    assert "svg" in Path("one.svg").read_text()[:200]
    grid = va.AttentionMap.from_array(np.eye(3), image_size=(20, 30))
    Path("maps.json").write_text(json.dumps(grid.to_dict()))
    with pytest.raises(SystemExit, match="2"):
        draw(["photo.png", "--maps", "maps.json", "--out", "a.svg"])
    assert "must have the size of the maps' photo, (20, 30)" in capsys.readouterr().err


def test_maps_of_every_kind_of_file_are_the_same(folder: Path) -> None:
    read, values = tool_module("overlay_attention").read_maps, np.eye(6, dtype=np.float32)[:2]
    np.save("maps.npy", values)
    np.savez("maps.npz", maps=values, other=np.zeros(3))
    Path("maps.json").write_text(json.dumps({"maps": values.tolist(), "tokens": ["a", 7]}))
    for name in ("maps.npy", "maps.npz", "maps.json"):
        maps = read(folder / name, (2, 3))
        np.testing.assert_array_equal(np.asarray(maps), values.reshape(2, 2, 3))
        assert maps.labels == (("a", "7") if name == "maps.json" else ())
    place = va.Geometry.identity((11, 17))
    ours = va.AttentionMap(maps.values, "head", "words", place, labels=("a", "dog"))
    caption = Caption(("a", "dog"), (-0.1, -0.5), (1.0, 0.5), ours, -0.3, finished=True)
    for result in (ours, caption):
        result.save("ours.json")
        made = read(folder / "ours.json", None)
        assert (made.labels, made.geometry) == (("a", "dog"), place)
        np.testing.assert_array_equal(np.asarray(made), np.asarray(ours))
