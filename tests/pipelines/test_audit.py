"""Audits of a hand-made classifier on drawn photos with planted artefacts."""

import base64
import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import planted_photos as planted
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import visattn as va
from visattn.geometry import Geometry
from visattn.geometry.placement import GridPlacement
from visattn.pipelines.audit.candidates import MeasuredCandidate, measured_again
from visattn.pipelines.audit.cells import REGION_AREAS, CellGrid
from visattn.pipelines.audit.clusters import Candidate, Patches, parts_of_one
from visattn.pipelines.audit.counterfactuals import PASTED
from visattn.pipelines.audit.statistics import crossed_interval, holm, sign_flip_p, within_class_p
from visattn.results.audit import AuditContent, Effect


@cache
def report(plant: str, use: float = 0.0, stamps: str = "") -> va.AuditReport:
    photos, labels = planted.photos(plant)
    model = planted.ColorNet(**({plant: use} if use else {})).eval()
    masks = [planted.mask(label, index % planted.COUNT) for index, label in enumerate(labels)]
    return audited(model, photos, labels, masks=masks, stamps="default" if stamps else [])


def audited(model: nn.Module, photos: list, labels: list[str], **options: Any) -> va.AuditReport:
    known = {"class_names": planted.CLASSES, "transform": planted.transform(), "img_size": 64}
    return va.audit(model, photos, labels, **{**known, **options})


def patches(audit: va.AuditReport, status: str) -> list[va.Finding]:
    return [each for each in audit.findings if (each.kind, each.status) == ("patches", status)]


def artefacts(audit: va.AuditReport) -> list[va.Finding]:
    """Confirmed patches that do not lie on objects."""
    return [each for each in patches(audit, "confirmed") if each.details["outside"] > 0.5]


def on_plant(finding: va.Finding, color: tuple[int, int, int]) -> bool:
    """Whether the photos of a candidate have pixels of this color; clean ones have none."""
    photos, _ = planted.photos({planted.TAG: "tag", planted.FRAME: "frame"}[color])
    chosen = [photos[int(name.split()[1])] for name in finding.photos]
    return bool(np.mean([(pixels == color).all(2).any() for pixels in chosen]) > 0.9)


@pytest.mark.parametrize(
    ("plant", "use", "color"), [("tag", 160.0, planted.TAG), ("frame", 20.0, planted.FRAME)]
)
def test_local_plant_that_is_used_ranks_first_and_is_confirmed(
    plant: str, use: float, color: tuple[int, int, int]
) -> None:
    audit = report(plant, use)
    [finding] = artefacts(audit)
    assert (finding.class_name, finding.effect and finding.effect.low > 0.5) == ("blue", True)
    assert on_plant(finding, color)
    beside = [each for each in audit.findings if each.details["outside"] > 0.5]
    assert max(beside, key=lambda each: each.details["score"]) is finding


def test_a_frame_is_pasted_as_a_whole() -> None:
    """The effect is most of that of drawing the frame, which a few cells of it have not."""
    [finding] = artefacts(report("frame", 20.0))
    model = planted.ColorNet(frame=20.0).eval()
    odds: list[float] = []
    for plant in ("", "frame"):
        drawn = [planted.draw(name, n, plant) for name in ("green", "gray") for n in range(30)]
        inputs = torch.from_numpy(np.stack(drawn)).permute(0, 3, 1, 2) / 255
        shares = model(inputs).detach().double().softmax(1)[:, 0]
        odds.append(float(torch.logit(shares).mean()))
    assert finding.effect
    assert 0.9 < finding.effect.value / (odds[1] - odds[0]) < 1.1


def test_of_a_frame_whole_photos_are_shown_with_a_line_around_it() -> None:
    [finding] = artefacts(report("frame", 20.0))
    for crop in finding.crops:
        content = base64.b64decode(crop.partition(",")[2])
        shown = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
        assert shown.shape == (112, 112, 3)
        border = [shown[:10], shown[-10:], shown[:, :10], shown[:, -10:]]
        assert all(np.abs(part - planted.FRAME).mean() < 40 for part in border)
    [tag] = artefacts(report("tag", 160.0))  # at any place: what surrounds it
    content = base64.b64decode(tag.crops[0].partition(",")[2])
    assert max(Image.open(io.BytesIO(content)).size) < 64


def test_plant_without_an_effect_is_present_and_not_used() -> None:
    audit = report("tag", 4.0)
    assert artefacts(audit) == []
    present = [each for each in audit.findings if on_plant(each, planted.TAG)]
    assert {each.status for each in present} == {"present, not used"}
    page = audit.files()["report.html"].decode()
    assert page.count(">present, not used<") == len(patches(audit, "present, not used"))


