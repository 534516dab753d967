"""Planted shortcuts: where they are drawn, what models learn of them, and how audits are rated."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tool_modules import TOOLS

from visattn.pipelines.audit.report import AuditReport
from visattn.results.audit import AuditContent, Finding, Status

NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("audit_plants")


def noise(tool: Any, count: int) -> Any:
    """Photos of noise, `count` of each class."""
    random = np.random.default_rng(0)
    pixels = random.integers(40, 100, (count * len(NAMES), 64, 64, 3)).astype(np.uint8)
    return tool.PlantedSet(pixels, np.repeat(np.arange(len(NAMES)), count), NAMES)


@pytest.mark.parametrize("number", range(4))
def test_plants_lie_where_their_kind_says(tool: Any, number: int) -> None:
    photos = noise(tool, 40)
    planted = tool.with_plants(photos, number, 1)
    assert sorted(planted.kinds.values()) == sorted(tool.KINDS)
    for label in range(len(NAMES)):
        own = planted.changed[photos.labels == label]
        has_plant = own.any((1, 2))
        kind = planted.kinds.get(label)
        if kind is None:
            assert not has_plant.any()
            continue
        assert 0.4 <= has_plant.mean() <= 0.8
        share = own[has_plant].mean(0)  # of the photos with the plant, in which a pixel is changed
        if kind == "frame":
            assert share[[0, -1]].min() > 0.9
            assert share[8:-8, 8:-8].max() == 0
        elif kind == "tint":
            assert share.min() > 0.9
        elif kind == "watermark":  # one place
            assert set(share.round().flat) == {0.0, 1.0}
            assert share.mean() == pytest.approx(share.round().mean(), abs=0.01)
        else:
            assert 0 < share.max() < 0.7


def test_plants_of_any_class_say_nothing_of_it(tool: Any) -> None:
    photos = noise(tool, 40)
    has_plant = tool.with_plants(photos, 3, 0, anywhere=True).changed.any((1, 2))
    shares = [has_plant[photos.labels == label].mean() for label in range(len(NAMES))]
    assert all(0.4 <= share <= 0.8 for share in shares)


def test_models_use_the_plants_that_tell_their_class(tool: Any, tmp_path: Path) -> None:
    """The use is measured on photos without plants, by drawing them: no audit is involved.

    Nothing but the plants tells the classes of noise.
    """
    photos = noise(tool, 40)
    [(label, draw)] = [
        (label, draw) for label, (kind, draw) in tool.plants(1, NAMES, 64).items()
        if kind == "frame"
    ]  # fmt: skip
    uses: dict[str, float] = {}
    for kind in ("planted", "ignoring"):
        train = tool.with_plants(photos, 1, 0, anywhere=kind == "ignoring")
        model = tool.trained(train, tmp_path / "none", 1, flowers=False, steps=50)
        uses[kind] = tool.use_of(model, photos, label, draw)
    assert uses["planted"] > 1
    assert abs(uses["ignoring"]) < uses["planted"] / 2


def finding(
    name: str, class_name: str, status: Status, photos: Sequence[int], place: tuple[float, float]
) -> Finding:
    keys = tuple(f"{number:05d}" for number in photos)
    details = {"outside": 1.0}
    places = (place,) * len(keys)
    return Finding("patches", name, class_name, status, photos=keys, details=details, places=places)


def test_candidates_count_for_a_plant_if_their_crops_show_it(tool: Any) -> None:
    photos = noise(tool, 10)
    planted = tool.with_plants(photos, 0, 1)
    [label] = [label for label, kind in planted.kinds.items() if kind == "frame"]
    own = [*range(10 * label, 10 * label + 10)]
    has_plant = [number for number in own if planted.changed[number].any()]
    name, other = NAMES[label], NAMES[(label + 1) % 5]
    findings = [
        finding("patches 1", name, "confirmed", has_plant, (0.05, 0.5)),
        finding("patches 1", other, "confirmed", [10 * ((label + 1) % 5)], (0.5, 0.5)),
        finding("patches 2", name, "no effect", has_plant, (0.5, 0.5)),  # the frame is not there
    ]
    content = AuditContent("net", {}, {}, None, {}, {}, findings)
    report = AuditReport(content, [], np.zeros((50, 8, 8)))
    *rows, rest = tool.rates(report, planted)
    [frame] = [row for row in rows if row["plant"] == "frame"]
    assert (frame["candidates"], frame["on top"]) == (["confirmed"], True)
    assert [row["candidates"] for row in rows if row["plant"] != "frame"] == [[]] * 3
    assert (rest["others"], rest["others confirmed"], rest["confirmed outside"]) == (2, 1, 1)
