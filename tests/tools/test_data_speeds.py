"""Reading measured at toy sizes: all ways give the same photos, the figures say what is meant."""

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
    monkeypatch.syspath_prepend(TOOLS)  # as Python has it that runs a script there
    return tool_module("benchmark")


@pytest.fixture
def speeds(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the benchmark of data, made small."""
    made = importlib.import_module("benchmarks.data_speeds")
    for name, value in {"BATCH": 3, "MILLION": 100, "TARS": 5, "WORKERS": (0, 1)}.items():
        monkeypatch.setattr(made, name, value)
    held = {"shards": 2.0, "loose": 3.0, "features": 1.0, "index": 7.0}
    monkeypatch.setattr(made, "data_memory", lambda way, _: held[way])
    return made


def test_each_part_gives_its_figures(
    speeds: Any, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "--rounds", "1", "--threads", "1", "--samples", "7"]
    assert tool.main([*words, "--out", str(tmp_path / "figures.json")]) == 0
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


def test_photos_of_a_folder_are_taken(
    speeds: Any, tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        Image.new("RGB", (40, 30)).save(tmp_path / f"{number}.jpg")
    words = ["data", "--only", "reading", "--rounds", "1", "--photos", str(tmp_path)]
    assert tool.main([*words, "--threads", "1", "--samples", "9"]) == 0
    assert "3 photos, 0 workers, photos/s" in capsys.readouterr().out


def test_ways_that_differ_are_refused(
    speeds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = speeds.loader
    other = tmp_path / "other"

    def mixed_up(way: str, folder: Path, workers: int) -> Any:
        if way == "loose":
            Image.new("RGB", (500, 375), "red").save(folder / "photos" / "0.jpg")
        return loader(way, folder, workers)

    monkeypatch.setattr(speeds, "loader", mixed_up)
    other.mkdir()
    speeds.prepare(other, 3, None)
    with pytest.raises(AssertionError):
        list(speeds.readings(other, 1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data", "--only", "writing"], "no part writing; there are reading, memory, opening"),
        (["data", "--samples", "2"], "samples must be at least 3, a batch; got 2"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: list[str], said: str, speeds: Any, tool: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool.main(words)
    assert said in capsys.readouterr().err
