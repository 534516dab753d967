"""Candidates of patches with their effects, as findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool
from PIL import Image
from scipy.ndimage import maximum_filter, minimum_filter

from visattn.pipelines.audit.cells import CellGrid
from visattn.pipelines.audit.clusters import (
    MIN_PHOTOS,
    Candidate,
    Patches,
    PatchSpace,
    find_candidates,
    in_first_half,
    parts_of_one,
)
from visattn.pipelines.audit.counterfactuals import (
    LOCAL,
    PASTED,
    TEST_IMAGES,
    FixedPixels,
)
from visattn.pipelines.audit.evidence import PhotoEvidence
from visattn.pipelines.audit.probes import Evidence, class_counts, with_status
from visattn.results.audit import BESIDE, Effect, Finding
from visattn.viz.html.document import image_data_url

Pixels = Bool[np.ndarray, "y x"]
_CROPS, _CROP_PIXELS = 12, 112
_LINE, _GAPS = (255, 0, 190), 21  # around fixed pixels, and over gaps that are narrower
_CONTEXT = 3.5  # side of the crops in the report, in cells
_MORE = 3  # times as many photos and pairs, for candidates that are undecided


@dataclass(frozen=True, eq=False)
class MeasuredCandidate:
    """A candidate with the effects of its edits; None if there are too few photos for them."""

    candidate: Candidate
    fixed: FixedPixels | None
    effects: Mapping[str, Effect] | None


def patch_findings(evidence: Evidence) -> list[Finding]:
    """Return candidates of patches, ranked, with their effects on photos that were held out."""
    rows = evidence.rows
    search = [index for index, unit in enumerate(evidence.units) if in_first_half(unit)]
    held_out = [index for index, unit in enumerate(evidence.units) if not in_first_half(unit)]
    features = [rows[index].top.features for index in search if len(rows[index].top.cells)]
    if sum(map(len, features)) < 2 * MIN_PHOTOS:
        evidence.notes.append("patches were not searched: too few photos have evidence")
        return []
    space = PatchSpace.fit(np.concatenate(features))
    patches, others = (Patches.of(rows, each, space, lambda row: row.top)
                       for each in (search, held_out))  # fmt: skip
    counts = class_counts([rows[index] for index in search])
    few = [evidence.class_name(each) for each, n in counts.items() if n < 2 * MIN_PHOTOS]
    if few:
        evidence.notes.append(
            f"classes in which patches were not searched, with fewer than {2 * MIN_PHOTOS} photos "
            f"in the half that is searched: {len(few)} ({', '.join(few[:8])})"
        )

    def is_tint(each: MeasuredCandidate) -> bool:
        known = each.effects is not None and each.fixed is None
        return known and is_everywhere(each.effects or {}, evidence.min_effect)

    tested = [
        MeasuredCandidate(
            candidate, fixed, evidence.editor.test(candidate, others, held_out, fixed)
        )
        for candidate, fixed in _distinct(
            evidence, find_candidates(patches, counts), others, held_out
        )
    ]
    tested = [
        each if is_tint(each) else measured_again(evidence, each, others, held_out)
        for each in tested
    ]
    if tints := [each.candidate.class_index for each in tested if is_tint(each)]:
        evidence.notes.append(
            f"groups of patches that are not listed: {len(tints)} "
            f"({', '.join(map(evidence.class_name, tints))}); their effect is not beyond that of "
            "other places of their photos, as with a tint; see the stamps"
        )
    return _listed(evidence, [each for each in tested if not is_tint(each)], space, patches)


def measured_again(
    evidence: Evidence, each: MeasuredCandidate, others: Patches, held_out: Sequence[int]
) -> MeasuredCandidate:
    """Return a candidate with the effects of more photos if these show that it is not used.

    Few photos seldom do. They are no second chance to be confirmed: p-values are those of one test.
    """
    first = each.effects
    if first is None or first[PASTED].status(evidence.min_effect) != "not confirmed":
        return each
    second = evidence.editor.test(each.candidate, others, held_out, each.fixed, _MORE)
    if second is None or second[PASTED].status(evidence.min_effect) != "present, not used":
        return each
    return replace(each, effects=second)


def _listed(
    evidence: Evidence, tested: Sequence[MeasuredCandidate], space: PatchSpace, patches: Patches
) -> list[Finding]:
    """Return the findings, ranked; those that are parts of one thing are the first of these."""
    findings = [
        Finding(
            "patches", "", evidence.class_name(each.candidate.class_index), "not testable",
            None if each.effects is None else each.effects[PASTED], each.effects or {},
            details=_details(evidence, each.candidate, space, patches),
        )
        for each in tested
    ]  # fmt: skip
    order = {"confirmed": 0, "not confirmed": 1, "not testable": 1, "present, not used": 2}
    ranked = sorted(
        zip(with_status(findings, evidence.min_effect), tested, strict=True),
        key=lambda pair: (
            order[pair[0].status], not pair[0].is_beside_objects, -pair[0].details["score"],
        ),
    )  # fmt: skip
    listed: list[Finding] = []
    numbers: dict[str, int] = {}
    for parts in parts_of_one([each.candidate for _, each in ranked], patches):
        first, _ = ranked[parts[0]]
        number = numbers[first.class_name] = numbers.get(first.class_name, 0) + 1
        all_tested = [each for each in parts if ranked[each][0].effect is not None]
        details = {**first.details, "parts": len(parts), "tests": len(all_tested)}
        named = replace(first, name=f"patches {number}", details=details)
        listed.append(_with_photos(evidence, named, [ranked[each][1] for each in parts], patches))
    return listed


def _with_photos(
    evidence: Evidence, finding: Finding, parts: Sequence[MeasuredCandidate], patches: Patches
) -> Finding:
    """Return a finding with its photos, where its patches lie on them, and crops."""
    places: dict[str, tuple[float, float]] = {}
    crops: list[str] = []
    for each in parts:
        new = [index for index in each.candidate.photos if evidence.rows[index].name not in places]
        own, shown = _examples(evidence, each, new, patches, _CROPS - len(crops))
        places.update(own)
        crops += shown
    first = parts[0].candidate
    return replace(
        finding, photos=tuple(places), places=tuple(places.values()), crops=tuple(crops),
        share=first.share * len(places) / len(first.photos),
    )  # fmt: skip


def _distinct(
    evidence: Evidence, candidates: Sequence[Candidate], others: Patches, held_out: Sequence[int]
) -> list[tuple[Candidate, FixedPixels | None]]:
    """Return candidates with their fixed pixels; of those with the same ones, the best."""
    distinct: list[tuple[Candidate, FixedPixels | None]] = []
    most = evidence.scorer.left // TEST_IMAGES  # beyond the budget none is tested
    for rank, candidate in enumerate(candidates):
        find = evidence.editor.fixed_pixels
        fixed = find(candidate, others, held_out) if rank < most else None
        is_known = any(
            known.class_index == candidate.class_index
            and fixed is not None
            and fixed.is_like(pixels)
            for known, pixels in distinct
        )
        if not is_known:
            distinct.append((candidate, fixed))
    return distinct


def is_everywhere(effects: Mapping[str, Effect], min_effect: float) -> bool:
    """Whether what patches do is not known to exceed what any place of their photos does.

    This is so of a tint, which leaves no equal pixels.

    Example:
        >>> pasted = Effect(4.5, 3.9, 5.1, 0.1, 0.0, 72)
        >>> tint, wide = (Effect(0.6, -0.3, end, 0.0, 0.2, 72) for end in (1.5, 4.8))
        >>> frame = Effect(4.0, 3.1, 4.4, 0.1, 0.0, 72)
        >>> [is_everywhere({PASTED: pasted, LOCAL: each}, 0.5) for each in (tint, wide, frame)]
        [True, False, False]
    """
    pasted, local = effects[PASTED], effects[LOCAL]
    is_little = local.low <= 0 and local.high < pasted.value
    return pasted.low >= min_effect and is_little


def _details(
    evidence: Evidence, candidate: Candidate, space: PatchSpace, patches: Patches
) -> dict[str, float]:
    """Return numbers of a candidate, and the shares of photos in which controls are like it."""
    rows = evidence.rows
    details = {
        "score": candidate.score, "coherence": candidate.coherence, "purity": candidate.purity,
        "evidence": candidate.evidence,
    }  # fmt: skip
    own = [
        index
        for index, row in enumerate(rows)
        if row.prediction == candidate.class_index and row.random is not None
    ]
    if own:
        random = Patches.of(rows, own, space, lambda row: row.random)
        untrained = Patches.of(rows, own, space, lambda row: row.untrained_top)
        details["random"] = candidate.share_of(random, len(own))
        details["untrained"] = candidate.share_of(untrained, len(own))
    member = candidate.members(patches) & (patches.classes == candidate.class_index)
    if any(rows[photo].objects is not None for photo in patches.photos[member]):
        details["outside"] = float(1 - patches.on_objects[member].mean())
    return {name: round(float(value), 4) for name, value in details.items()}


def _examples(
    evidence: Evidence,
    tested: MeasuredCandidate,
    photos: Sequence[int],
    patches: Patches,
    most: int,
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """Return where patches lie on the visible part of photos, and crops of the first of them.

    Of photos with fixed pixels, such as a frame, all that the model sees is shown, with a line
    around these pixels.
    """
    candidate, fixed = tested.candidate, tested.fixed
    member = candidate.members(patches) & (patches.classes == candidate.class_index)
    similar = (patches.vectors @ candidate.centers.T - candidate.radii).max(1, initial=-2)
    places: dict[str, tuple[float, float]] = {}
    crops: list[str] = []
    shown = member & ~patches.on_objects  # what was tested, if it lies beside objects
    if shown.sum() < BESIDE * member.sum():
        shown = member
    first = {*patches.photos[shown].tolist()}
    for photo in sorted(photos, key=lambda each: each not in first):
        own = np.flatnonzero((shown if photo in first else member) & (patches.photos == photo))
        row = evidence.rows[photo]
        box = _surroundings(evidence, row, patches.cells[own[np.argmax(similar[own])]])
        left, top, right, bottom = box
        visible = row.geometry.region
        places[row.name] = (
            round(((left + right) / 2 - visible[0]) / (visible[2] - visible[0]), 3),
            round(((top + bottom) / 2 - visible[1]) / (visible[3] - visible[1]), 3),
        )
        if len(crops) < most:
            pixels = evidence.read(row.name).pixels
            if fixed is not None:
                part = _outlined(pixels, row, evidence.editor.seen_part(photo, fixed.pixels))
            else:
                part = pixels[int(top) : int(bottom) + 1, int(left) : int(right) + 1]
            crops.append(image_data_url(np.ascontiguousarray(part), longest=_CROP_PIXELS)[0])
    return places, crops


def _surroundings(evidence: Evidence, row: PhotoEvidence, cell: np.ndarray) -> list[float]:
    """Return left, top, right, bottom of the surroundings of a cell, on the photo."""
    grid = evidence.editor.grid
    cells = CellGrid.of(evidence.editor.placement, grid, row.geometry)
    [[x, y]] = cells.centers(cell[None])
    height, width = row.geometry.input_size
    half = _CONTEXT / 2 * max(height / grid[0], width / grid[1])
    box = np.array([[x - half, y - half, x + half, y + half]])
    return cells.on_photo(box)[0].tolist()


def _outlined(pixels: np.ndarray, row: PhotoEvidence, fixed: Pixels) -> np.ndarray:
    """Return the visible part of a photo, small, with a line around some of its pixels."""
    left, top, right, bottom = (round(side) for side in row.geometry.region)
    scale = _CROP_PIXELS / max(right - left, bottom - top)
    size = (max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale)))
    part = Image.fromarray(pixels[top:bottom, left:right]).resize(size, Image.Resampling.BICUBIC)
    inside = np.asarray(Image.fromarray(fixed).resize(size, Image.Resampling.NEAREST))
    # Letters get one line, and it keeps off them: beside them it would hide their color.
    closed = minimum_filter(maximum_filter(inside, _GAPS), _GAPS - 8, mode="constant", cval=1)
    inside = np.asarray(closed, bool)
    outlined = np.asarray(part).copy()
    outlined[maximum_filter(inside, 3) & ~inside] = _LINE
    return outlined
