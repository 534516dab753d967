"""Planted shortcuts: where they are drawn, what models learn of them, and how audits are rated."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tool_modules import TOOLS
from torch import Tensor, nn

from visattn.images.reader import LoadedImage
from visattn.pipelines.audit.report import AuditReport
from visattn.pipelines.audit.stamps import Stamp
from visattn.results.audit import AuditContent, Effect, Finding, Status

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


class Bright(nn.Module):
    """The second class is the brightness of the middle; the first is what is left."""

    def forward(self, images: Tensor) -> Tensor:
        middle = images[:, :, 28:36, 28:36].mean((1, 2, 3))
        return torch.stack([torch.zeros_like(middle), 4 * middle], 1)


def test_what_only_covers_the_object_is_not_used_beside_blur(tool: Any) -> None:
    pixels = np.full((24, 64, 64, 3), 40, np.uint8)
    pixels[:, 28:36, 28:36] = 250
    photos = tool.PlantedSet(pixels, np.repeat([0, 1], 12), ("a", "b"))

    def covered(image: np.ndarray, _: np.random.Generator) -> np.ndarray:
        drawn = image.copy()
        drawn[26:38, 26:38] = 60
        return drawn

    plain, beside = (tool.use_of(Bright(), photos, 0, covered, beside_blur=each)
                     for each in (False, True))  # fmt: skip
    assert plain > 3
    assert abs(beside) < plain / 2


class Reacting(nn.Module):
    """Its audit has this effect of one stamp on one class, and none of the others."""

    def __init__(self, effects: dict[tuple[str, str], float]) -> None:
        super().__init__()
        self.effects = effects

    def forward(self, images: Tensor) -> Tensor:
        return torch.zeros(len(images), len(NAMES))


def test_plants_among_the_stamps_are_rated_beyond_references(
    tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = noise(tool, 40)
    kinds = {kind: NAMES[label] for label, (kind, _) in tool.plants(1, NAMES, 64).items()}
    tested: list[int] = []

    def audited(model: Reacting, few: Any, stamps: Sequence[Stamp]) -> AuditReport:
        tested.append(len(few.labels))
        random = np.random.default_rng(len(tested))
        findings: list[Finding] = []
        for stamp in stamps:
            for name in NAMES:
                value = model.effects.get((stamp.name, name), 0.0) + 0.1 * random.normal()
                effect = Effect(value, value - 0.1, value + 0.1, 0.0, 0.01, 64)
                findings.append(Finding("stamp", stamp.name, name, "reaction", effect))
        return AuditReport(AuditContent("net", {}, {}, None, {}, {}, findings), [{"image": "a"}])

    monkeypatch.setattr(tool, "audited", audited)
    strong = {
        ("own frame", kinds["frame"]): 5.0,
        ("bars above and below", kinds["frame"]): 5.0,
        ("own tag", kinds["frame"]): 5.0,  # of another class
        ("tag, red", kinds["frame"]): 5.0,  # of another kind
    }
    models = [Reacting(strong), *(Reacting({}) for _ in range(3))]
    rows = {row["plant"]: row for row in tool.own_rates(models[0], models[1:], photos, 1)}
    assert tested == [16 * len(NAMES)] * 4
    assert {kind: row["own"] == "confirmed" for kind, row in rows.items()} == {
        kind: kind == "frame" for kind in tool.KINDS
    }
    assert {kind: row["of its kind"] for kind, row in rows.items()} == {
        kind: ["bars above and below"] * (kind == "frame") for kind in tool.KINDS
    }
    again = {row["plant"]: row for row in tool.own_rates(models[0], models[:1] * 3, photos, 1)}
    assert {row["own"] for row in again.values()} <= {"present, not used", "not confirmed"}


def test_stamps_of_plants_draw_them(tool: Any) -> None:
    pixels = noise(tool, 1).pixels[0]
    draws = tool.plants(1, NAMES, 64)
    for stamp, (kind, draw) in zip(tool.own_stamps(draws), draws.values(), strict=True):
        stamped, control = stamp.apply(
            LoadedImage(pixels), (0, 0, 64, 64), np.random.default_rng(3)
        )
        drawn = draw(pixels, np.random.default_rng(3))
        assert stamp.name == f"own {kind}"
        assert (stamped.pixels == drawn).all()
        assert (control.pixels == pixels).all() == (kind == "tint")


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
        # The frame is not there.
        finding("patches 2", name, "present, not used", has_plant, (0.5, 0.5)),
    ]
    content = AuditContent("net", {}, {}, None, {}, {}, findings)
    report = AuditReport(content, [], np.zeros((50, 8, 8)))
    *rows, rest = tool.rates(report, planted)
    [frame] = [row for row in rows if row["plant"] == "frame"]
    assert (frame["candidates"], frame["on top"]) == (["confirmed"], True)
    assert [row["candidates"] for row in rows if row["plant"] != "frame"] == [[]] * 3
    assert (rest["others"], rest["others confirmed"], rest["confirmed outside"]) == (2, 1, 1)
