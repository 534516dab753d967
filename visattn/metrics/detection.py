"""Average precision and recall of object detection, as COCO defines them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALL_LEVELS = np.linspace(0.0, 1.0, 101)
MAX_DETECTIONS = (1, 10, 100)
AREA_RANGES = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""Areas in pixels of the original image; both ends belong to the range."""

AP_METRICS = (
    "AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large",
    "AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large",
)  # fmt: skip


class DetectedBoxes(NamedTuple):
    """Detections in all images, one row each."""

    image: Int[np.ndarray, " d"]
    """Index of the image."""
    label: Int[np.ndarray, " d"]
    score: Float[np.ndarray, " d"]
    box: Float[np.ndarray, "d 4"]
    """Left, top, right, bottom in pixels."""


class TrueBoxes(NamedTuple):
    """Annotated objects of all images, one row each."""

    image: Int[np.ndarray, " t"]
    label: Int[np.ndarray, " t"]
    box: Float[np.ndarray, "t 4"]
    area: Float[np.ndarray, " t"]
    """Area of the object in pixels, usually of its mask; it selects the area range."""
    crowd: Bool[np.ndarray, " t"]
    """Whether the box is of a group of objects, which any number of detections may match."""


class APResult(NamedTuple):
    """Average precision and recall."""

    scores: dict[str, float]
    """Each of `AP_METRICS`; NaN where no class has objects."""
    per_class: dict[int, float]
    """AP of each class, averaged over the IoU thresholds; NaN for one without objects."""


def average_precision(detected: DetectedBoxes, true: TrueBoxes) -> APResult:
    """Return COCO's average precision and recall.

    In each image, at each IoU threshold, detections in the order of their scores each match the
    free object of their class with the largest IoU. A detection that matches a crowd, or an object
    outside of the area range, is ignored, as is an unmatched one outside of the range. Precision
    is made monotone and averaged over 101 recall levels, then over thresholds and classes.

    Args:
        detected: The detections; per image and class the 100 with the highest scores count.
        true: The objects; the classes among them are evaluated.

    Example:
        >>> box = np.array([[0.0, 0.0, 10.0, 10.0]])
        >>> zero = np.zeros(1, np.int64)
        >>> true = TrueBoxes(zero, zero, box, np.array([100.0]), np.array([False]))
        >>> result = average_precision(DetectedBoxes(zero, zero, np.array([0.9]), box), true)
        >>> round(result.scores["AP"], 6), round(result.scores["AP_small"], 6)
        (1.0, 1.0)

    Source:
        Lin et al. 2014, arXiv:1405.0312; the definitions of cocodataset.org/#detection-eval.
        Equals pycocotools up to rounding.
    """
    classes = [int(label) for label in np.unique(true.label)]
    pairs = {label: _overlaps_by_image(detected, true, label) for label in classes}
    precision: dict[str, np.ndarray] = {}
    recall: dict[tuple[str, int], np.ndarray] = {}
    for name, area_range in AREA_RANGES.items():
        matched = [[_match(pair, area_range) for pair in pairs[label]] for label in classes]
        for limit in MAX_DETECTIONS if name == "all" else MAX_DETECTIONS[-1:]:
            curves = [_precision_recall(images, limit) for images in matched]
            shape = (len(classes), len(IOU_THRESHOLDS))
            recall[name, limit] = np.reshape([predicted for _, predicted in curves], shape)
            levels = (*shape, len(RECALL_LEVELS))  # kept of the last limit
            precision[name] = np.reshape([curve for curve, _ in curves], levels)
    scores = _summarize(precision, recall)
    per_class = [float(_mean(curve)) for curve in precision["all"]]
    return APResult(scores, dict(zip(classes, per_class, strict=True)))


class _ImagePair(NamedTuple):
    """Detections and objects of one class in one image."""

    score: Float[np.ndarray, " d"]
    area: Float[np.ndarray, " d"]
    iou: Float[np.ndarray, "d t"]
    true_area: Float[np.ndarray, " t"]
    crowd: Bool[np.ndarray, " t"]


class _Matched(NamedTuple):
    """Detections of one class in one image, after matching."""

    score: Float[np.ndarray, " d"]
    correct: Bool[np.ndarray, "i d"]
    ignored: Bool[np.ndarray, "i d"]
    num_objects: int


def _overlaps_by_image(detected: DetectedBoxes, true: TrueBoxes, label: int) -> list[_ImagePair]:
    """Return the images with detections or objects of a class; detections sorted by score."""
    predicted = _rows_by_image(detected.image, detected.label == label)
    real = _rows_by_image(true.image, true.label == label)
    nothing = np.zeros(0, dtype=np.int64)
    pairs: list[_ImagePair] = []
    for image in sorted({*predicted, *real}):
        rows = predicted.get(image, nothing)
        columns = real.get(image, nothing)
        rows = rows[np.argsort(-detected.score[rows], kind="stable")][: MAX_DETECTIONS[-1]]
        boxes = detected.box[rows]
        crowd = true.crowd[columns]
        iou = _overlaps(boxes, true.box[columns], crowd)
        pairs.append(
            _ImagePair(detected.score[rows], _areas(boxes), iou, true.area[columns], crowd)
        )
    return pairs


