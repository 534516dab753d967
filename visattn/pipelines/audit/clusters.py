"""Patches of many photos that hold the evidence for a class and look alike to the model."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.cluster.hierarchy import linkage

from visattn.pipelines.audit.evidence import CellSample, PhotoEvidence
from visattn.results.audit import BESIDE

MIN_PHOTOS = 10
_MIN_SHARE, _MIN_PURITY = 0.05, 0.5
_DIMENSIONS = 64
_MOST_PATCHES = 2000  # of a class, which are clustered; the rest is assigned
_PER_CLASS = 4  # candidates of all patches, and of those beside objects, before they are merged
_TOUCHED = 0.05  # part of a cell that is covered by an object
_SAME_PHOTOS = 0.75  # intersection over union
_TOUCHING, _COMMON = 0.9, 0.5  # share of patches, and of the photos of the smaller group
_ROUNDING = 1e-9
_NEAR = 10  # percentile of the members' similarities, above which a patch belongs to a cluster


def in_first_half(unit: str) -> bool:
    """Whether a photo is for the search of candidates; the others are held out to test them.

    Example:
        >>> [in_first_half(name) for name in ("a.jpg", "d.jpg")]
        [True, False]
    """
    return hashlib.sha256(unit.encode()).digest()[0] % 2 == 0


@dataclass(frozen=True, eq=False)
class PatchSpace:
    """Features of patches in their main directions, whitened by half.

    Whole whitening hides small plants among noise; without it a few directions decide.

    Example:
        >>> space = PatchSpace.fit(np.random.default_rng(0).normal(size=(50, 7)))
        >>> np.linalg.norm(space(np.ones((1, 7)))).round(3)
        np.float64(1.0)
    """

    mean: Float[np.ndarray, " c"]
    directions: Float[np.ndarray, "c d"]

    @classmethod
    def fit(cls, features: Float[np.ndarray, "n c"]) -> "PatchSpace":
        """Return the space of features."""
        mean = features.mean(0, dtype=np.float64)
        centered = features - mean
        variances, vectors = np.linalg.eigh(centered.T @ centered / max(len(features) - 1, 1))
        count = min(_DIMENSIONS, len(features) - 1, features.shape[1])
        top = slice(len(variances) - count, None)
        scales = variances[top].clip(1e-6 * max(variances[-1], 1e-12)) ** 0.25
        return cls(mean, vectors[:, top] / scales)

    def __call__(self, features: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "n d"]:
        """Return unit vectors of features."""
        vectors = (features - self.mean) @ self.directions
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)


@dataclass(frozen=True, eq=False)
class Patches:
    """Cells of photos, with their features.

    Args:
        photos: Index of the photo of each.
        cells: Row and column.
        vectors: Unit vectors in the space of patches.
        classes: Predicted class of the photo.
        on_objects: Whether it shows a part of an annotated object; False without annotations.
        evidence: Evidence there, as a multiple of that of a uniform map.
    """

    photos: Int[np.ndarray, " n"]
    cells: Int[np.ndarray, "n 2"]
    vectors: Float[np.ndarray, "n d"]
    classes: Int[np.ndarray, " n"]
    on_objects: Bool[np.ndarray, " n"]
    evidence: Float[np.ndarray, " n"]

    @classmethod
    def of(
        cls,
        rows: Sequence[PhotoEvidence],
        chosen: Sequence[int],
        space: PatchSpace,
        sample: Callable[[PhotoEvidence], CellSample | None],
    ) -> "Patches":
        """Return patches of photos.

        Args:
            rows: All photos.
            chosen: Indices of the photos that count.
            space: Where their features are compared.
            sample: Which cells of a photo are taken.
        """
        pairs = [(index, each) for index in chosen if (each := sample(rows[index])) is not None]
        pairs = [(index, each) for index, each in pairs if len(each.cells)]
        width = len(space.mean)
        features = [each.features for _, each in pairs] or [np.zeros((0, width), np.float32)]
        photos = np.repeat([index for index, _ in pairs], [len(each.cells) for _, each in pairs])
        photos = photos.astype(np.int64)
        cells = np.concatenate([each.cells for _, each in pairs] or [np.zeros((0, 2), np.int64)])
        classes = np.array([rows[index].prediction for index in photos.tolist()], dtype=np.int64)
        places = [(rows[index], y, x) for index, (y, x) in zip(photos.tolist(), cells.tolist(),
                                                               strict=True)]  # fmt: skip
        on_objects = np.array([_shows_object(*place) for place in places], bool)
        evidence = np.array([row.shares[y, x] / max(row.areas[y, x], 1e-9)
                             for row, y, x in places], float)  # fmt: skip
        return cls(photos, cells, space(np.concatenate(features)), classes, on_objects, evidence)

    def select(self, rows: Bool[np.ndarray, " n"]) -> "Patches":
        """Return some of the patches."""
        return Patches(*(getattr(self, each.name)[rows] for each in fields(self)))


def _shows_object(row: PhotoEvidence, y: int, x: int) -> bool:
    # A patch is wider than its cell: beside a thin object, it still shows it.
    around = (
        None if row.objects is None else row.objects[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
    )
    return around is not None and bool(around.max() >= _TOUCHED)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Patches of one class that look alike, in one place of the photos or in several.

    Args:
        class_index: The class.
        centers: Mean unit vector of each cluster.
        radii: Least similarity of a patch that belongs to each cluster.
        coherence: Mean cosine similarity of two of its patches, of the best cluster.
        purity: Share of the class among all patches that are as near.
        share: Share of the photos of the class.
        photos: Indices of these photos, nearest first.
        evidence: Mean evidence of its patches, as a multiple of that of a uniform map.
        score: Coherence squared times the root of share and evidence, by which candidates are
            ranked.
    """

    class_index: int
    centers: Float[np.ndarray, "m d"]
    radii: Float[np.ndarray, " m"]
    coherence: float
    purity: float
    share: float
    photos: tuple[int, ...]
    evidence: float
    score: float

    def members(self, patches: Patches) -> Bool[np.ndarray, " n"]:
        """Return which patches belong to it."""
        if not len(patches.vectors):
            return np.zeros(0, dtype=bool)
        return np.asarray((patches.vectors @ self.centers.T >= self.radii).any(1))

    def share_of(self, patches: Patches, photos: int) -> float:
        """Return in which share of the photos of the class one of these patches belongs to it."""
        own = self.members(patches) & (patches.classes == self.class_index)
        return len(np.unique(patches.photos[own])) / max(photos, 1)