def test_undecided_candidates_are_tested_with_more_photos() -> None:
    """A group with an interval of 0.0 to 0.8, and of 0.1 to 0.7 with more; the minimum is 0.7."""
    photos, labels = planted.photos("tag")
    model = planted.ColorNet(tag=160.0).eval()
    masks = [planted.mask(label, index % planted.COUNT) for index, label in enumerate(labels)]
    first, second = (
        {
            each.details["score"]: each
            for each in audited(
                model, photos, labels, masks=masks, stamps=[], min_effect=0.7, budget=budget
            ).findings
        }
        for budget in (4600, 20_000)
    )
    [changed] = [score for score in first if first[score].status != second[score].status]
    few, many = first[changed], second[changed]
    assert (few.status, many.status) == ("not confirmed", "present, not used")
    assert few.effect
    assert many.effect
    assert few.effect.images == 72
    assert many.effect.images > 2 * 72
    assert many.effect.high - many.effect.low < 0.85 * (few.effect.high - few.effect.low)


@pytest.mark.parametrize(("low", "high", "is_taken"), [(-0.2, 0.4, True), (0.2, 0.8, False),
                                                      (0.6, 1.2, False)])  # fmt: skip
def test_more_photos_show_that_a_candidate_is_not_used_and_confirm_nothing(
    low: float, high: float, is_taken: bool
) -> None:
    first = Effect(0.6, 0.0, 1.2, 0.1, 0.02, 72)
    second = replace(first, low=low, high=high, images=216)
    editor = SimpleNamespace(test=lambda *_: {PASTED: second})
    evidence = cast("Any", SimpleNamespace(min_effect=0.5, editor=editor))
    known = MeasuredCandidate(cast("Any", None), None, {PASTED: first})
    again = measured_again(evidence, known, cast("Any", None), []).effects or {}
    assert again[PASTED] == (second if is_taken else first)
    decided = replace(known, effects={PASTED: replace(first, low=0.6)})
    assert measured_again(evidence, decided, cast("Any", None), []) is decided


def groups_of(*cells: list[list[tuple[int, int]]]) -> tuple[list[Candidate], Patches]:
    """Candidates of one class, each with one look: its cells on photo 0, 1, ..."""
    photos, places, looks = [], [], []
    for look, own in enumerate(cells):
        for photo, on_photo in enumerate(own):
            photos += [photo] * len(on_photo)
            places += on_photo
            looks += [look] * len(on_photo)
    vectors = np.eye(len(cells))
    number = len(photos)
    candidates = [
        Candidate(0, vectors[look][None], np.array([0.9]), 0.9, 1.0, 0.5,
                  tuple(n for n, on_photo in enumerate(own) if on_photo), 1.0, 1.0)
        for look, own in enumerate(cells)
    ]  # fmt: skip
    return candidates, Patches(
        np.array(photos), np.array(places), vectors[looks], np.zeros(number, int),
        np.zeros(number, bool), np.ones(number),
    )  # fmt: skip


AT = [(number % 5, 2 + number % 4) for number in range(10)]  # cells of a thing at any place


@pytest.mark.parametrize(
    ("other", "is_one"),
    [
        ([[(y, x + 2)] for y, x in AT], True),  # the other end of a tag
        ([[(y, x + 2)] for y, x in AT[:3]], True),  # of a tag that is often seen as one patch
        ([[(y, x + 5)] for y, x in AT], False),  # something else of these photos
        ([[(y, x + 2), (y, x + 6), (y + 4, x)] for y, x in AT], False),  # an object beside the tag
        ([[] if n < 9 else [(y, x + 2)] for n, (y, x) in enumerate(AT)] + [[(0, 0)]] * 9, False),
    ],
)
def test_candidates_are_one_if_their_patches_lie_beside_each_other(
    other: list[list[tuple[int, int]]], is_one: bool
) -> None:
    candidates, all_patches = groups_of([[at] for at in AT], other)
    for order in (candidates, candidates[::-1]):
        assert parts_of_one(order, all_patches) == ([[0, 1]] if is_one else [[0], [1]])
    on_object = replace(all_patches, on_objects=all_patches.vectors[:, 1] == 1)
    assert parts_of_one(candidates, on_object) == [[0], [1]]  # a part of an object beside a tag
    of_two = [candidates[0], replace(candidates[1], class_index=1)]
    assert parts_of_one(of_two, all_patches) == [[0], [1]]


