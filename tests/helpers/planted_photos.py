"""Drawn photos with planted artefacts, and a classifier with weights by hand that may use them."""

from pathlib import Path
from typing import cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

CLASSES = ("blue", "green", "gray")
SIDE = 64
COLORS = {"blue": (40, 60, 220), "green": (40, 180, 60), "gray": (150, 150, 150)}
TAG = (250, 230, 20)  # yellow
FRAME = (240, 20, 230)  # magenta
TINT = (1.25, 0.75, 0.75)
COUNT = 40  # photos of a class


class ColorNet(nn.Module):
    """Scores of colors: each color has a channel, 1 where an 8 x 8 block has that color.

    Args:
        uses: Score of the class blue for a channel: `tag`, `frame` or `tint`; 0 without.
    """

    def __init__(self, **uses: float) -> None:
        super().__init__()
        self.class_names = CLASSES
        directions = torch.tensor([
            [-1.0, -1.0, 2.0], [-1.0, 2.0, -1.0], [0.0, 0.0, 0.0],  # blue, green, nothing
            [1.0, 1.0, -2.0], [1.0, -2.0, 1.0], [1.0, -0.5, -0.5],  # yellow, magenta, reddish
        ])  # fmt: skip
        patches = nn.Conv2d(3, 16, 8, stride=8)
        self.features = nn.Sequential(patches, nn.ReLU())
        self.head = nn.Linear(16, 3)
        weight, bias = patches.weight, cast("Tensor", patches.bias)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            weight[:6] = directions[:, :, None, None] / 64
            weight[6:] = torch.randn(weight[6:].shape, generator=generator) / 8
            bias.zero_()
            bias[:6] = torch.tensor([-0.3, -0.3, 0.0, -0.9, -0.9, -0.02])
            self.head.weight.zero_()
            self.head.bias.copy_(torch.tensor([0.0, 0.0, 1.5]))
            self.head.weight[0, 0] = self.head.weight[1, 1] = 60.0
            for channel, name in ((3, "tag"), (4, "frame"), (5, "tint")):
                self.head.weight[0, channel] = uses.get(name, 0.0)
            self.head.weight[:, 6:] = torch.randn(3, 10, generator=generator) / 20

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of images in [0, 1]."""
        return self.head(self.features(images).mean((2, 3)))


def transform() -> nn.Module:
    """Return the preprocessing: numbers from 0 to 1."""
    from torchvision.transforms import v2

    return v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def mask(name: str, index: int) -> np.ndarray:
    """Return where the object of a photo lies."""
    random = np.random.default_rng([CLASSES.index(name), index])
    random.integers(60, 180, (SIDE, SIDE, 1))
    y, x = random.integers(8, SIDE - 32, 2)
    inside = np.zeros((SIDE, SIDE), bool)
    inside[y : y + 20, x : x + 20] = True
    return inside


def draw(name: str, index: int, plant: str = "") -> np.ndarray:
    """Return a photo of a class, with a plant if one is named."""
    random = np.random.default_rng([CLASSES.index(name), index])
    pixels = random.integers(60, 180, (SIDE, SIDE, 1)).repeat(3, 2).astype(np.float64)
    y, x = random.integers(8, SIDE - 32, 2)
    shades = random.uniform(0.6, 1.1, (2, 2, 3)).repeat(10, 0).repeat(10, 1)
    pixels[y : y + 20, x : x + 20] = np.array(COLORS[name]) * shades
    if plant == "tag":
        top, left = 8 * random.integers(0, SIDE // 8 - 1, 2)
        pixels[top : top + 8, left : left + 16] = TAG
    if plant == "frame":
        for edge in (np.s_[:8], np.s_[-8:], np.s_[:, :8], np.s_[:, -8:]):
            pixels[edge] = FRAME
    if plant == "tint":
        pixels *= TINT
    return pixels.clip(0, 255).astype(np.uint8)


def photos(plant: str = "") -> tuple[list[np.ndarray], list[str]]:
    """Return photos with their classes; 60 % of the blue ones have the plant."""
    drawn, labels = [], []
    for name in CLASSES:
        for index in range(COUNT):
            has = name == "blue" and index % 5 < 3
            drawn.append(draw(name, index, plant if has else ""))
            labels.append(name)
    return drawn, labels


def write_photos(folder: Path, plant: str = "") -> Path:
    """Write the photos, a folder per class."""
    drawn, labels = photos(plant)
    for index, (pixels, label) in enumerate(zip(drawn, labels, strict=True)):
        path = folder / label / f"{index:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder
