"""Map files of other programs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from visattn.results import records
from visattn.results.records import read_saved_maps, reshape_maps

MAPS = np.random.default_rng(2).random((2, 3, 5))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {ending: tmp_path / f"maps.{ending}" for ending in ("npy", "npz", "json")}
    np.save(paths["npy"], MAPS)
    np.savez(paths["npz"], maps=MAPS, other=np.zeros(3))
    paths["json"].write_text(
        json.dumps({"maps": MAPS.tolist(), "tokens": ["a", 7], "gates": [0, 1]})
    )
    return paths


@pytest.mark.parametrize("ending", ["npy", "npz", "json"])
def test_every_file_type_has_its_maps(files: dict[str, Path], ending: str) -> None:
    np.testing.assert_array_equal(read_saved_maps(files[ending]).maps, MAPS)


def test_json_has_words_gates_and_geometry(files: dict[str, Path]) -> None:
    read = read_saved_maps(files["json"])
    assert (read.words, read.gates, read.geometry) == (["a", "7"], [0, 1], None)


def test_rows_are_reshaped_to_their_grid() -> None:
    rows = MAPS.reshape(2, 15)
    np.testing.assert_array_equal(reshape_maps(rows, grid=(3, 5)), MAPS.astype(np.float32))
    square = np.arange(32.0).reshape(2, 16)
    np.testing.assert_array_equal(reshape_maps(square, words=2), square.reshape(2, 4, 4))
    assert reshape_maps(square).shape == (1, 2, 16)  # without words, it is one map


@pytest.mark.parametrize(
    ("maps", "grid", "reason"),
    [
        (np.array([["a"]]), None, "must be numbers"),
        (np.zeros((2, 0)), None, "must be numbers"),
        (np.zeros((2, 3, 4, 5)), None, r"must be \[y, x\]"),
        (np.zeros((2, 15)), (4, 4), r"4 x 4 does not fill \(2, 15\)"),
        (np.array([[np.inf]]), None, "must be finite"),
    ],
)
def test_invalid_maps_are_refused(maps: np.ndarray, grid: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        reshape_maps(maps, grid=grid)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.npy", b"", "a.npy: "),
        ("a.npz", b"PK\x03\x04", "a.npz: "),
        ("a.json", b"{", "a.json: "),
        ("a.json", b'{"words": []}', "under the key maps"),
        ("a.txt", b"1", "must be a .npy, .npz or .json file, got a.txt"),
    ],
)
def test_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        read_saved_maps(tmp_path / name)


def test_number_and_size_are_limited_before_memory_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="at most 1,000 maps can be drawn, got 1,001"):
        reshape_maps(np.zeros((1001, 2, 3)))
    with pytest.raises(ValueError, match="at most 1,000 maps"):
        reshape_maps(np.zeros((1001, 6)), grid=(2, 3))
    assert len(reshape_maps(np.zeros((1000, 2, 3)))) == 1000
    monkeypatch.setattr(records, "MAX_CELLS", 29)
    np.savez_compressed(tmp_path / "a.npz", maps=MAPS)
    with pytest.raises(ValueError, match=r"a.npz: holds 30 values \(2, 3, 5\), more than 29"):
        read_saved_maps(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="at most 29 cells in all"):
        reshape_maps(MAPS)
    monkeypatch.setattr(records, "MAX_CELLS", 30)
    assert read_saved_maps(tmp_path / "a.npz").maps.shape == (2, 3, 5)