def test_a_thing_of_several_candidates_is_listed_once() -> None:
    """All of its tests count, and its photos are those of all its parts."""
    audit = report("frame", 20.0)
    several = [each for each in audit.findings if each.details["parts"] > 1]
    assert several
    for each in several:
        assert len({*each.photos}) == len(each.photos) == len(each.places)
        assert len(each.photos) > 10  # of the least candidate
        assert 0 < (each.share or 0) <= 1
    tests = sum(each.details["tests"] for each in audit.findings)
    assert audit.content.tests["patches"] == tests > len(audit.findings)
    page = audit.files()["report.html"].decode()
    assert page.count("groups of patches that lie beside each other") == len(several)


def test_crops_of_what_lies_beside_objects_show_none() -> None:
    """This candidate has patches of both kinds, and is tested by those beside objects."""
    [finding] = artefacts(report("tag", 160.0))
    for name, (x, y) in [*zip(finding.photos, finding.places, strict=True)][:6]:
        label, number = divmod(int(name.split()[1]), planted.COUNT)
        # Crops end at the margin of the photo, where their middle is not that of the cell.
        row, column = (0 if at < 0.15 else 7 if at > 0.85 else int(at * 8) for at in (y, x))
        around = planted.mask(planted.CLASSES[label], number).reshape(8, 8, 8, 8).mean((1, 3))
        assert around[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2].max() < 0.05


def stamps(audit: va.AuditReport, status: str) -> set[tuple[str, str]]:
    own = (each for each in audit.findings if (each.kind, each.status) == ("stamp", status))
    return {(each.name, each.class_name) for each in own}


def test_a_tint_is_seen_by_stamps_and_not_listed_as_patches() -> None:
    """Reactions of the hand-made colors of the classes are those of the other model, too."""
    audit = report("tint", 60.0, "default")
    assert artefacts(audit) == []
    assert ("tint, warm", "blue") in stamps(audit, "reaction")
    photos, labels = planted.photos("tint")
    others = [audited(planted.ColorNet(tint=use).eval(), photos, labels) for use in (0.0, 3.0)]
    judged = audit.with_references(others)
    assert {("tint, warm", "blue")} <= stamps(judged, "confirmed") < stamps(audit, "reaction")
    between = audited(planted.ColorNet(tint=1.0).eval(), photos, labels)
    assert stamps(between.with_references(others), "confirmed") == set()


def stamp_audit(values: np.ndarray) -> va.AuditReport:
    """An audit with stamps of these effects."""
    findings = [
        va.Finding("stamp", f"stamp {number}", "a", "reaction",
                   Effect(value, value - 0.3, value + 0.3, 0.0, 0.01, 64))
        for number, value in enumerate(values.tolist())
    ]  # fmt: skip
    return va.AuditReport(AuditContent("net", {}, {}, None, {}, {}, findings), [{"image": "a"}])


@pytest.mark.parametrize("references", [2, 3, 5])
def test_models_like_the_references_have_no_confirmed_stamp(references: int) -> None:
    """Stamps differ in how far models differ: by 0.2 to 3 nats, as measured for small CNNs."""
    wrong, confirmed = 0, 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        spread = np.exp(random.normal(-0.4, 0.7, 150))
        own, *others = random.normal(size=(references + 1, 150)) * spread
        known = [stamp_audit(values) for values in others]
        wrong += bool(stamps(stamp_audit(own).with_references(known), "confirmed"))
        own[:8] += 30 * spread[:8]
        confirmed += len(stamps(stamp_audit(own).with_references(known), "confirmed")) >= 7
    assert wrong / 60 <= 0.12
    assert confirmed / 60 >= (0.9 if references > 2 else 0.5)


@pytest.mark.parametrize("of_models", [1.0, 0.05])
@pytest.mark.parametrize("references", [2, 5])
def test_intervals_beyond_references_hold_the_true_difference(
    references: int, of_models: float
) -> None:
    """95 % of them do, whatever part of it is the spread of models and whatever that of photos."""
    hits: list[bool] = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        spread = of_models * np.exp(random.normal(-0.4, 0.7, 150))
        own, *others = random.normal(size=(references + 1, 150)) * spread
        own += 3.0 + 0.15 * random.normal(size=150)  # the error of the photos in `stamp_audit`
        audit = stamp_audit(own).with_references([stamp_audit(values) for values in others])
        effects = [each.effect for each in audit.findings if each.effect]
        hits += [each.low <= 3.0 <= each.high for each in effects]
    assert 0.92 <= np.mean(hits) <= 0.999


def test_one_reference_tells_nothing_of_chance() -> None:
    audit = stamp_audit(np.zeros(3))
    with pytest.raises(ValueError, match="two audits at least"):
        audit.with_references([audit])


def test_stamps_that_no_class_has_photos_for_are_not_put_on() -> None:
    """They took all the time of an audit of photos of many classes, and said nothing."""
    photos, labels = planted.photos("")
    few = [index for index in range(len(labels)) if index % planted.COUNT < 8]
    chosen = [photos[index] for index in few], [labels[index] for index in few]
    audit = audited(planted.ColorNet().eval(), *chosen, stamps="default")
    assert (audit.content.tests["stamps"], audit.content.settings["edited_images"]) == (0, 0)
    note = "stamps were not tested: 10 photos at least of a predicted class are needed"
    assert any(each.startswith(note) for each in audit.content.notes)


def test_a_model_that_uses_objects_alone_has_no_confirmed_artefact() -> None:
    assert artefacts(report("")) == []


def test_order_and_batch_size_change_nothing(tmp_path: Path) -> None:
    files = sorted(planted.write_photos(tmp_path, "tag").rglob("*.png"))
    audits: list[va.AuditReport] = []
    for order, batch_size in ((files, 16), (files[::-1], 7)):
        labels = [file.parent.name for file in order]
        model = planted.ColorNet(tag=160.0).eval()
        audits.append(audited(model, order, labels, stamps=[], batch_size=batch_size))
    first, second = audits
    assert [(each.name, each.status, each.photos) for each in first.findings] == [
        (each.name, each.status, each.photos) for each in second.findings
    ]
    effects = [[each.effect.value for each in audit.findings if each.effect] for audit in audits]
    assert effects[0] == pytest.approx(effects[1], abs=1e-4)
    assert np.allclose(first.maps, second.maps, atol=1e-6)


class Uniform(nn.Module):
    """Nearly the same evidence in all cells: the mean of 1 + x / 10,000."""

    def __init__(self) -> None:
        super().__init__()
        patches = nn.Conv2d(3, 4, 8, stride=8)
        self.features = nn.Sequential(patches, nn.ReLU())
        self.head = nn.Linear(4, 2)
        with torch.no_grad():
            patches.weight.fill_(1e-5)
            nn.init.ones_(cast("Tensor", patches.bias))
            self.head.weight.copy_(torch.tensor([[1.0] * 4, [0.0] * 4]))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))


def test_uniform_map_has_enrichment_one_also_beside_padding() -> None:
    """Photos twice as wide as high have padding above and below, which gets no share."""
    photos = [np.full((32, 64, 3), 20 * index, np.uint8) for index in range(6)]
    masks = [np.zeros((32, 64), bool) for _ in photos]
    for mask in masks:
        mask[:13, :29] = True
    audit = va.audit(
        Uniform().eval(), photos, [0] * 6, class_names=("a", "b"), img_size=64, resize_mode="pad",
        masks=masks, stamps=[], layer="features",
    )  # fmt: skip
    for row in audit.content.regions:
        assert row.enrichment == pytest.approx(1, abs=1e-3), row
    shares = {row.region: row.area for row in audit.content.regions}
    assert shares == pytest.approx({**REGION_AREAS, "objects": 13 * 29 / (32 * 64)}, abs=1e-6)
    assert np.isnan(audit.maps[:, :2]).all()
    assert np.isnan(audit.maps[:, -2:]).all()
    assert np.nansum(audit.maps, (1, 2)) == pytest.approx(np.ones(6))


def test_cells_follow_a_crop_to_the_photo() -> None:
    geometry = Geometry.identity((40, 80)).cropped(0, 20, (40, 40)).resized((32, 32))
    cells = CellGrid.of(None, (4, 4), geometry)
    assert cells.boxes[0].tolist() == [20, 0, 30, 10]
    left = np.zeros((40, 80), bool)
    left[:, :25] = True
    assert cells.mask_fractions(left)[:, 0] == pytest.approx(np.full(4, 0.5))


