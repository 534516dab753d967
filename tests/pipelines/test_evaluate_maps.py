"""Scores of maps: as they are placed on the image, on their own object, and on the others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_models import CLASSES, PatchDetector, Segmenter
from PIL import Image
from segmentation_data import write_coco
from torch import nn

from visattn.cli import main
from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.regions.readers import read_coco_images
from visattn.images.reader import read_image
from visattn.metrics.faithfulness import PerturbationSchedule
from visattn.models import SmallEncoder
from visattn.models.saving import save
from visattn.models.unet import UNet
from visattn.pipelines.evaluate_maps import MapEvaluator, QueryObject, build_queries
from visattn.pipelines.explainer import Explainer
from visattn.recording.places import CellStrides

SIDE, SQUARE = 75, (26, 33)  # the cell 1 of 5 is centered at 29.5; drawn from edge to edge at 22.5
CAT, DOG = (10, 12, 40, 44), (110, 52, 150, 84)
SIZE = (96, 160)


class Blur(nn.Module):
    """Three halvings by 7 x 7 kernels without padding, and the brightness as score."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(*(nn.Conv2d(3, 3, 7, 2, bias=False) for _ in range(3)))
        self.head = nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            for weight in self.stages.parameters():
                weight.zero_()[:, :, 3, 3] = 1 / 3
            self.head.weight.copy_(torch.tensor([[9.0], [-9.0]]).expand(2, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits of a bright image, and of a dark one."""
        return self.head(self.stages(images).relu().mean((2, 3)))


def scores(folder: Path) -> dict[str, float]:
    """Return the scores of Grad-CAM on an image with a bright square around a cell's center."""
    pixels = np.full((SIDE, SIDE, 3), (124, 116, 104), np.uint8)  # which is normalized to 0
    pixels[slice(*SQUARE), slice(*SQUARE)] = 255
    path = folder / "square.png"
    Image.fromarray(pixels).save(path)
    left, right = SQUARE
    outline = [left, left, right, left, right, right, left, right]
    annotated = AnnotatedImage(
        path.name, path, (SIDE, SIDE), (AnnotatedObject("square", [outline]),)
    )
    explainer = Explainer(Blur().eval(), input_size=SIDE, resize_mode="squash")
    schedule = PerturbationSchedule(steps=64)
    evaluator = MapEvaluator(explainer, schedule=schedule)
    query = QueryObject(annotated, "square", (0,))
    [row] = evaluator.evaluate([query], read_image(path), ["gradcam"])
    return row


def test_maps_are_scored_and_pixels_removed_where_the_cells_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = scores(tmp_path)
    monkeypatch.setattr(CellStrides, "margin", lambda *_: (0, 0))
    stretched = scores(tmp_path)
    assert (own["point"], stretched["point"]) == (1, 0)
    assert own["energy"] > 1.2 * stretched["energy"]
    assert own["deletion"] < stretched["deletion"] - 0.01


@pytest.fixture(scope="module")
def instances(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo with a bright cat and a bright dog."""
    folder = tmp_path_factory.mktemp("dense")
    pixels = np.random.default_rng(0).integers(0, 40, (*SIZE, 3), np.uint8)
    objects = []
    for name, (left, top, right, bottom) in (("cat", CAT), ("dog", DOG)):
        pixels[top:bottom, left:right] = 250
        objects.append((0, name, (left, top, right - left, bottom - top)))
    write_coco(folder, "val", [pixels], objects, {"cat": 0, "dog": 1})
    return folder


def rows_of(model: Any, kind: Any, instances: Path, methods: list[str]) -> list[dict[str, Any]]:
    explainer = Explainer(model.eval(), input_size=SIZE, class_names=CLASSES, dense=True)
    evaluator = MapEvaluator(explainer, kind)
    evaluator.check_methods(methods)
    images = read_coco_images(instances / "annotations" / "instances_val.json")
    queries, _ = build_queries(images, CLASSES, 3, predicted=False)
    rows = evaluator.evaluate(queries, read_image(queries[0].image.path), methods)
    return sorted(rows, key=lambda row: methods.index(row["method"]))


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
    words = ["score", "maps", "--model", str(tmp_path / "unet.safetensors"), "--data"]
    words += [str(instances), "--methods", "gradcam", "--target", "region", "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "other e" in printed
    assert "target:region" in printed