def find_candidates(patches: Patches, counts: dict[int, int]) -> list[Candidate]:
    """Return the candidates of all classes, ranked by coherence, share and evidence.

    Args:
        patches: Cells with the most evidence, in the order of the names of their photos.
        counts: Number of photos of each class; of those with fewer than 20 none are searched.
    """
    ranked: list[Candidate] = []
    for class_index, count in sorted(counts.items()):
        if count < 2 * MIN_PHOTOS:
            continue
        own = patches.select(patches.classes == class_index)
        # Beside objects plants are easier to find; of small groups the others are needed, too.
        beside = own.select(~own.on_objects)
        candidates = [
            _candidate(patches, part, class_index, count, node)
            for part in ([own, beside] if len(beside.photos) < len(own.photos) else [own])
            for node in _best_nodes(part, count)
        ]
        pure = [each for each in candidates if each.purity >= _MIN_PURITY]
        ranked += _merged([each for each in pure if len(each.photos) >= MIN_PHOTOS])
    return sorted(ranked, key=lambda each: -each.score)


def _best_nodes(own: Patches, count: int) -> list[Int[np.ndarray, " n"]]:
    """Return the patches of the clusters with the highest scores that share no patch."""
    # Every node of the tree is a cluster, so that no distance has to be chosen where to cut it.
    vectors = own.vectors[:_MOST_PATCHES]
    number = len(vectors)
    if number < MIN_PHOTOS:
        return []
    tree = linkage(vectors, method="average", metric="cosine")
    sums = np.concatenate([vectors, np.zeros((number - 1, vectors.shape[1]))])
    members: list[list[int]] = [[index] for index in range(number)]
    scores: list[tuple[float, int]] = []
    least = max(MIN_PHOTOS, _MIN_SHARE * count)
    for node, (first, second) in enumerate(tree[:, :2].astype(int), start=number):
        sums[node] = sums[first] + sums[second]
        members.append(members[first] + members[second])
        photos = len({*own.photos[members[node]].tolist()})
        if photos >= least:
            coherence = _coherence(sums[node], len(members[node]))
            evidence = float(own.evidence[members[node]].mean())
            scores.append((_score(coherence, photos / count, evidence), node))
    chosen: list[Int[np.ndarray, " n"]] = []
    taken = np.zeros(number, dtype=bool)
    for _, node in sorted(scores, reverse=True):
        rows = np.array(members[node])
        if not taken[rows].any():
            chosen.append(rows)
            taken[rows] = True
        if len(chosen) == _PER_CLASS:
            break
    return chosen


