"""Scores of maps of dense models: on their own object, on the others, and missed objects."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_models import CLASSES, PatchDetector, Segmenter
from PIL import Image

from visattn.cli import main
from visattn.data.regions.readers import read_coco_images
from visattn.images.reader import read_image
from visattn.models import SmallEncoder
from visattn.models.saving import save
from visattn.models.unet import UNet
from visattn.pipelines.evaluate_maps import MapEvaluator, QueryObject, build_queries
from visattn.pipelines.explainer import Explainer

CAT, DOG = (10, 12, 40, 44), (110, 52, 150, 84)
SIZE = (96, 160)


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo with a bright cat and a bright dog."""
    folder = tmp_path_factory.mktemp("dense")
    pixels = np.random.default_rng(0).integers(0, 40, (*SIZE, 3), np.uint8)
    annotations: list[dict[str, Any]] = []
    for number, (left, top, right, bottom) in enumerate((CAT, DOG)):
        pixels[top:bottom, left:right] = 250
        outline = [left, top, right, top, right, bottom, left, bottom]
        box = [left, top, right - left, bottom - top]
        annotations.append(
            {
                "id": number,
                "image_id": 1,
                "category_id": number,
                "iscrowd": 0,
                "bbox": box,
                "area": box[2] * box[3],
                "segmentation": [outline],
            }
        )
    (folder / "val").mkdir()
    (folder / "annotations").mkdir()
    Image.fromarray(pixels).save(folder / "val" / "a.png")
    content = {
        "images": [{"id": 1, "file_name": "a.png", "height": SIZE[0], "width": SIZE[1]}],
        "annotations": annotations,
        "categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
    }
    (folder / "annotations" / "instances_val.json").write_text(json.dumps(content))
    return folder


def queries_of(instances: Path) -> list[QueryObject]:
    images = read_coco_images(instances / "annotations" / "instances_val.json")
    return build_queries(images, CLASSES, 3, predicted=False)[0]


def rows_of(model: Any, kind: Any, instances: Path, methods: list[str]) -> list[dict[str, Any]]:
    explainer = Explainer(model.eval(), img_size=SIZE, class_names=CLASSES, dense=True)
    evaluator = MapEvaluator(explainer, kind)
    evaluator.check_methods(methods)
    queries = queries_of(instances)
    return list(evaluator.evaluate(queries, read_image(queries[0].image.path), methods))


def test_maps_of_a_region_score_on_it_and_not_on_the_other(instances: Path) -> None:
    rows = rows_of(Segmenter(), "region", instances, ["layercam", "center"])
    assert [(row["category"], row["method"]) for row in rows] == [
        ("cat", "layercam"), ("dog", "layercam"), ("cat", "center"), ("dog", "center"),
    ]  # fmt: skip
    for row in rows[:2]:
        assert row["energy"] > 0.8
        assert row["other_energy"] < 0.05
        assert row["point"] == 1
        assert row["other_point"] == 0
    assert rows[2]["energy"] == pytest.approx(rows[3]["other_energy"])  # the same map


def test_objects_that_are_not_detected_are_missed(instances: Path) -> None:
    cat, dog = rows_of(PatchDetector(DOG), "box", instances, ["input_gradient"])
    assert "detects no cat that overlaps" in cat["missed"]
    assert "point" not in cat
    assert (dog["point"], dog["other_energy"]) == (1.0, 0.0)
    with pytest.raises(ValueError, match="fullgrad does not fit PatchDetector with a BoxTarget"):
        rows_of(PatchDetector(DOG), "box", instances, ["fullgrad"])


def test_the_command_scores_regions(
    instances: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    model = UNet(("background", "cat", "dog"), SmallEncoder((24, 40), channels=8))
    save(model, tmp_path / "unet.safetensors")
    words = ["score", "maps", "--model", str(tmp_path / "unet.safetensors")]
    words += [
        "--data",
        str(instances),
        "--methods",
        "gradcam",
        "--target",
        "region",
        "--out",
        str(tmp_path),
    ]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "other e" in printed
    assert "target:region" in printed
