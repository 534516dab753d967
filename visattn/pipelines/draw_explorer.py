"""A model and an image as a page to touch, and all of its heads on one sheet."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from visattn.data.images.reader import LoadedImage
from visattn.geometry.affine import Geometry
from visattn.pipelines.draw_maps import method_title, subject_line
from visattn.pipelines.layer_attention import SeenLayer
from visattn.pipelines.scale import MapScale, map_scale
from visattn.recording.attention_map import AttentionMap
from visattn.recording.model_info import ExplainedModel
from visattn.viz.html.explorer_page import ExploredLayer, ExploredMap, explorer_page
from visattn.viz.maps.heads import LayerRow, head_grid, head_tile_size

_UNITS = {"tokens": "attention", "gradient": "speaks for it", "saliency": "stands out"}


def explorer(
    image: LoadedImage,
    geometry: Geometry,
    *,
    subject: ExplainedModel,
    layers: Sequence[SeenLayer] = (),
    maps: Sequence[AttentionMap] = (),
    scales: Sequence[MapScale] | None = None,
    name: str | None = None,
    **options: Any,
) -> str:
    """Return a page of HTML, whole in itself, in which one sees where each head looked.

    Args:
        image: The original.
        geometry: How it came into the network.
        subject: The model.
        layers: As `seen_layers` returns them.
        maps: Of methods, placed on the image.
        scales: One for each map; by default from 0 to the highest value of each.
        name: Stands on the page; by default the image's own name.
        options: As `visattn.viz.html.explorer_page.explorer_page` takes them.

    Raises:
        ValueError: If there is nothing to show.
    """
    chosen = scales or [map_scale([one]) for one in maps]
    shown = [_explored(one, scale) for one, scale in zip(maps, chosen, strict=True)]
    about = next(filter(None, map(subject_line, maps)), "Where it looked")
    return explorer_page(
        image.pixels,
        geometry.to_dict(),
        layers=[_layer(one) for one in layers],
        maps=shown,
        name=Path(image.name).name if name is None else name,
        model=subject.card.name,
        title=about,
        **options,
    )


def heads_sheet(
    image: LoadedImage,
    geometry: Geometry,
    *,
    subject: ExplainedModel,
    layers: Sequence[SeenLayer],
    name: str | None = None,
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a sheet with a row for each layer and a tile for each of its heads.

    A tile shows what the class token looked at, where the model answers by one, else what all
    patches looked at on average. All share one scale, chosen as for words of a caption: that at
    which the middle one of all heads shows in full.

    Args:
        image: The original.
        geometry: How it came into the network.
        subject: The model.
        layers: As `seen_layers` returns them.
        name: Stands on the sheet; by default the image's own name.
        options: As `visattn.viz.maps.heads.head_grid` takes them.

    Raises:
        ValueError: If there is no layer.
    """
    card = subject.card
    rows = [one.row(card.pooling) for one in layers]
    tile = head_tile_size(image.size, max((len(row) for row in rows), default=1))
    placed = [AttentionMap(row, "", "tokens", geometry) for row in rows]
    peaks = torch.cat([row.flatten(1).amax(1) for row in rows]) if rows else torch.ones(1)
    even = max((4 / row[0].numel() for row in rows), default=0.0)
    classed = any("class" in one.askers for one in layers) and card.pooling in (
        "class", "distilled",
    )  # fmt: skip
    asker = "the class token" if classed else "all patches together"
    return head_grid(
        image.pixels,
        [
            LayerRow(f"layer {one.number}", drawn.on_image(tile).numpy(), one.heads)
            for one, drawn in zip(layers, placed, strict=True)
        ],
        title=Path(image.name).name if name is None else name,
        subtitle=f"{card.name}: where {asker} looked, head by head",
        high=max(float(peaks.median()), even),
        **options,
    )


def _layer(one: SeenLayer) -> ExploredLayer:
    weights = one.weights.numpy()
    keys = (weights.shape[2], weights.shape[3])
    return ExploredLayer(
        one.number, one.site, weights, one.heads, one.grid, one.askers, keys, one.before
    )


def _explored(one: AttentionMap, scale: MapScale) -> ExploredMap:
    values, made = one.values, one.made
    facts = [
        ("Values", f"{float(values.min()):.2g} to {float(values.max()):.2g}"),
        ("Grid", f"{values.shape[0]} \N{MULTIPLICATION SIGN} {values.shape[1]}"),
    ]
    if about := subject_line(one):
        facts.insert(0, ("Explains", about))
    for key, option in sorted(dict(made.get("options", {})).items()):
        if option is not None:
            facts.append((str(key).replace("_", " ").capitalize(), _shortly(option)))
    return ExploredMap(
        method_title(one),
        values.numpy(),
        scale.low,
        scale.high,
        scale.signed,
        _UNITS.get(one.kind, "value"),
        tuple(facts),
    )


def _shortly(option: Any) -> str:
    text = f"{option:g}" if isinstance(option, float) else str(option)
    return (
        text[:40].replace("-", "\N{MINUS SIGN}") if isinstance(option, int | float) else text[:40]
    )