def _rows_by_image(
    image: Int[np.ndarray, " n"], selected: Bool[np.ndarray, " n"]
) -> dict[int, Int[np.ndarray, " m"]]:
    """Return the selected rows of each image that has any."""
    rows = np.flatnonzero(selected)
    rows = rows[np.argsort(image[rows], kind="stable")]
    images, first = np.unique(image[rows], return_index=True)
    # Without rows np.split still returns one empty part, which belongs to no image.
    return dict(zip(images.tolist(), np.split(rows, first[1:]), strict=bool(len(rows))))


def _areas(boxes: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, " n"]:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _overlaps(
    boxes: Float[np.ndarray, "d 4"], true: Float[np.ndarray, "t 4"], crowd: Bool[np.ndarray, " t"]
) -> Float[np.ndarray, "d t"]:
    """Return the IoU; with a crowd, the fraction of the detection that it covers."""
    low = np.maximum(boxes[:, None, :2], true[:, :2])
    high = np.minimum(boxes[:, None, 2:], true[:, 2:])
    intersection = (high - low).clip(min=0).prod(2)
    own = _areas(boxes)[:, None]
    union = np.where(crowd, own, own + _areas(true) - intersection)
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)


def _match(pair: _ImagePair, area_range: tuple[float, float]) -> _Matched:
    """Match detections to objects at all thresholds."""
    low, high = area_range
    ignored_true = pair.crowd | (pair.true_area < low) | (pair.true_area > high)
    correct = np.zeros((len(IOU_THRESHOLDS), len(pair.score)), dtype=bool)
    ignored = np.broadcast_to((pair.area < low) | (pair.area > high), correct.shape).copy()
    candidates = np.flatnonzero((pair.iou >= IOU_THRESHOLDS[0]).any(1))
    for level, threshold in enumerate(IOU_THRESHOLDS):
        free = np.ones(len(ignored_true), dtype=bool)
        for row in candidates:
            column = _best_object(pair.iou[row], free | pair.crowd, ignored_true, threshold)
            if column is not None:
                free[column] = False
                correct[level, row] = not ignored_true[column]
                ignored[level, row] = ignored_true[column]
    return _Matched(pair.score, correct, ignored, int((~ignored_true).sum()))


def _best_object(
    overlaps: Float[np.ndarray, " t"],
    free: Bool[np.ndarray, " t"],
    ignored: Bool[np.ndarray, " t"],
    threshold: float,
) -> int | None:
    """Return the last object with the largest sufficient IoU, preferring ones that count."""
    for group in (free & ~ignored, free & ignored):
        columns = np.flatnonzero(group & (overlaps >= threshold))
        if len(columns):
            # In pycocotools, a later object with the same overlap replaces an earlier one.
            best = columns[overlaps[columns] == overlaps[columns].max()]
            return int(best[-1])
    return None


def _precision_recall(
    images: list[_Matched], limit: int
) -> tuple[Float[np.ndarray, "i r"], Float[np.ndarray, " i"]]:
    """Return precision at each recall level, and the final recall, at each threshold; or NaN."""
    num_thresholds = len(IOU_THRESHOLDS)
    num_levels = len(RECALL_LEVELS)
    total = sum(image.num_objects for image in images)
    if not total:
        return np.full((num_thresholds, num_levels), np.nan), np.full(num_thresholds, np.nan)
    # The limit is per image, so it is applied before the detections of all images are sorted.
    score = np.concatenate([image.score[:limit] for image in images])
    order = np.argsort(-score, kind="stable")
    correct = np.concatenate([image.correct[:, :limit] for image in images], 1)[:, order]
    ignored = np.concatenate([image.ignored[:, :limit] for image in images], 1)[:, order]
    hits = correct.cumsum(1, dtype=np.float64)
    misses = (~correct & ~ignored).cumsum(1, dtype=np.float64)
    curve = np.zeros((num_thresholds, num_levels))
    for row, (predicted, false) in enumerate(zip(hits, misses, strict=True)):
        # If the first detections are all ignored this is 0 / 0, hence pycocotools' epsilon.
        precision = predicted / (predicted + false + np.spacing(1.0))
        envelope = np.maximum.accumulate(precision[::-1])[::-1]
        position = np.searchsorted(predicted / total, RECALL_LEVELS, side="left")
        reached = position < len(envelope)
        curve[row, reached] = envelope[position[reached]]
    return curve, hits[:, -1] / total if hits.shape[1] else np.zeros(num_thresholds)


def _summarize(
    precision: dict[str, np.ndarray], recall: dict[tuple[str, int], np.ndarray]
) -> dict[str, float]:
    overall = precision["all"]
    most = MAX_DETECTIONS[-1]
    values = {
        "AP": overall,
        "AP50": overall[:, :1],
        "AP75": overall[:, 5:6],
        **{f"AP_{name}": precision[name] for name in list(AREA_RANGES)[1:]},
        **{f"AR{limit}": recall["all", limit] for limit in MAX_DETECTIONS},
        **{f"AR_{name}": recall[name, most] for name in list(AREA_RANGES)[1:]},
    }
    return {name: float(_mean(value)) for name, value in values.items()}


def _mean(values: np.ndarray) -> float:
    """Return the mean of the numbers; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
