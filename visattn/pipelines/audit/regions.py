"""Tables of an audit: shares of regions with their baselines, groups of photos, two checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int

from visattn.geometry.affine import Geometry
from visattn.geometry.placement import GridPlacement
from visattn.pipelines.audit.cells import REGION_AREAS, CellGrid
from visattn.pipelines.audit.evidence import PhotoEvidence
from visattn.pipelines.audit.statistics import benjamini_hochberg, sign_flip_p, within_class_p
from visattn.results.audit import GroupDifference, RegionShare, RegionShift

_ALL = "all photos"
_MIN_PHOTOS = 5
_MIN_GROUP = 10
_MOST_VALUES = 12
_SIGMA = 0.25  # of the visible part, as the baseline `center` of score maps
Map = Float[np.ndarray, "gy gx"]


class RegionTable:
    """Shares of the evidence in regions.

    Args:
        rows: Evidence of all photos.
        placement: Where the cells lie on the input.
        seed: Seed of shuffled maps.
    """

    def __init__(
        self, rows: Sequence[PhotoEvidence], placement: GridPlacement | None, seed: int = 0
    ) -> None:
        self.rows = rows
        self.seed = seed

        @lru_cache(maxsize=256)
        def fractions(geometry: Geometry, grid: tuple[int, int]) -> Mapping[str, Map]:
            cells = CellGrid.of(placement, grid, geometry)
            return {**cells.region_fractions(), "gaussian": _center_gaussian(cells)}

        self._fractions = fractions
        self.others = _shuffled(len(rows), np.random.default_rng(seed))

    def region(self, row: PhotoEvidence, name: str) -> Map | None:
        """Return which fraction of each cell lies in a region; None if the photo has none."""
        if name == "objects":
            usable = row.objects is not None and (row.areas * row.objects).sum() > 0
            return row.objects if usable else None
        return self._fractions(row.geometry, _grid(row.areas))[name]

    def table(self, class_names: Callable[[int], str]) -> list[RegionShare]:
        """Return the shares of each region for all photos, and for each predicted class.

        Those of fewer than 5 photos are left out.
        """
        classes: list[int | None] = [*sorted({row.prediction for row in self.rows})]
        if len(classes) > 1:
            classes.insert(0, None)
        table: list[RegionShare] = []
        for region in ("objects", *REGION_AREAS):
            values = [self._values(index, region) for index in range(len(self.rows))]
            for each in classes:
                own = [
                    value
                    for row, value in zip(self.rows, values, strict=True)
                    if each in (None, row.prediction) and value is not None
                ]
                name = _ALL if each is None else class_names(each)
                if len(own) >= _MIN_PHOTOS:
                    table.append(self._row(name, region, np.array(own)))
        return _corrected(table)

    def _values(self, index: int, region: str) -> tuple[float, ...] | None:
        """Return the share of evidence, area, Gaussian, untrained and other map of a photo."""
        row = self.rows[index]
        inside = self.region(row, region)
        if inside is None or not row.shares.any():
            return None
        gaussian = self._fractions(row.geometry, _grid(row.areas))["gaussian"] * row.areas
        other = self.rows[self.others[index]].shares * (row.areas > 0)
        maps = (row.shares, row.areas, gaussian, row.untrained, other)
        return tuple(_share(values, inside) for values in maps)

    def _row(self, name: str, region: str, values: Float[np.ndarray, "n 5"]) -> RegionShare:
        known = values[~np.isnan(values[:, 3]), 3]
        paired = values[:, 0] - values[:, 4]
        paired = paired[~np.isnan(paired)]
        generator = np.random.default_rng(self.seed)
        p_value = None
        if region == "objects" and len(paired):
            p_value = float(2 * sign_flip_p(np.sign(paired.mean()) * paired[:, None], generator)[0])
        share, area, center, _, other = np.nanmean(values, 0) if len(values) else [0.0] * 5
        untrained = float(known.mean()) if len(known) else None
        return RegionShare(
            name, region, len(values), float(share), float(area), float(center), untrained,
            float(other), None if p_value is None else min(p_value, 1.0),
        )  # fmt: skip


def _grid(values: Map) -> tuple[int, int]:
    return values.shape[0], values.shape[1]


def _share(values: Map | None, inside: Map) -> float:
    """Return the share of a map in a region; NaN without a map, or an empty one."""
    if values is None or not values.sum() > 0:
        return float("nan")
    return float((values * inside).sum() / values.sum())


def _center_gaussian(cells: CellGrid) -> Map:
    """Return a Gaussian around the middle of the visible part, on the cells."""
    left, top, right, bottom = cells.geometry.region
    boxes = cells.boxes
    x = ((boxes[:, 0] + boxes[:, 2]) / 2 - left) / (right - left) - 0.5
    y = ((boxes[:, 1] + boxes[:, 3]) / 2 - top) / (bottom - top) - 0.5
    return np.exp(-(x**2 + y**2) / (2 * _SIGMA**2)).reshape(cells.grid)


def _shuffled(count: int, generator: np.random.Generator) -> Int[np.ndarray, " n"]:
    """Return another photo for each, by a random cycle through all of them."""
    order = generator.permutation(count)
    others = np.zeros(count, dtype=np.int64)
    others[order] = np.roll(order, 1)
    return others


def _corrected(table: list[RegionShare]) -> list[RegionShare]:
    tested = [number for number, row in enumerate(table) if row.p_value is not None]
    p_values = np.array([table[number].p_value for number in tested], dtype=float)
    for number, p_value in zip(tested, benjamini_hochberg(p_values), strict=True):
        table[number] = replace(table[number], p_value=float(p_value))
    return table


def group_differences(
    rows: Sequence[PhotoEvidence], columns: Mapping[str, Mapping[str, str]], seed: int = 0
) -> list[GroupDifference]:
    """Return how groups of photos differ from the others of the same classes.

    Args:
        rows: Evidence of all photos.
        columns: Value of each photo, by the name of the column and that of the photo.
        seed: Seed of the permutations.
    """
    labeled = all(row.label is not None for row in rows)
    classes = np.array([row.prediction if row.label is None else row.label for row in rows])
    measures: dict[str, Float[np.ndarray, " n"]] = {
        name: np.array([row.regions[name] for row in rows]) for name in REGION_AREAS
    }
    right = np.array([row.prediction == row.label for row in rows])
    if labeled:
        measures = {"accuracy": right.astype(float), **measures}
    if all(row.objects is not None for row in rows):
        measures["objects"] = np.array([(row.shares * row.objects).sum() for row in rows])
    differences: list[GroupDifference] = []
    for group, members in _groups(rows, columns, right if labeled else None):
        count = int(members.sum())
        if min(count, len(rows) - count) < _MIN_GROUP:
            continue
        for measure, values in measures.items():
            if group.startswith("prediction") and measure == "accuracy":
                continue
            generator = np.random.default_rng(seed)
            difference, p_value = within_class_p(values, members, classes, generator)
            others = len(rows) - count
            differences.append(GroupDifference(group, measure, count, others, difference, p_value))
    corrected = benjamini_hochberg(np.array([each.p_value for each in differences]))
    return [
        replace(each, p_value=float(p_value))
        for each, p_value in zip(differences, corrected, strict=True)
    ]


def _groups(
    rows: Sequence[PhotoEvidence],
    columns: Mapping[str, Mapping[str, str]],
    right: Bool[np.ndarray, " n"] | None,
) -> list[tuple[str, Bool[np.ndarray, " n"]]]:
    """Return the groups: wrong predictions, values of columns, upper thirds of attributes."""
    groups: list[tuple[str, Bool[np.ndarray, " n"]]] = []
    if right is not None:
        groups.append(("prediction: wrong", ~right))
    for column, by_name in columns.items():
        values = [by_name.get(row.name, "") for row in rows]
        different = sorted({value for value in values if value})
        for value in different if len(different) <= _MOST_VALUES else ():
            members = np.array([each == value for each in values])
            groups.append((f"{column}: {value}", members))
    for name in rows[0].attributes if rows else ():
        attribute = np.array([row.attributes[name] for row in rows])
        limit = np.quantile(attribute, 2 / 3)
        if attribute.min() < limit:
            groups.append((f"{name}: upper third", attribute > limit))
    return groups


def region_shifts(
    own: Mapping[str, Mapping[str, float]],
    other: Mapping[str, Mapping[str, float]],
    seeds: Sequence[Mapping[str, Mapping[str, float]]],
    classes: Mapping[str, str],
) -> list[RegionShift]:
    """Return how shares of regions differ between checkpoints, beside the spread of seeds.

    Args:
        own: Share of each region, by photo, of this checkpoint.
        other: Those of the other checkpoint.
        seeds: Those of checkpoints of one recipe with other seeds; two or more of them, this one
            included, give a spread.
        classes: Class of each photo that counts.

    Example:
        >>> old, new = {"a": {"border": 0.3}}, {"a": {"border": 0.5}}
        >>> region_shifts(old, new, [{"a": {"border": 0.4}}], {"a": "rose"})[0].verdict
        '2.8 times the spread of seeds'
    """
    shifts: list[RegionShift] = []
    for name in sorted({*classes.values()}):
        photos = [photo for photo, each in classes.items() if each == name]
        for region in sorted({region for photo in photos for region in own[photo]}):
            tables = [own, other, *seeds]
            means = [float(np.mean([table[photo][region] for photo in photos])) for table in tables]
            spread = float(np.std([means[0], *means[2:]], ddof=1)) if seeds else None
            shifts.append(RegionShift(name, region, len(photos), means[1] - means[0], spread))
    return sorted(shifts, key=lambda each: -abs(each.shift))
