"""Draw `receptive_fields.png`: what a cell looks at, and maps around objects, in both placements.

    python docs/placement_figure.py --run RUN    # a classifier trained as receptive_fields.md says

Left: the map stretched over the input from edge to edge. Right: each cell around the center of its
receptive field. Above: what one cell looks at, which is the same in both tiles, and the cells as
they are drawn; the one that looks has the bright frame. Below: the maximum of the Grad-CAM map of
each test scene, seen from the center of its object; the ring has the mean size of the objects.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gallery_figures import tiled
from PIL import Image, ImageDraw

import visattn as va
from visattn.commands.options import CommandParser
from visattn.data import Scenes
from visattn.data.scenes.dataset import SINGLE_OBJECT, SingleObjectScenes, single_object_scenes
from visattn.geometry.placement import Align, GridPlacement
from visattn.models import load_model
from visattn.viz import colormap_lut

HERE = Path(__file__).resolve().parent
SIZE, SIDE = 96, 336
SCALE = SIDE / SIZE
REACH = 24
"""Pixels on each side of the center of an object in the lower tiles."""
RADIUS = 0.145 * SIZE
"""Mean radius of an object."""
CELL = (2, 2)
ALIGNS: tuple[Align, ...] = ("edges", "receptive_field")
WHITE = (255, 255, 255)


def test_scenes(count: int) -> SingleObjectScenes:
    """Return test scenes like those that the classifier was trained on."""
    config = replace(SINGLE_OBJECT, textures=("plain",))
    return single_object_scenes(Scenes(count, size=SIZE, config=config, split="test"))


def looked_at(model: torch.nn.Module, images: torch.Tensor, layer: str) -> torch.Tensor:
    """Return how much a cell depends on each pixel: squared gradients, as the mean of images."""
    features: list[torch.Tensor] = []
    hook = model.get_submodule(layer).register_forward_hook(lambda *call: features.append(call[2]))
    random = torch.Generator().manual_seed(0)
    noise = torch.rand(images.shape, generator=random).requires_grad_()
    model(noise)
    hook.remove()
    cells = features[0][:, :, CELL[0], CELL[1]]
    [gradient] = torch.autograd.grad(
        (cells * torch.randn(cells.shape, generator=random)).sum(), noise
    )
    return gradient.square().sum(1).mean(0).sqrt()


def with_cells(tile: Image.Image, heatmap: va.AttentionMap) -> Image.Image:
    """Draw the outlines of the cells of a map, one of them bright."""
    draw = ImageDraw.Draw(tile)
    placement = heatmap.placement or GridPlacement.edges((SIZE, SIZE))
    rows, columns = heatmap.values.shape
    (height, width), (y, x) = placement.step((rows, columns)), placement.centers((rows, columns))
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    for row, column in [*cells, CELL]:
        center, bright = (float(x[column]), float(y[row])), (row, column) == CELL
        sides = [center[0] - width / 2, center[1] - height / 2]
        sides += [center[0] + width / 2, center[1] + height / 2]
        color = WHITE if bright else (140, 140, 140)
        draw.rectangle(
            [round(side * SCALE) for side in sides], outline=color, width=3 if bright else 1
        )
    return tile


def peaks(maps: Sequence[va.AttentionMap], drawn: SingleObjectScenes) -> Image.Image:
    """Return a tile with the maxima of maps as dots, around the common center of all objects."""
    tile = Image.new("RGB", (2 * SIDE, 2 * SIDE), (20, 20, 28))  # halved at the end: smooth dots
    draw = ImageDraw.Draw(tile, "RGBA")

    def disc(x: float, y: float, radius: float, **style: Any) -> None:
        box = [(side + REACH) * SIDE / REACH for side in (x - radius, y - radius)]
        box += [(side + REACH) * SIDE / REACH for side in (x + radius, y + radius)]
        draw.ellipse(box, **style)

    for heatmap, center in zip(maps, drawn.centers.tolist(), strict=True):
        x, y = ((side + 1) / 2 * SIZE for side in center)
        row, column = divmod(int(heatmap.resize_to_image().nan_to_num(-1).argmax()), SIZE)
        disc(column + 0.5 - x, row + 0.5 - y, 0.4, fill=(255, 190, 90, 110))
    disc(0, 0, RADIUS, outline=(*WHITE, 255), width=4)
    return tile.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def heat(values: torch.Tensor) -> Image.Image:
    """Return values as a tile, from dark to bright."""
    low, high = float(values.min()), float(values.max())
    colors = colormap_lut("magma")[((values - low) / (high - low) * 255).round().int().numpy()]
    return Image.fromarray(colors).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def figure(run: str, count: int) -> np.ndarray:
    """Return the figure of a trained classifier of shapes."""
    loaded, drawn = load_model(f"run:{run}"), test_scenes(count)
    images = [image.permute(1, 2, 0).numpy() for image in drawn.images]
    rows: list[list[Image.Image]] = [[], []]
    for align in ALIGNS:
        maps = va.explain(loaded, images, "gradcam", target=drawn.shapes, align=align)
        kept = [index for index, each in enumerate(maps) if not each.info.empty]
        layer = str(maps[0].info.layer)
        field = looked_at(loaded.model.eval(), drawn.images[:64].float(), layer)
        rows[0].append(with_cells(heat(field), maps[0]))
        chosen = replace(drawn, centers=drawn.centers[kept])
        rows[1].append(peaks([maps[index] for index in kept], chosen))
    return tiled([[np.asarray(tile) for tile in row] for row in rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the figure."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", required=True, help="run folder of the classifier")
    parser.add_argument("--count", type=int, default=500, help="test scenes (default: 500)")
    parser.add_argument("--out", type=Path, default=HERE / "receptive_fields.png")
    args = parser.parse_args(argv)
    drawing = Image.fromarray(figure(args.run, args.count))
    drawing.quantize(128).save(args.out, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
