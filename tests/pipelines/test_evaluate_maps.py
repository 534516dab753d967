"""Scores of maps are those of the maps as they are placed on the image."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.images.reader import read_image
from visattn.metrics.faithfulness import PerturbationSchedule
from visattn.pipelines.evaluate_maps import MapEvaluator, QueryObject
from visattn.pipelines.explainer import Explainer
from visattn.recording.cell_strides import CellStrides

SIDE, SQUARE = 75, (26, 33)  # the cell 1 of 5 is centered at 29.5; drawn from edge to edge at 22.5


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
    explainer = Explainer(Blur().eval(), img_size=SIDE, resize_mode="squash")
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


def test_the_scored_map_is_that_of_the_explainer(tmp_path: Path) -> None:
    row = scores(tmp_path)
    explainer = Explainer(Blur().eval(), img_size=SIDE, resize_mode="squash")
    batch = explainer.prepare([tmp_path / "square.png"])
    [placed] = explainer.map(batch, "gradcam", 0)
    assert placed.margin == (18, 18)
    values = placed.resize_to_image().double()
    share = values[slice(*SQUARE), slice(*SQUARE)].sum() / values.sum()
    assert row["energy"] == pytest.approx(float(share), rel=1e-5)
