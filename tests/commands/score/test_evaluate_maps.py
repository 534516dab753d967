"""Scores of maps are those of the maps as they are placed on the image."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from visattn.attribution import analyze_model
from visattn.commands.score.evaluate_maps import MapEvaluator, QueryObject
from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.geometry.placement import Align
from visattn.images.reader import read_image
from visattn.metrics.faithfulness import PerturbationSchedule
from visattn.pipelines.explainer import Explainer

SIDE, SQUARE = 80, (28, 37)  # the cell 2 of 5 is centered at 32.5; drawn from edge to edge at 40


class Blur(nn.Module):
    """Four halvings by 3 x 3 averages with stride 2 and padding 1, and the brightness as score."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(*(nn.Conv2d(3, 3, 3, 2, 1, bias=False) for _ in range(4)))
        self.head = nn.Linear(3, 2, bias=False)
        with torch.no_grad():
            for weight in self.stages.parameters():
                weight.fill_(1 / 27)
            self.head.weight.copy_(torch.tensor([[9.0], [-9.0]]).expand(2, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits of a bright image, and of a dark one."""
        return self.head(self.stages(images).relu().mean((2, 3)))


def scores(folder: Path, align: Align) -> dict[str, float]:
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
    explained = analyze_model(Blur().eval(), SIDE)
    schedule = PerturbationSchedule(steps=64)
    parts = ("localization", "insertion_deletion")
    explainer = Explainer(explained, resize_mode="squash", align=align)
    evaluator = MapEvaluator(explainer, parts, schedule=schedule)
    query = QueryObject(annotated, "square", (0,))
    [row] = evaluator.evaluate([query], [read_image(path)], ["gradcam"])
    return row


def test_cells_are_scored_where_their_receptive_fields_lie(tmp_path: Path) -> None:
    field, edges = scores(tmp_path, "receptive_field"), scores(tmp_path, "edges")
    assert (field["point"], edges["point"]) == (1, 0)
    assert field["energy"] > 1.2 * edges["energy"]


def test_pixels_are_removed_where_the_receptive_fields_lie(tmp_path: Path) -> None:
    field, edges = scores(tmp_path, "receptive_field"), scores(tmp_path, "edges")
    assert field["deletion"] < edges["deletion"] - 0.01


@pytest.mark.parametrize("align", ["receptive_field", "edges"])
def test_placement_of_the_explainer_is_that_of_the_scored_map(tmp_path: Path, align: Align) -> None:
    """The scores are those of the map that `Explainer` returns, resized to the image."""
    row = scores(tmp_path, align)
    explainer = Explainer(Blur().eval(), img_size=SIDE, resize_mode="squash", align=align)
    batch = explainer.prepare([tmp_path / "square.png"])
    [placed] = explainer.map(batch, "gradcam", 0)
    values = placed.resize_to_image().double()
    share = values[slice(*SQUARE), slice(*SQUARE)].sum() / values.sum()
    assert row["energy"] == pytest.approx(float(share), rel=1e-5)
