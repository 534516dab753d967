"""Comparison of two runs of map scores: pairs, intervals and the table."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.compare_map_scores import Pair, interval, main, pairs_of, table

Capsys = pytest.CaptureFixture[str]


def row(image: str, method: str, point: float, energy: float, area: float) -> dict[str, Any]:
    return {
        "kind": "score", "image": image, "category": "ant", "method": method,
        "point_box": point, "energy_box": energy, "area_box": area,
    }  # fmt: skip


def write(folder: Path, align: str, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    lines = [{"settings": {"align": align, "seed": 3}}, *rows]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Three images, one outside of the input; the second run hits the small object too."""
    outside = {"kind": "score", "image": "c", "category": None, "method": "gradcam"}
    outside["outside_input"] = True
    first = [row("a", "gradcam", 0, 0.1, 0.05), row("b", "gradcam", 1, 0.5, 0.4), outside]
    second = [row("a", "gradcam", 1, 0.2, 0.05), row("b", "gradcam", 1, 0.4, 0.4), outside]
    control = row("a", "center", 1, 0.3, 0.05)
    return (
        write(tmp_path / "edges", "edges", [*first, control]),
        write(tmp_path / "field", "receptive_field", [*second, control]),
    )


def test_table_matches_hand_computation(runs: tuple[Path, Path], capsys: Capsys) -> None:
    assert main(["--first", str(runs[0]), "--second", str(runs[1])]) == 0
    head, _, everything, small, large, _, note = capsys.readouterr().out.splitlines()
    assert head.startswith("| method | boxes cover | maps | in box, %: first | second | difference")
    cells = [cell.strip() for cell in everything.split("|")]
    assert cells[1:6] == ["gradcam", "all", "2", "50.0", "100.0"]
    assert cells[6] == "+50.0 (+0.0 to +100.0)"
    assert cells[7:10] == ["30.0", "30.0", "+0.0 (-10.0 to +10.0)"]
    assert small == (
        "| gradcam | 0 to 0.1 | 1 | 0.0 | 100.0 | +100.0 (+100.0 to +100.0) | "
        "10.0 | 20.0 | +10.0 (+10.0 to +10.0) |"
    )
    assert large.startswith("| gradcam | 0.3 to 1 | 1 | 100.0 | 100.0 | +0.0 ")
    assert note == "settings that differ: align edges -> receptive_field"


def test_maps_of_an_image_are_drawn_together() -> None:
    """Ten equal maps of each image tell no more than one."""
    scores = [{"point_box": value} for value in (0.0, 1.0)]
    pairs = [Pair(f"image {index}", 0.2, scores[0], scores[index % 4 == 0]) for index in range(40)]
    assert interval(pairs * 10, "point_box") == pytest.approx(interval(pairs, "point_box"))
    low, high = interval(pairs, "point_box")
    assert 10 < low < 25 < high < 41  # 25 +- 1.96 * 100 * sqrt(0.25 * 0.75 / 40)


def test_several_pairs_of_runs_have_means_and_deviations(runs: tuple[Path, Path]) -> None:
    pairs = [pairs_of(runs[0], runs[1])[0], pairs_of(runs[0], runs[0])[0]]
    _, _, everything, *_ = table(pairs)
    cells = [cell.strip() for cell in everything.split("|")]
    assert cells[3:7] == ["4", "50.0 ± 0.0", "75.0 ± 35.4", "+25.0 ± 35.4"]


def test_runs_over_other_maps_are_refused(runs: tuple[Path, Path], tmp_path: Path) -> None:
    other = write(tmp_path / "other", "edges", [row("a", "gradcam", 0, 0.1, 0.05)])
    with pytest.raises(ValueError, match="must score the same maps, but 2 are in one of them only"):
        main(["--first", str(runs[0]), "--second", str(other)])
    empty = write(tmp_path / "empty", "edges", [{"kind": "score", "image": "a"}])
    with pytest.raises(ValueError, match="must hold localization scores"):
        main(["--first", str(empty), "--second", str(other)])
    with pytest.raises(SystemExit, match="2"):
        main(["--first", str(other), "--second", str(other), str(other)])
