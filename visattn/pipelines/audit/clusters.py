"""Patches of many photos that hold the evidence for a class and look alike to the model."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.cluster.hierarchy import linkage

from visattn.pipelines.audit.evidence import CellSample, PhotoEvidence

MIN_PHOTOS = 10
_MIN_SHARE, _MIN_PURITY = 0.05, 0.6
_DIMENSIONS = 32
_MOST_PATCHES = 2000  # of a class, which are clustered; the rest is assigned
_PER_CLASS = 3  # candidates, before those of the same photos are merged
_SAME_PHOTOS = 0.75  # intersection over union
_TOGETHER = 0.6  # correlation of the photos that have them anywhere
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
    """Features of patches, whitened and reduced to their main directions.

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
        scales = np.sqrt(variances[top].clip(1e-6 * max(variances[-1], 1e-12)))
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
    """

    photos: Int[np.ndarray, " n"]
    cells: Int[np.ndarray, "n 2"]
    vectors: Float[np.ndarray, "n d"]
    classes: Int[np.ndarray, " n"]

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
        return cls(photos, cells, space(np.concatenate(features)), classes)

    def select(self, rows: Bool[np.ndarray, " n"]) -> "Patches":
        """Return some of the patches."""
        return Patches(self.photos[rows], self.cells[rows], self.vectors[rows], self.classes[rows])


@dataclass(frozen=True, eq=False)
class PatchPool:
    """Patches of one half of the photos.

    Args:
        indices: Indices of these photos.
        top: Their cells with the most evidence.
        anywhere: Other cells of those of them that have controls.
    """

    indices: Sequence[int]
    top: Patches
    anywhere: Patches

    @classmethod
    def of(
        cls, rows: Sequence[PhotoEvidence], indices: Sequence[int], space: PatchSpace
    ) -> "PatchPool":
        """Return the patches of photos, from all of them, their indices, and a space."""
        top, anywhere = (
            Patches.of(rows, indices, space, sample)
            for sample in (lambda row: row.top, lambda row: row.random)
        )
        return cls(indices, top, anywhere)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Patches of one class that look alike, in one place of the photos or in several.

    Args:
        class_index: The class.
        centers: Mean unit vector of each cluster.
        radii: Least similarity of a patch that belongs to each cluster.
        coherence: Mean cosine similarity of two of its patches, of the best cluster.
        others: Share of the photos of other classes that have such a patch anywhere.
        purity: Share of the photos of its class that have one, over the sum of that and `others`:
            1/2 for what is as frequent in all classes, such as a plain background.
        share: Share of the photos of the class with such a patch at a maximum of the evidence.
        photos: Indices of these photos, nearest first.
        score: (Coherence times (2 purity - 1)) squared times the root of the share, by which
            candidates are ranked.
    """

    class_index: int
    centers: Float[np.ndarray, "m d"]
    radii: Float[np.ndarray, " m"]
    coherence: float
    others: float
    purity: float
    share: float
    photos: tuple[int, ...]
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


def find_candidates(pool: PatchPool, counts: dict[int, int]) -> list[Candidate]:
    """Return the candidates of all classes, ranked by coherence and share.

    Args:
        pool: Patches of the photos of the search, in the order of their names.
        counts: Number of photos of each class; of those with fewer than 20 none are searched.
    """
    ranked: list[Candidate] = []
    for class_index, count in sorted(counts.items()):
        if count < 2 * MIN_PHOTOS:
            continue
        own = pool.top.select(pool.top.classes == class_index)
        if len(own.photos) < 2:
            continue
        nodes = _best_nodes(own, count)
        candidates = [_candidate(pool.anywhere, own, class_index, count, node) for node in nodes]
        pure = [each for each in candidates if each.purity >= _MIN_PURITY]
        ranked += _merged([each for each in pure if len(each.photos) >= MIN_PHOTOS], pool.anywhere)
    return sorted(ranked, key=lambda each: -each.score)


def _best_nodes(own: Patches, count: int) -> list[Int[np.ndarray, " n"]]:
    """Return the patches of the clusters with the highest scores that share no patch."""
    # Every node of the tree is a cluster, so that no distance has to be chosen where to cut it.
    vectors = own.vectors[:_MOST_PATCHES]
    number = len(vectors)
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
            score = _score(_coherence(sums[node], len(members[node])), photos / count)
            scores.append((score, node))
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


def _score(coherence: float, share: float) -> float:
    return max(coherence, 0.0) ** 2 * share**0.5


def _candidate(
    anywhere: Patches, own: Patches, class_index: int, count: int, rows: Int[np.ndarray, " n"]
) -> Candidate:
    total = own.vectors[rows].sum(0)
    center = total / np.linalg.norm(total).clip(1e-12)
    radius = float(np.percentile(own.vectors[rows] @ center, _NEAR))
    inside, others = _presence(anywhere, class_index, center[None], np.array([radius]))
    purity = (inside.mean() if len(inside) else 1.0) + 1e-9
    purity = float(purity / (purity + others + 1e-9))
    similar = own.vectors @ center
    order = np.argsort(-similar, kind="stable")
    photos = tuple(dict.fromkeys(own.photos[order[similar[order] >= radius]].tolist()))
    share = len(photos) / count
    coherence = _coherence(total, len(rows))
    return Candidate(
        class_index, center[None], np.array([radius]), coherence, others, purity, share, photos,
        _score(coherence, share) * max(2 * purity - 1, 0.0) ** 2,
    )  # fmt: skip


def _presence(
    anywhere: Patches, class_index: int, centers: Float[np.ndarray, "m d"],
    radii: Float[np.ndarray, " m"],
) -> tuple[Bool[np.ndarray, " photos"], float]:  # fmt: skip
    """Return which photos of a class have a patch anywhere, and the share of those of others."""
    near = (anywhere.vectors @ centers.T >= radii).any(1)
    photos, first, number = np.unique(anywhere.photos, return_index=True, return_inverse=True)
    has = np.zeros(len(photos), dtype=bool)
    np.logical_or.at(has, number, near)
    own = anywhere.classes[first] == class_index
    return has[own], float(has[~own].mean()) if (~own).any() else 0.0


def _merged(candidates: Sequence[Candidate], anywhere: Patches) -> list[Candidate]:
    """Return candidates of which those on the same photos are one: the sides of a frame."""

    def is_one(first: Candidate, second: Candidate) -> bool:
        both = {*first.photos} & {*second.photos}
        if len(both) >= _SAME_PHOTOS * len({*first.photos} | {*second.photos}):
            return True
        present = [_presence(anywhere, each.class_index, each.centers, each.radii)[0]
                   for each in (first, second)]  # fmt: skip
        vary = all(each.any() and not each.all() for each in present)
        return vary and bool(np.corrcoef(present[0], present[1])[0, 1] >= _TOGETHER)

    merged: list[Candidate] = []
    for each in sorted(candidates, key=lambda candidate: -candidate.score):
        for number, best in enumerate(merged):
            if is_one(best, each):
                merged[number] = Candidate(
                    best.class_index,
                    np.concatenate([best.centers, each.centers]),
                    np.concatenate([best.radii, each.radii]),
                    best.coherence, best.others, best.purity, best.share, best.photos, best.score,
                )  # fmt: skip
                break
        else:
            merged.append(each)
    return merged
