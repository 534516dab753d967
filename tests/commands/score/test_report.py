"""Means over images, and their tables."""

from visattn.commands.score.report import mean_scores, sanity_check_table, score_table

ROW = {"method": "rise", "point": 1.0, "difficult": False, "energy": 0.5, "area": 0.25}


def test_missing_values_are_left_out_of_the_means() -> None:
    rows = [
        {**ROW, "insertion": 0.5},
        {**ROW, "point": 0.0, "difficult": True},
        {"method": "rise", "outside_input": True, "insertion": 9.0},
        {"method": "random", "insertion": 0.25},
    ]
    rise = {"point": 0.5, "hard": 0.0, "energy": 0.5, "enrichment": 2.0, "insertion": 0.5}
    random = {"count": 1, "insertion": 0.25}
    assert mean_scores(rows) == {"rise": {"count": 2, **rise}, "random": random}


def test_baselines_are_listed_last_and_empty_columns_are_omitted() -> None:
    results = mean_scores([{**ROW, "method": name} for name in ("random", "gradcam++", "rise")])
    assert score_table(results) == [
        "            point energy enrich",
        "gradcam++   100.0   50.0   2.00",
        "rise        100.0   50.0   2.00",
        "random      100.0   50.0   2.00",
    ]
    del results["rise"]["enrichment"]
    assert score_table(results)[2] == "rise        100.0   50.0      -"


def test_sanity_checks_are_averaged() -> None:
    rows = [
        {"method": name, "randomized": [share, 0.0], "other_class": -0.5}
        for name in ("center", "rise")
        for share in (0.25, 0.75)
    ]
    lines = [line.split() for line in sanity_check_table(rows)]
    assert lines[1] == ["50", "%", "100", "%", "class"]
    assert lines[2:] == [[name, "0.50", "0.00", "-0.50"] for name in ("rise", "center")]
