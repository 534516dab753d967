"""Figure of the queries of a detector on their image."""

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from visattn.images.reader import ImageLike, read_image
from visattn.results.values import DetectorQueries
from visattn.viz.layout.grid import compute_tile_size
from visattn.viz.maps.queries import DrawnQuery, query_panel


def query_figure(
    image: ImageLike,
    result: DetectorQueries,
    *,
    width: int = 1200,
    colormap: str = "magma",
    opacity: float = 0.7,
    smooth: bool = True,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with all boxes on the image, and the map of each query, on one scale.

    Args:
        image: The original image.
        result: Result of `explain_queries` for it.
        width: Width of the figure in pixels.
        colormap: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        smooth: Whether to interpolate between cells.

    Raises:
        ValueError: If the maps lie on an image of another size.
    """
    original, maps = read_image(image), result.maps
    size = compute_tile_size(original.size, len(maps), width=width)
    values = maps.resize_to_image(size, smooth=smooth).numpy()
    sampled = result.points is not None
    drawn = [
        DrawnQuery(
            f"{name} {score:.2f}",
            f"query {query}" + _mass_note(float(each.values.sum()), sampled=sampled),
            (box[0], box[1], box[2], box[3]),
            map_values,
            None if result.points is None else result.points[index].numpy(),
        )
        for index, (name, score, query, box, each, map_values) in enumerate(
            zip(
                result.classes, result.scores, result.queries, result.boxes.tolist(), maps, values,
                strict=True,
            )
        )
    ]  # fmt: skip
    kind = "sampled points and what they read" if sampled else "cross-attention"
    parts = [Path(original.name).name, str(maps.metadata["model"]), f"{kind}, {maps.site}"]
    return query_panel(
        original.pixels,
        drawn,
        title="Where each query looked",
        subtitle=" \N{MIDDLE DOT} ".join(filter(None, parts)),
        vmax=maps.display_range()[1],
        width=width,
        colormap=colormap,
        opacity=opacity,
    )


def _mass_note(mass: float, *, sampled: bool) -> str:
    return f", {100 * mass:.0f} % of its weight on the photo" if sampled else ""