def _coherence(total: Float[np.ndarray, " d"], count: int) -> float:
    """Return the mean cosine similarity of two of some unit vectors, from their sum."""
    return float((total @ total - count) / (count * (count - 1)))


def _score(coherence: float, share: float, evidence: float) -> float:
    # Plain background is most coherent of all; what holds no evidence is no candidate for it.
    return max(coherence, 0.0) ** 2 * (share * evidence) ** 0.5


def _candidate(
    patches: Patches, own: Patches, class_index: int, count: int, rows: Int[np.ndarray, " n"]
) -> Candidate:
    total = own.vectors[rows].sum(0)
    center = total / np.linalg.norm(total).clip(1e-12)
    # A member may be the limit itself, and products of other shapes round differently.
    radius = float(np.percentile(own.vectors[rows] @ center, _NEAR)) - _ROUNDING
    near = patches.vectors @ center >= radius
    purity = float((patches.classes[near] == class_index).mean()) if near.any() else 0.0
    similar = own.vectors @ center
    order = np.argsort(-similar, kind="stable")
    photos = tuple(dict.fromkeys(own.photos[order[similar[order] >= radius]].tolist()))
    share = len(photos) / count
    coherence = _coherence(total, len(rows))
    evidence = float(own.evidence[rows].mean())
    return Candidate(
        class_index, center[None], np.array([radius]), coherence, purity, share, photos,
        evidence, _score(coherence, share, evidence),
    )  # fmt: skip


def _merged(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates of which those on the same photos are one: the corners of a frame."""
    merged: list[Candidate] = []
    for each in sorted(candidates, key=lambda candidate: -candidate.score):
        for number, best in enumerate(merged):
            both = {*best.photos} & {*each.photos}
            if len(both) >= _SAME_PHOTOS * len({*best.photos} | {*each.photos}):
                merged[number] = replace(
                    best, centers=np.concatenate([best.centers, each.centers]),
                    radii=np.concatenate([best.radii, each.radii]),
                )  # fmt: skip
                break
        else:
            merged.append(each)
    return merged


def parts_of_one(candidates: Sequence[Candidate], patches: Patches) -> list[list[int]]:
    """Return the numbers of candidates that are parts of one thing, together.

    Their patches lie beside each other on most of the photos that they share, as the parts of a tag
    do, which cells cut in several ways. An object beside a tag is another thing.

    Args:
        candidates: The first one of each thing is also first in the answer.
        patches: Where they were found.
    """
    members = [each.members(patches) & (patches.classes == each.class_index) for each in candidates]
    things: list[tuple[list[int], Bool[np.ndarray, " n"]]] = []
    for number, (candidate, own) in enumerate(zip(candidates, members, strict=True)):
        for place, (numbers, known) in enumerate(things):
            is_same_class = candidates[numbers[0]].class_index == candidate.class_index
            if is_same_class and _touch(patches.select(known), patches.select(own)):
                things[place] = ([*numbers, number], known | own)
                break
        else:
            things.append(([number], own))
    return [numbers for numbers, _ in things]


def _touch(first: Patches, second: Patches) -> bool:
    """Whether nearly all of the patches on common photos have one of the others beside them."""
    places = [_by_photo(each) for each in (first, second)]
    beside = [len(each.photos) and (~each.on_objects).mean() >= BESIDE for each in (first, second)]
    both = places[0].keys() & places[1].keys()
    if beside[0] != beside[1] or len(both) < max(1, _COMMON * min(map(len, places))):
        return False
    touching: list[bool] = []
    for photo in both:
        apart = np.abs(places[0][photo][:, None] - places[1][photo]).max(2)
        is_near = apart <= 2  # maxima do not touch each other: these are as near as any two
        touching += [*is_near.any(0).tolist(), *is_near.any(1).tolist()]
    return bool(np.mean(touching) >= _TOUCHING)


def _by_photo(patches: Patches) -> dict[int, Int[np.ndarray, "n 2"]]:
    """Return the cells of each photo."""
    order = np.argsort(patches.photos, kind="stable")
    photos, starts = np.unique(patches.photos[order], return_index=True)
    return dict(zip(photos.tolist(), np.split(patches.cells[order], starts[1:]), strict=True))
