r"""Measure on which side of its drawn cells a trained network looks, by mirrored photos.

    python tools/map_displacement.py PHOTOS --model timm:resnet50 --pretrained --limit 120

A map of the mirrored photo, mirrored back, should be the map of the photo. If each cell looks at a
place d cells further right than it is drawn, one of the two is d too far left and the other d too
far right. The displacement that makes both agree best is printed beside the one that the receptive
fields have by arithmetic: training moves what a cell looks at within its field. The outer quarter
on each side is left out, since what the border does to a map is not mirrored with the photo.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from visattn.commands.model_option import add_model, load_explained_model, resolve_model
from visattn.commands.options import CommandParser
from visattn.geometry.placement import GridPlacement
from visattn.images.reader import find_images, read_image
from visattn.pipelines.explainer import Explainer
from visattn.results.attention_map import AttentionMap, resample_to_input

FINE = 16  # pixels per cell
STEPS = torch.linspace(-1, 1, 41)


def moved(maps: Float[Tensor, "b y x"], cells: float, axis: int) -> Float[Tensor, "b y2 x2"]:
    """Return maps at the pixels of a canvas, each cell moved along y (0) or x (1)."""
    height, width = (FINE * side for side in maps.shape[1:])
    extent = [0.0, 0.0, float(width), float(height)]
    for side in (1 - axis, 3 - axis):
        extent[side] += cells * FINE
    left, top, right, bottom = extent
    placement = GridPlacement((left, top, right, bottom), (height, width))
    return resample_to_input(maps, (height, width), placement)


def agreement(
    maps: Float[Tensor, "b y x"], mirrored: Float[Tensor, "b y x"], cells: float, axis: int
) -> float:
    """Return the mean correlation of maps with those of mirrored photos, cells moved in both."""
    parts = (moved(maps, cells, axis), moved(mirrored, cells, axis).flip(1 + axis))
    size = parts[0].shape[1:]
    rows, columns = (slice(side // 4, side - side // 4) for side in size)
    first, second = (part[:, rows, columns].flatten(1).double() for part in parts)
    first, second = (part - part.mean(1, keepdim=True) for part in (first, second))
    norm = first.norm(dim=1) * second.norm(dim=1)
    known = norm > 0  # constant maps lie nowhere
    return float(((first * second).sum(1)[known] / norm[known]).mean())


def displacement(
    maps: Float[Tensor, "b y x"], mirrored: Float[Tensor, "b y x"], axis: int
) -> tuple[float, float, float]:
    """Return how far cells look from where they are drawn, and the agreement there and undisplaced.

    Args:
        maps: Of photos, drawn from edge to edge.
        mirrored: Of the same photos, mirrored along y (0) or x (1).
        axis: Which of the two.
    """
    values = [agreement(maps, mirrored, float(cells), axis) for cells in STEPS]
    best = max(range(len(values)), key=values.__getitem__)
    return float(STEPS[best]), values[best], agreement(maps, mirrored, 0.0, axis)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the displacement along both axes."""
    parser = CommandParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path, nargs="+", help="images, or folders of images")
    add_model(parser, builds=True)
    parser.add_argument("--method", default="gradcam", help="method (default: gradcam)")
    parser.add_argument("--limit", type=int, default=100, help="number of photos (default: 100)")
    args = parser.parse_args(argv)
    resolve_model(parser, args, "--model is missing: name the model")
    loaded, explained = load_explained_model(args)
    explainer = Explainer(explained, resize_mode="squash")
    photos = [read_image(path).pixels for path in find_images(args.photos)[: args.limit]]
    rows: list[list[AttentionMap]] = [[], [], []]
    for photo in photos:  # the classes of the first are explained in all three
        target = None
        for row, image in zip(rows, (photo, photo[::-1], photo[:, ::-1]), strict=True):
            batch = explainer.prepare(np.ascontiguousarray(image))
            [heatmap] = explainer.map(batch, args.method, target)
            target = heatmap.info.target
            row.append(heatmap)
    maps, *others = (torch.stack([heatmap.values for heatmap in row]) for row in rows)
    placement = rows[0][0].placement or GridPlacement.edges(explained.info.input_size)
    arithmetic = placement.shift((maps.shape[1], maps.shape[2]))
    print(f"{loaded.weights}, {args.method}, {len(maps)} photos, {maps.shape[1]} x {maps.shape[2]}")
    for axis, mirrored in enumerate(others):
        cells, there, here = displacement(maps, mirrored, axis)
        print(
            f"{'yx'[axis]}: looks {cells:+.2f} cells from where it is drawn (agreement "
            f"{there:.3f}, {here:.3f} undisplaced); receptive fields {arithmetic[axis]:+.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
