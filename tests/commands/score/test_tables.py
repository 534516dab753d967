"""Means over images, and how they are printed."""

import pytest

from visattn.commands.score.tables import check_table, summaries, table

ROW = {"method": "rise", "point": 1.0, "difficult": False, "energy": 0.5, "area": 0.25}


def test_what_was_not_seen_does_not_count_and_what_is_missing_is_no_zero() -> None:
    rows = [
        {**ROW, "insertion": 0.5},
        {**ROW, "point": 0.0, "difficult": True},
        {"method": "rise", "unseen": True, "insertion": 9.0},
        {"method": "random", "insertion": 0.25},
    ]
    assert summaries(rows) == {
        "rise": {
            "count": 2,
            "point": 0.5,
            "hard": 0.0,
            "energy": 0.5,
            "lift": 2.0,
            "insertion": 0.5,
        },
        "random": {"count": 1, "insertion": 0.25},
    }


def test_baselines_stand_below_and_what_nobody_has_is_no_column() -> None:
    found = summaries([{**ROW, "method": name} for name in ("random", "gradcam++", "rise")])
    assert table(found, ["random"]) == [
        "            point energy   lift",
        "gradcam++   100.0   50.0   2.00",
        "rise        100.0   50.0   2.00",
        "random      100.0   50.0   2.00",
    ]
    del found["rise"]["lift"]
    assert table(found, ["random"])[2] == "rise        100.0   50.0      -"


def test_checks_are_means_too() -> None:
    rows = [
        {"method": name, "randomized": [share, 0.0], "other_class": -0.5}
        for name in ("edges", "rise")
        for share in (0.25, 0.75)
    ]
    lines = check_table(rows, ["edges"])
    assert [line.split() for line in lines[2:]] == [
        ["rise", "0.50", "0.00", "-0.50"],
        ["edges", "0.50", "0.00", "-0.50"],
    ]
    assert lines[1].split() == ["50", "%", "100", "%", "class"]
    assert check_table([], []) == []


def test_a_single_value_is_its_own_mean() -> None:
    assert summaries([ROW])["rise"]["lift"] == pytest.approx(2)
