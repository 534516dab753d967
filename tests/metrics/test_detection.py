"""Average precision: by hand, its laws, and pycocotools and faster-coco-eval as oracles."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from visattn.metrics.detection import (
    AP_METRICS,
    DetectedBoxes,
    TrueBoxes,
    average_precision,
)

PYTHON = Path(__file__).resolve().parents[2] / ".venv-peers" / "bin" / "python"
SCRIPT = """
import contextlib, io, json, sys
from faster_coco_eval import COCO as FasterCOCO, COCOeval_faster
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

results = []
for case in json.load(open(sys.argv[1])):
    results.append([])
    for data, evaluation in ((COCO, COCOeval), (FasterCOCO, COCOeval_faster)):
        with contextlib.redirect_stdout(io.StringIO()):
            truth = data()
            truth.dataset = case["truth"]
            truth.createIndex()
            scores = evaluation(truth, truth.loadRes(case["detections"]), "bbox")
            scores.evaluate(), scores.accumulate(), scores.summarize()
        results[-1].append([float(score) for score in scores.stats[:12]])
json.dump(results, open(sys.argv[2], "w"))
"""


def true_boxes(*rows: tuple[int, int, tuple[float, ...]], crowd: tuple[int, ...] = ()) -> TrueBoxes:
    """Return objects from image, label and box."""
    image, label, box = (np.array(part) for part in zip(*rows, strict=True))
    box = box.astype(float)
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])
    return TrueBoxes(image, label, box, area, np.isin(np.arange(len(rows)), crowd))


def detected(*rows: tuple[int, int, float, tuple[float, ...]]) -> DetectedBoxes:
    """Return detections from image, label, score and box."""
    image, label, score, box = (np.array(part) for part in zip(*rows, strict=True))
    return DetectedBoxes(image, label, score.astype(float), box.astype(float))


BOX, OTHER = (10.0, 10.0, 50.0, 50.0), (60.0, 60.0, 99.0, 99.0)
TRUE = true_boxes((0, 0, BOX), (0, 1, OTHER), (1, 0, OTHER))


def random_case(seed: int) -> tuple[DetectedBoxes, TrueBoxes]:
    """Return detections around objects, with crowds, ties, wrong classes and wrong images."""
    rng = np.random.default_rng(seed)
    images, classes = rng.integers(1, 9), rng.integers(1, 5)
    count, predicted = rng.integers(1, 40), rng.integers(1, 300)
    corner, size = rng.uniform(0, 200, (count, 2)), rng.uniform(2, 150, (count, 2))
    box = np.concatenate([corner, corner + size], 1).round(1)
    area = (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) * rng.uniform(0.4, 1, count)
    image, label = rng.integers(0, images, count), rng.integers(0, classes, count)
    true = TrueBoxes(image, label, box, area, rng.random(count) < 0.15)
    source = rng.integers(0, count, predicted)
    near = box[source] + rng.normal(0, rng.choice([1, 5, 20]), (predicted, 4))
    near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
    other = rng.random((2, predicted)) < 0.2
    return DetectedBoxes(
        np.where(other[0], rng.integers(0, images, predicted), image[source]),
        np.where(other[1], rng.integers(0, classes, predicted), label[source]),
        rng.random(predicted).round(1 if seed % 2 else 6),
        near.round(1),
    ), true


def test_no_detections_score_zero_and_no_objects_have_no_score() -> None:
    empty = np.zeros(0, np.int64)
    nothing = DetectedBoxes(empty, empty, np.zeros(0), np.zeros((0, 4)))
    scores = average_precision(nothing, TRUE).scores
    assert (scores["AP"], scores["AR100"]) == (0, 0)
    true = TrueBoxes(empty, empty, np.zeros((0, 4)), np.zeros(0), empty.astype(bool))
    for predicted in (nothing, detected((0, 0, 0.5, BOX))):
        assert all(map(math.isnan, average_precision(predicted, true).scores.values()))


def test_one_of_two_objects_by_hand() -> None:
    """A false detection comes first: precision 1/2 up to recall 1/2, 51 of 101 levels."""
    true = true_boxes((0, 0, BOX), (1, 0, BOX))
    predicted = detected((0, 0, 0.9, OTHER), (0, 0, 0.8, BOX))
    result = average_precision(predicted, true)
    assert result.scores["AP"] == pytest.approx(0.5 * 51 / 101)
    assert (result.scores["AR1"], result.scores["AR10"]) == (0, 0.5)


def test_overlap_counts_at_the_thresholds_below_it() -> None:
    predicted = detected((0, 0, 0.9, (10.0, 10.0, 50.0, 39.0)))  # IoU 29/40 = 0.725
    scores = average_precision(predicted, true_boxes((0, 0, BOX))).scores
    assert (scores["AP50"], scores["AP75"]) == (pytest.approx(1), 0)
    assert scores["AP"] == pytest.approx(0.5)  # 0.5, 0.55, 0.6, 0.65, 0.7


def test_a_duplicate_is_wrong_but_many_may_match_a_crowd() -> None:
    predicted = detected((0, 0, 0.9, OTHER), (0, 0, 0.8, OTHER), (0, 0, 0.7, BOX))
    true = true_boxes((0, 0, BOX), (0, 0, OTHER))
    assert average_precision(predicted, true).scores["AP50"] == pytest.approx(
        (51 + 50 * 2 / 3) / 101
    )
    true = true_boxes((0, 0, BOX), (0, 0, OTHER), crowd=(1,))
    assert average_precision(predicted, true).scores["AP50"] == pytest.approx(1)


def test_only_a_hundred_detections_per_image_and_class_count() -> None:
    rows = [(0, 0, 0.9, OTHER)] * 100 + [(0, 0, 0.8, BOX)]
    assert average_precision(detected(*rows), true_boxes((0, 0, BOX))).scores["AP"] == 0
    assert average_precision(detected(*rows[1:]), true_boxes((0, 0, BOX))).scores["AP"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_order_of_images_and_monotone_scores_do_not_matter(seed: int) -> None:
    predicted, true = random_case(2 * seed)  # without ties
    before = average_precision(predicted, true)
    order = np.random.default_rng(seed).permutation(len(predicted.image))
    moved = DetectedBoxes(*(part[order] for part in predicted))
    moved = moved._replace(score=moved.score**3 / 2, image=99 - moved.image)
    after = average_precision(moved, true._replace(image=99 - true.image))
    assert after.scores == pytest.approx(before.scores, abs=1e-12, nan_ok=True)


@pytest.mark.peers
def test_equals_pycocotools_and_faster_coco_eval(tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip("needs make peers")
    pairs = [random_case(seed) for seed in range(60)]
    (tmp_path / "in.json").write_text(json.dumps([coco_case(*pair) for pair in pairs]))
    files = [tmp_path / "oracle.py", tmp_path / "in.json", tmp_path / "out.json"]
    files[0].write_text(SCRIPT)
    subprocess.run([PYTHON, *files], check=True)
    for pair, peers in zip(pairs, json.loads(files[2].read_text()), strict=True):
        named = average_precision(*pair).scores
        own = [-1 if math.isnan(named[name]) else named[name] for name in AP_METRICS]
        for scores in peers:
            assert own == pytest.approx(scores, abs=1e-8)


def coco_case(predicted: DetectedBoxes, true: TrueBoxes) -> dict[str, Any]:
    """Return detections and objects as COCO writes them."""

    def rows(boxes: Any, **columns: Any) -> list[dict[str, Any]]:
        size = np.concatenate([boxes.box[:, :2], boxes.box[:, 2:] - boxes.box[:, :2]], 1)
        columns |= {"image_id": boxes.image + 1, "category_id": boxes.label + 1, "bbox": size}
        lists = [values.tolist() for values in columns.values()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]

    crowd = true.crowd.astype(int)
    truth = {
        "info": {},
        "images": [{"id": number, "width": 400, "height": 400} for number in range(1, 10)],
        "categories": [{"id": number, "name": str(number)} for number in range(1, 6)],
        "annotations": rows(true, id=np.arange(len(crowd)) + 1, area=true.area, iscrowd=crowd),
    }
    return {"truth": truth, "detections": rows(predicted, score=predicted.score)}
