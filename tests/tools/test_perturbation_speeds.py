"""Benchmarks of RISE, occlusion, removal and the index, on tiny photos: equal results."""

import importlib
from types import ModuleType
from typing import Any

import pytest
from tool_modules import TOOLS


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    speeds = importlib.import_module("benchmarks.perturbation_speeds")
    for name, value in {
        "NETWORKS": ("test_efficientnet",),
        "SIDE": 32,
        "WINDOWS": (16, 8),
        "STEPS": 3,
    }.items():
        monkeypatch.setattr(speeds, name, value)
    return speeds


def test_maps_and_areas_equal_those_of_plain_code(speeds: Any) -> None:
    figures = [*speeds.perturbation_figures(rounds=1), speeds.removal_figure(rounds=1)]
    assert [figure.title.split(",")[0] for figure in figures] == [
        "RISE",
        "occlusion",
        "occlusion",
        "insertion and deletion",
    ]


def test_a_map_that_differs_ends_the_benchmark(
    speeds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = speeds.rise
    monkeypatch.setattr(speeds, "rise", lambda *args, **options: 1.1 * usual(*args, **options))
    with pytest.raises(AssertionError):
        speeds.rise_figure("test_efficientnet", 1)


def test_the_index_of_many_photos_has_pages_of_limited_size(speeds: Any) -> None:
    bulk = importlib.import_module("benchmarks.bulk_speeds")
    figure = bulk.index_figure(photos=300)
    assert figure.amounts["pages"] == 2
    assert 1 < figure.amounts["largest, MB"] < 5
