"""`visattn overlay --maps`: saved maps on their photos."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.cli import main
from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.records import to_dict
from visattn.viz.heatmap import overlay


def arguments(photo: Path, maps: Path, out: Path, *options: str) -> list[str]:
    return ["overlay", str(photo), "--maps", str(maps), "--out", str(out), *options]


PHOTO = np.random.default_rng(3).integers(0, 256, (97, 131, 3), dtype=np.uint8)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    Image.fromarray(PHOTO).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def written(folder: Path, maps: Any) -> Path:
    """Write maps to a file: an array as .npy, a dict as .json."""
    if isinstance(maps, Path):
        return maps
    path = folder / ("maps.npy" if isinstance(maps, np.ndarray) else "maps.json")
    if isinstance(maps, np.ndarray):
        np.save(path, maps)
    else:
        path.write_text(json.dumps(maps))
    return path


@pytest.fixture
def run(photo: Path, tmp_path: Path) -> Callable[..., list[Path]]:
    """Run the command on the photo; return the written files in order."""

    def call(maps: Any, *options: str, out: str = "out") -> list[Path]:
        path = written(tmp_path, maps)
        before = set(tmp_path.rglob("*.png"))
        assert main(arguments(photo, path, tmp_path / out, *options)) == 0
        return sorted(set(tmp_path.rglob("*.png")) - before)

    return call


def drawn(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image)


def expected(values: np.ndarray, geometry: Geometry, **options: Any) -> np.ndarray:
    placed = AttentionMap(torch.from_numpy(values).float(), "", "gate", geometry).resize_to_image()
    return overlay(PHOTO, placed.numpy(), **options)


def hot(y: int, x: int, grid: tuple[int, int] = (7, 7)) -> np.ndarray:
    values = np.zeros(grid)
    values[y, x] = 1
    return values


def test_a_map_covers_the_photo_unless_it_was_cropped(run: Callable[..., list[Path]]) -> None:
    whole = Geometry.identity((97, 131)).resized((224, 224))
    (path,) = run(hot(2, 5), out="a.png")
    np.testing.assert_array_equal(drawn(path), expected(hot(2, 5), whole))
    cut = Geometry.identity((97, 131)).resized((224, 302)).cropped(0, 39, (224, 224))
    (path,) = run(hot(2, 5), "--resize-mode", "crop", "--colormap", "viridis", out="b.png")
    np.testing.assert_array_equal(drawn(path), expected(hot(2, 5), cut, colormap="viridis"))


def test_several_maps_become_a_folder_or_one_panel(run: Callable[..., list[Path]]) -> None:
    maps = np.stack([hot(0, 0), hot(3, 3) / 2, hot(6, 6) / 4])
    paths = run(maps, "--words", "a", "red/dog", "runs")
    assert [path.name for path in paths] == [
        "01_a.png",
        "02_red_dog.png",
        "03_runs.png",
        "panel.png",
    ]
    assert all(drawn(path).shape == PHOTO.shape for path in paths[:3])
    (panel,) = run(maps, out="whole.png")
    assert drawn(panel).shape[1] == 1400


def test_normalization_is_global_or_per_map(run: Callable[..., list[Path]]) -> None:
    maps, whole = np.stack([hot(3, 3), hot(3, 3) / 2]), Geometry.identity((97, 131))
    first, second, _ = run(maps, "--vmax", "1", out="fixed")
    np.testing.assert_array_equal(drawn(second), expected(maps[1], whole))
    assert not np.array_equal(drawn(first), drawn(second))
    first, second, _ = run(maps, "--normalize", "image", out="each")
    np.testing.assert_array_equal(drawn(first), drawn(second))


def test_flat_maps_are_reshaped_to_the_map_shape(run: Callable[..., list[Path]]) -> None:
    grids = np.stack([hot(1, 3, (4, 4)), hot(2, 0, (4, 4))])
    folded = grids.reshape(2, 16)
    wanted = [drawn(path) for path in run(grids, out="plain")]
    inputs = run(folded, "--map-shape", "4", out="map_shape")
    for each, other in zip(wanted[:2], inputs, strict=False):
        np.testing.assert_array_equal(drawn(other), each)
    tall = run(
        hot(4, 1, (5, 3)).reshape(1, 15),
        "--map-shape",
        "5x3",
        "--interpolation",
        "nearest",
        out="tall",
    )
    assert len(tall) == 2


def test_maps_of_visattn_caption_are_placed_by_their_geometry(
    run: Callable[..., list[Path]],
) -> None:
    geometry = Geometry.identity((97, 131)).cropped(3, 20, (90, 90)).flipped()
    caption = {
        "words": ["a", "dog"],
        "maps": [hot(0, 6).tolist(), hot(6, 0).tolist()],
        "geometry": to_dict(geometry),
    }
    first, second, _ = run(caption)
    assert (first.name, second.name) == ("01_a.png", "02_dog.png")
    np.testing.assert_array_equal(drawn(first), expected(hot(0, 6), geometry))


def test_arrays_of_npz_archives_are_read(run: Callable[..., list[Path]], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", maps=hot(1, 1), other=np.zeros(3))
    np.savez(tmp_path / "b.npz", hot(1, 1))
    (each,), (other,) = run(tmp_path / "a.npz", out="a.png"), run(tmp_path / "b.npz", out="b.png")
    np.testing.assert_array_equal(drawn(each), drawn(other))


@pytest.mark.parametrize(
    ("maps", "options", "reason"),
    [
        (np.zeros((7, 7)), ["--words", "a", "b"], "there are 1 maps and 2 words"),
        (np.zeros((2, 3, 4, 5)), [], r"maps must be \[y, x\], \[t, y, x\]"),
        (np.zeros((2, 15)), ["--map-shape", "4"], r"a grid of 4 x 4 does not fill \(2, 15\)"),
        (np.array([["a"]]), [], "maps must be numbers"),
        (np.array([[np.nan, 1.0]]), [], "maps must be finite"),
        (np.array([[{}]], dtype=object), [], "allow_pickle=False"),
        ({"words": []}, [], "hold them under the key maps"),
        ({"maps": [[1, 2], [3]]}, [], r"maps\.json: .*inhomogeneous"),
        ({"maps": [[1.0]], "geometry": {}}, [], "not a geometry, TypeError"),
        (
            {"maps": [[1.0]], "geometry": to_dict(Geometry.identity((5, 7)))},
            [],
            r"image of \(5, 7\) pixels, .* has \(97, 131\); give the same photo",
        ),
        (
            np.ones((7, 7)),
            ["--input-size", "0"],
            "must be N or HEIGHTxWIDTH, each from 1 to 8,000, got '0'",
        ),
        (np.ones((7, 7)), ["--colormap", "mud"], "unknown colormap 'mud'"),
        (np.ones((7, 7)), ["--vmin", "2.0"], "vmin must be below vmax"),
    ],
)
def test_invalid_options_end_with_a_message(
    photo: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    maps: Any,
    options: list[str],
    reason: str,
) -> None:
    path = written(tmp_path, maps)
    assert main(arguments(photo, path, tmp_path / "out", *options)) in (1, 2)
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert re.search(reason, error)


@pytest.mark.parametrize(
    ("photo", "maps", "out", "reason"),
    [
        ("gone.png", "maps.npy", "a.png", "gone.png: no such file"),
        ("photo.png", "gone.npy", "a.png", "gone.npy is not a file of maps"),
        ("photo.png", "photo.png", "a.png", "must be a .npy, .npz or .json file, got photo.png"),
        ("photo.png", "maps.npy", "photo.png", "would overwrite the photo"),
        ("photo.png", "maps.npy", "a.jpg", "must be a .png file or a folder"),
    ],
)
def test_invalid_map_files_are_reported_and_the_photo_is_kept(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    photo: str,
    maps: str,
    out: str,
    reason: str,
) -> None:
    Image.fromarray(PHOTO).save(tmp_path / "photo.png")
    np.save(tmp_path / "maps.npy", hot(1, 1))
    assert main(arguments(tmp_path / photo, tmp_path / maps, tmp_path / out)) == 1
    assert reason in capsys.readouterr().err
    np.testing.assert_array_equal(drawn(tmp_path / "photo.png"), PHOTO)


def test_maps_belong_to_one_photo(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, hot(1, 1))
    words = ["overlay", str(photo), str(photo), "--maps", str(path), "--out", str(tmp_path / "a")]
    assert main(words) == 2
    assert "belong to one photo, got 2" in capsys.readouterr().err


def test_percentiles_clip_the_peak(run: Callable[..., list[Path]]) -> None:
    maps = np.linspace(0, 1, 400).reshape(20, 20).astype(np.float32)
    maps[0, 0] = 90.0
    (path,) = run(maps, "--normalize", "percentile", out="a.png")
    high = float(np.quantile(maps.astype(np.float64), 0.99))
    whole = Geometry.identity((97, 131))
    wanted = expected(maps, whole, vmax=high).astype(int)
    assert np.abs(drawn(path).astype(int) - wanted).max() <= 1


def test_foreign_pictures_are_not_replaced(
    photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keep.png").write_bytes(b"mine")
    command = arguments(photo, written(tmp_path, hot(1, 1)), tmp_path / "keep.png")
    assert main(command) == 1
    assert "keep.png exist already: choose another --out" in capsys.readouterr().err
    assert (tmp_path / "keep.png").read_bytes() == b"mine"
    assert main([*command, "--overwrite"]) == 0
    assert drawn(tmp_path / "keep.png").shape == PHOTO.shape