def test_cells_in_the_middle_are_visible_beside_wide_ones_at_the_edge() -> None:
    """A convolution of stride 16 over 160 pixels: its last cells reach from 136.5 to 160."""
    placement = GridPlacement((-7.5, -7.5, 152.5, 152.5), (160, 160))
    cells = CellGrid.of(placement, (10, 10), Geometry.identity((160, 160)))
    assert cells.is_visible.all()
    assert cells.areas.sum() == pytest.approx(1)
    padded = CellGrid.of(
        placement, (10, 10), Geometry.identity((80, 160)).padded(40, 0, (160, 160))
    )
    assert padded.is_visible.any(1).tolist() == [False] * 3 + [True] * 5 + [False] * 2


def flips(noise: np.ndarray, random: np.random.Generator) -> float:
    return float(sign_flip_p(noise[:, None], random)[0])


def groups(noise: np.ndarray, random: np.random.Generator) -> float:
    members = random.permutation(len(noise)) < 9
    return within_class_p(noise, members, np.arange(len(noise)) % 2, random)[1]


def crossed(noise: np.ndarray, random: np.random.Generator) -> float:
    return crossed_interval(noise[:, None])[2]


@pytest.mark.parametrize("test", [flips, groups, crossed])
def test_p_values_are_uniform_without_an_effect(test: Callable) -> None:
    values: list[float] = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        values.append(test(random.normal(size=24), random))
    assert np.mean(np.array(values) < 0.2) == pytest.approx(0.2, abs=0.13)
    assert np.mean(values) == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize("test", [flips, crossed])
def test_p_values_are_those_of_a_higher_mean(test: Callable) -> None:
    """What lowers a class is no evidence for it, however sure."""
    random = np.random.default_rng(0)
    values = random.normal(2, 1, size=24)
    assert test(values, random) < 0.01
    assert test(-values, random) > 0.99


@pytest.mark.parametrize("spreads", [(1, 1, 0), (1, 0, 1), (0, 0, 1), (0.5, 0.5, 2)])
@pytest.mark.parametrize("each", [12, 4])
def test_interval_covers_donors_recipients_and_pairs(
    spreads: tuple[float, float, float], each: int
) -> None:
    """95 % intervals of crossed effects, also of some pairs, hold the true mean so often.

    They are not wider than needed: with noise of pairs alone, as wide as those of single values.
    """
    donors, recipients, pairs = spreads
    hits = 0
    widths: list[float] = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        effects = pairs * random.normal(size=(8, 12)) + 1.0
        effects += donors * random.normal(size=(8, 1)) + recipients * random.normal(size=(1, 12))
        effects[(np.arange(12) - 2 * np.arange(8)[:, None]) % 12 >= each] = np.nan
        low, high, _ = crossed_interval(effects)
        hits += low <= 1.0 <= high
        widths.append(high - low)
    assert 0.9 <= hits / 200 <= 1
    if not donors:
        single = 2 * 2.36 * pairs / np.sqrt(8 * each)
        assert 0.9 * single < np.mean(widths) < 1.35 * single


def test_photos_of_a_unit_count_once() -> None:
    values = np.random.default_rng(0).normal(1, 1, 6)
    low, high, p_value = crossed_interval(values[:, None])
    twice = np.repeat(values, 4)
    units = [f"patient {number // 4}" for number in range(24)]
    assert crossed_interval(twice[:, None], units) == pytest.approx((low, high, p_value))
    assert crossed_interval(twice[:, None])[0] > low


def test_p_values_are_corrected_in_their_order() -> None:
    assert holm(np.array([0.2, 0.01])).tolist() == pytest.approx([0.2, 0.02])


def test_saved_report_is_loaded_and_compared(tmp_path: Path) -> None:
    audit = report("tag", 160.0)
    audit.save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "random cells like it" in page
    assert "pairs of a stamp" not in page  # none was tested
    loaded = va.load_audit(tmp_path)
    assert [each.to_dict() for each in loaded.findings] == [
        each.to_dict() for each in audit.findings
    ]
    other = report("tag", 4.0)
    assert {row.verdict for row in loaded.compare(other)} == {"cannot be judged: no other seeds"}
    judged = loaded.compare(other, [report("tag", 160.0), other])
    assert any("times the spread of seeds" in row.verdict for row in judged)
    with pytest.raises(ValueError, match="on the same photos"):
        loaded.compare(report_of_two())


def report_of_two() -> va.AuditReport:
    photos, labels = planted.photos()
    return audited(planted.ColorNet().eval(), photos[:2], labels[:2], stamps=[])


def test_report_says_no_more_than_was_tested(tmp_path: Path) -> None:
    report("tint", 60.0, "default").save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    lower = page.lower()
    assert [word for word in ("spurious", "bias", "robust", "no shortcut") if word in lower] == []
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
