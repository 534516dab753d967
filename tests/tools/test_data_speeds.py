"""Benchmark of data, at small sizes: all sources give the same photos."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image
from tool_modules import TOOLS, tool_module


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)  # as for a script in this folder
    return tool_module("benchmark")


@pytest.fixture
def speeds(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the benchmark of data, at small sizes."""
    module = importlib.import_module("benchmarks.data_speeds")
    for name, value in {"BATCH": 3, "MILLION": 100, "TARS": 5, "WORKERS": (0, 1)}.items():
        monkeypatch.setattr(module, name, value)
    memory = {"shards": 2.0, "loose": 3.0, "features": 1.0, "index": 7.0}
    monkeypatch.setattr(module, "data_memory", lambda source, _: memory[source])
    return module


def test_each_part_returns_its_figures(
    speeds: Any, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["data", "--rounds", "1", "--threads", "1", "--num-samples", "7"]
    assert tool.main([*arguments, "--out", str(tmp_path / "figures.json")]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    titles = [
        "6 photos, 0 workers, photos/s; loose / ours in seconds: ours ",
        "6 photos, 1 workers, photos/s; loose / ours in seconds: ours ",
        "7 photos, MB that an epoch adds at most; loose / shards: shards 2.000, loose 3.000, feat",
        "100 samples in 5 tars opened, s: ours ",
        "100 samples in 5 tars opened, MB; to the index on disk: ours 7.000, index 0.003; ",
    ]
    assert [line[: len(title)] for line, title in zip(lines, titles, strict=True)] == titles
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures[0]["amounts"]) == {"ours", "loose", "features"}


def test_reads_photos_of_a_folder(
    speeds: Any, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        Image.new("RGB", (40, 30)).save(tmp_path / f"{number}.jpg")
    arguments = ["data", "--only", "reading", "--rounds", "1", "--photos", str(tmp_path)]
    assert tool.main([*arguments, "--threads", "1", "--num-samples", "9"]) == 0
    assert "3 photos, 0 workers, photos/s" in capsys.readouterr().out


def test_differing_sources_raise(
    speeds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = speeds.build_loader
    other = tmp_path / "other"

    def load_other_photo(source: str, folder: Path, workers: int) -> Any:
        if source == "loose":
            Image.new("RGB", (500, 375), "red").save(folder / "photos" / "0.jpg")
        return loader(source, folder, workers)

    monkeypatch.setattr(speeds, "build_loader", load_other_photo)
    other.mkdir()
    speeds.prepare(other, 3, None)
    with pytest.raises(AssertionError):
        list(speeds.measure_reading(other, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["data", "--only", "writing"],
            "there is no part writing; choose from reading, memory, opening",
        ),
        (["data", "--num-samples", "2"], "--num-samples must be at least 3, a batch; got 2"),
    ],
)
def test_usage_errors_are_reported(
    arguments: list[str],
    message: str,
    speeds: Any,
    tool: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main(arguments)
    assert message in capsys.readouterr().err
