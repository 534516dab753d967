"""`audit`: where a model looks over a whole data set, and whether it matters."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float
from torch import nn

from visattn.attribution.targets import class_name, resolve_class_index
from visattn.images.reader import ImageError, ImageLike, LoadedImage, read_image
from visattn.images.sources import list_photos
from visattn.io.argument_checks import checked_arguments
from visattn.models.backbones.pretrained import LoadedModel
from visattn.pipelines.audit.candidates import patch_findings
from visattn.pipelines.audit.clusters import MIN_PHOTOS
from visattn.pipelines.audit.counterfactuals import PatchEditor
from visattn.pipelines.audit.evidence import Examiner, PhotoEvidence
from visattn.pipelines.audit.probes import Evidence, patch_arrays, stamp_findings
from visattn.pipelines.audit.regions import RegionTable, group_differences
from visattn.pipelines.audit.report import AuditReport
from visattn.pipelines.audit.scores import InputScorer
from visattn.pipelines.audit.stamps import Stamp, default_stamps, stamp_of_file
from visattn.pipelines.explainer import Explainer
from visattn.results.audit import AuditContent, Finding

Masks = Callable[[str], Bool[np.ndarray, "y x"] | None]
_UNIT = "unit"
_CONTROLS, _MOST_CONTROLS = 100, 1000  # photos with maps of shuffled weights, random cells


@dataclass(frozen=True)
class AuditOptions:
    """What an audit tests.

    Args:
        stamps: Artefacts that are put on photos.
        groups: Value of each photo, by the name of a column and that of the photo.
        unit: Column whose photos of one value belong together, such as those of a patient.
        min_effect: Effect that a finding must exceed, in nats of log-odds.
        budget: Most edited images that the model is run on.
        batch_size: Images per batch.
        seed: Seed of all random numbers.
        settings: What the report says of how it was made.
    """

    stamps: Sequence[Stamp] = ()
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unit: str | None = None
    min_effect: float = 0.5
    budget: int = 20_000
    batch_size: int = 16
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


@checked_arguments(batch_size=(1, 65_536), budget=(0, 10**9))
def audit(
    model: nn.Module | LoadedModel,
    photos: Iterable[ImageLike] | ImageLike,
    labels: Sequence[int | str] | None = None,
    *,
    method: str = "hirescam",
    layer: int | str | None = None,
    masks: Sequence[np.ndarray] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    stamps: Sequence[str | Path] | Literal["default"] = "default",
    min_effect: float = 0.5,
    budget: int = 20_000,
    batch_size: int = 16,
    seed: int = 0,
    **options: Any,
) -> AuditReport:
    """Return where a model finds its evidence over many photos, and whether that matters.

    In one pass each photo gets its prediction, a map for the predicted class, and the features of
    its eight cells with the most evidence. Patches that look alike to the model are candidates.
    Each is then pasted into photos of other classes and removed from its own, beside the same edit
    with a patch of the same class without it. Artefacts of a bank are put on photos. What is
    reported is the change of the log-odds, with an interval.

    Args:
        model: A classifier, or a result of `load_model`.
        photos: Photos, or folders of them, as for `explain`.
        labels: True class of each photo, by index or name.
        method: Attribution method of the maps.
        layer: Layer whose features are compared; by default the last one with at least 8 rows and
            columns.
        masks: Objects of each photo, `[y, x]`, True on them.
        groups: More columns: a value of each photo, by the name of the column. Photos of one value
            of a column `unit`, such as those of a patient, are not taken as independent.
        stamps: `default`, or image files of artefacts, which are tested besides.
        min_effect: Effect that a finding must exceed, in nats of log-odds.
        budget: Most edited images that the model is run on.
        batch_size: Images per batch.
        seed: Seed of all random numbers.
        options: Of `Explainer`: `img_size`, `class_names`, `transform`, `resize_mode`, ...

    Raises:
        ImageError: If a photo cannot be read.
        ValueError: If there are not as many labels, masks or values as photos, or the method does
            not fit the model.

    Example:
        >>> from visattn.models import AttentionResNet
        >>> model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
        >>> shades = [np.full((32, 32, 3), gray, np.uint8) for gray in range(0, 250, 50)]
        >>> report = audit(model, shades, ["cat"] * 5, stamps=[])
        >>> len(report.rows), report.findings
        (5, [])
    """
    listed = list_photos(photos)
    explainer = Explainer(model, **options)
    examiner = Examiner(explainer, method, layer=layer, seed=seed)
    for what, values in (("labels", labels), ("masks", masks), *(groups or {}).items()):
        if values is not None and len(values) != len(listed):
            raise ValueError(f"{what} must have one value for each of {len(listed)} photos, "
                             f"got {len(values)}")  # fmt: skip
    names = _photo_names(listed)
    sources = dict(zip(names, listed, strict=True))
    known = _label_indices(labels, explainer) if labels is not None else [None] * len(listed)
    rows = examine_all(
        examiner,
        lambda name: named_image(sources[name], name),
        dict(zip(names, known, strict=True)),
        dict(zip(names, masks, strict=True)) if masks is not None else {},
        batch_size,
    )
    bank = default_stamps()
    if stamps != "default":
        bank = [*bank, *(stamp_of_file(Path(each)) for each in stamps)] if stamps else []
    columns = {
        column: dict(zip(names, map(str, values), strict=True))
        for column, values in (groups or {}).items()
    }
    settings = {"method": method, "layer": layer, "seed": seed}
    tested = AuditOptions(
        bank,
        columns,
        _UNIT if _UNIT in columns else None,
        min_effect,
        budget,
        batch_size,
        seed,
        settings=settings,
    )
    return analyze_evidence(rows, examiner, lambda name: named_image(sources[name], name), tested)


def named_image(source: ImageLike, name: str) -> LoadedImage:
    """Return a photo under the name that it has in an audit."""
    if isinstance(source, LoadedImage) and source.values is not None:
        raise ImageError(
            f"{name} has {source.values.shape[2]} channels of values; an audit puts stamps and "
            "patches on photos: pass its rendering, .pixels"
        )
    return replace(read_image(source), name=name)


def _photo_names(photos: Sequence[ImageLike]) -> list[str]:
    """Return a unique name for each photo: its path, or its number."""
    width = len(str(len(photos)))
    return [
        str(photo) if isinstance(photo, str | Path) else f"photo {number:0{width}}"
        for number, photo in enumerate(photos)
    ]


def _label_indices(labels: Sequence[int | str], explainer: Explainer) -> list[int | None]:
    explained = explainer.analyze()
    indices = {each: resolve_class_index(each, explained) for each in dict.fromkeys(labels)}
    return [indices[each] for each in labels]


def control_photos(labels: Mapping[str, int | None]) -> set[str]:
    """Return the photos that controls are computed for, whichever their order.

    Those are 100 of each class, fewer if there are more than ten classes: 1,000 in all, or one of
    each class. Of a single class they are 500.

    Example:
        >>> control_photos({"a": 0, "b": None}) == {"a", "b"}
        True
    """
    by_class: dict[int | None, list[tuple[int, str]]] = {}
    for name, label in labels.items():
        by_class.setdefault(label, []).append((zlib.crc32(name.encode()), name))
    most = _CONTROLS if len(by_class) > 1 else 5 * _CONTROLS
    most = max(1, min(most, _MOST_CONTROLS // max(len(by_class), 1)))
    return {name for names in by_class.values() for _, name in sorted(names)[:most]}


def examine_all(
    examiner: Examiner,
    read: Callable[[str], LoadedImage],
    labels: Mapping[str, int | None],
    masks: Mapping[str, Bool[np.ndarray, "y x"]],
    batch_size: int,
) -> list[PhotoEvidence]:
    """Return the evidence of all photos."""
    rows: list[PhotoEvidence] = []
    controls = control_photos(labels)
    names = list(labels)
    for start in range(0, len(names), batch_size):
        part = names[start : start + batch_size]
        rows += examiner(
            [read(name) for name in part],
            [labels[name] for name in part],
            [masks.get(name) for name in part],
            [name in controls for name in part],
        )
    return rows


def analyze_evidence(
    rows: Sequence[PhotoEvidence],
    examiner: Examiner,
    read: Callable[[str], LoadedImage],
    options: AuditOptions,
) -> AuditReport:
    """Return the report of an audit from the evidence of its photos.

    Args:
        rows: Evidence of each photo, in any order.
        examiner: The model; what it was run on decides where cells lie.
        read: Returns a photo by its name.
        options: What is tested.
    """
    rows = sorted(rows, key=lambda row: row.name)
    if rows:  # those of an earlier run were not computed by this examiner
        examiner.locate(read(rows[0].name))
    explained = examiner.explainer.analyze()
    names = explained.class_names

    def name_of(index: int) -> str:
        return class_name(index, names) or f"class {index}"

    scorer = InputScorer(examiner.explainer, options.batch_size, options.budget)
    column = options.groups.get(options.unit or "", {})
    units = [column.get(row.name, row.name) for row in rows]
    editor = PatchEditor(rows, units, read, scorer, examiner.placement, examiner.grid, options.seed)
    evidence = Evidence(
        rows, units, read, scorer, editor, name_of, options.min_effect, options.seed
    )
    stamps = stamp_findings(evidence, options.stamps)
    patches = patch_findings(evidence) if rows else []
    table = RegionTable(rows, examiner.placement, options.seed).table(name_of)
    groups = group_differences(rows, options.groups, options.seed) if rows else []
    labeled = [row for row in rows if row.label is not None]
    findings = [*patches, *sorted(stamps, key=lambda each: -_lower(each))]
    content = AuditContent(
        explained.info.name,
        {
            **options.settings,
            "min_effect": options.min_effect,
            "budget": options.budget,
            "edited_images": scorer.used,
        },
        {name_of(index): count for index, count in evidence.counts.items()},
        np.mean([row.prediction == row.label for row in labeled]).item() if labeled else None,
        {
            "patches": round(sum(each.details["tests"] for each in patches)),
            "stamps": len(stamps),
            "regions": sum(row.p_value is not None for row in table),
            "groups": len(groups),
        },
        _smallest(findings, options.min_effect),
        findings, table, groups, _mean_maps(rows, name_of), None, tuple(evidence.notes),
    )  # fmt: skip
    return AuditReport(
        content, [_table_row(row, name_of, options) for row in rows],
        np.stack([_with_padding(row) for row in rows]) if rows else np.zeros((0, 1, 1)),
        patch_arrays(rows),
    )  # fmt: skip


def _lower(finding: Finding) -> float:
    return -np.inf if finding.effect is None else finding.effect.low


def _smallest(findings: Sequence[Finding], min_effect: float) -> dict[str, float]:
    """Return the effect that half of the tests would have confirmed, of each kind of test."""
    smallest: dict[str, float] = {}
    for kind in ("patches", "stamp"):
        widths = [
            each.effect.value - each.effect.low
            for each in findings
            if each.kind == kind and each.effect is not None
        ]
        if widths:
            smallest[kind] = round(min_effect + float(np.median(widths)), 3)
    return smallest


def _with_padding(row: PhotoEvidence) -> Float[np.ndarray, "gy gx"]:
    return np.where(row.areas > 0, row.shares, np.nan)


def _mean_maps(
    rows: Sequence[PhotoEvidence], name_of: Callable[[int], str]
) -> dict[str, Float[np.ndarray, "gy gx"]]:
    """Return the mean share of each cell over the photos of a class that have it."""
    maps: dict[str, Float[np.ndarray, "gy gx"]] = {}
    for each in sorted({row.prediction for row in rows}):
        own = [row for row in rows if row.prediction == each and row.shares.any()]
        if len(own) < MIN_PHOTOS // 2:
            continue
        visible = np.stack([row.areas > 0 for row in own]).sum(0)
        total = np.stack([row.shares for row in own]).sum(0)
        maps[name_of(each)] = np.where(visible > 0, total / np.maximum(visible, 1), np.nan)
    return maps


def _table_row(
    row: PhotoEvidence, name_of: Callable[[int], str], options: AuditOptions
) -> dict[str, Any]:
    objects = {}
    if row.objects is not None:
        objects = {"share_objects": round(float((row.shares * row.objects).sum()), 5)}
    cells = " ".join(f"{y},{x}" for y, x in row.top.cells)
    return {
        "image": row.name,
        "label": "" if row.label is None else name_of(row.label),
        "predicted": name_of(row.prediction),
        "probability": round(row.probability, 6),
        "log_odds": round(row.log_odds, 4),
        **{f"share_{name}": round(value, 5) for name, value in row.regions.items()},
        **objects,
        **row.attributes,
        "cells": cells,
        **{name: values.get(row.name, "") for name, values in options.groups.items()},
    }
