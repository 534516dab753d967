"""Explorer page of a model and an image, and a figure of all attention heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from visattn.attribution.layer_weights import describe_read_rows
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.pipelines.draw_maps import method_title, target_line
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.results.attention_map import AttentionMap
from visattn.results.scale import MapScale, map_scale
from visattn.results.values import RecordedLayer
from visattn.viz.html.explorer_page import ExplorerLayer, ExplorerMap, explorer_page
from visattn.viz.maps.heads import LayerHeads, head_grid, head_tile_size

_VISIBLE_SHIFT = 0.005  # cells
_UNITS = {"tokens": "attention", "gradient": "attribution", "saliency": "saliency"}


def explorer_html(
    image: LoadedImage,
    geometry: Geometry,
    *,
    explained: ExplainedModel,
    layers: Sequence[RecordedLayer] = (),
    maps: Sequence[AttentionMap] = (),
    scales: Sequence[MapScale] | None = None,
    name: str | None = None,
    **options: Any,
) -> str:
    """Return a self-contained HTML page to explore the attention of all layers and heads.

    Args:
        image: The original image.
        geometry: Its geometry on the input of the network.
        explained: The model.
        layers: Attention from `record_layers`.
        maps: Maps of methods, placed on the image.
        scales: One color scale per map; by default that of `map_scale`.
        name: Name on the page; by default the file name of the image.
        options: Arguments of `visattn.viz.html.explorer_page.explorer_page`.

    Raises:
        ValueError: If there are neither layers nor maps.

    Example:
        >>> from visattn.attribution.explained_model import analyze_model
        >>> from visattn.models import VisionTransformer
        >>> model = VisionTransformer(
        ...     ("cat", "dog"), img_size=(16, 24), patch_size=8, embed_dim=8, depth=2, num_heads=2
        ... )
        >>> explained = analyze_model(model)
        >>> from visattn.images import read_image
        >>> from visattn.pipelines.layer_attention import record_layers
        >>> photo = read_image(np.zeros((16, 24, 3), np.uint8))
        >>> place = Geometry.identity((16, 24))
        >>> layers = record_layers(explained, torch.zeros(1, 3, 16, 24))
        >>> explorer_html(photo, place, explained=explained, layers=layers)[:15]
        '<!doctype html>'
    """
    scales = scales or [map_scale([entry]) for entry in maps]
    base = geometry.from_edges()
    explored = [_explored_map(*pair, base) for pair in zip(maps, scales, strict=True)]
    title = next(filter(None, map(target_line, maps)), "Attention")
    return explorer_page(
        image.pixels,
        base.to_dict(),
        layers=[_explored_layer(layer, explained, base) for layer in layers],
        read=_first_query(explained.info),
        maps=explored,
        name=Path(image.name).name if name is None else name,
        model=explained.info.name,
        title=title,
        **options,
    )


def all_heads_figure(
    image: LoadedImage,
    geometry: Geometry,
    *,
    explained: ExplainedModel,
    layers: Sequence[RecordedLayer],
    name: str | None = None,
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with a row per layer and a tile per head.

    A tile shows the mean of the rows that the scores read, such as that of the class token. All
    tiles share one color scale, up to the median of the maxima of all heads.

    Args:
        image: The original image.
        geometry: Its geometry on the input of the network.
        explained: The model.
        layers: Attention from `record_layers`.
        name: Name in the figure; by default the file name of the image.
        options: Arguments of `visattn.viz.maps.heads.head_grid`.

    Raises:
        ValueError: If there is no layer.

    Example:
        >>> from visattn.attribution.explained_model import analyze_model
        >>> from visattn.models import VisionTransformer
        >>> model = VisionTransformer(
        ...     ("cat", "dog"), img_size=(16, 24), patch_size=8, embed_dim=8, depth=2, num_heads=2
        ... )
        >>> explained = analyze_model(model)
        >>> from visattn.images import read_image
        >>> from visattn.pipelines.layer_attention import record_layers
        >>> photo = read_image(np.zeros((16, 24, 3), np.uint8))
        >>> place = Geometry.identity((16, 24))
        >>> layers = record_layers(explained, torch.zeros(1, 3, 16, 24))
        >>> all_heads_figure(photo, place, explained=explained, layers=layers).shape[2]
        3
    """
    info = explained.info
    rows = [layer.read_row() for layer in layers]
    tile = head_tile_size(image.size, max((len(row) for row in rows), default=1))
    places = [_geometry_of_keys(layer, explained, geometry.from_edges()) for layer in layers]
    placed = [
        AttentionMap(row, "", "tokens", place) for row, place in zip(rows, places, strict=True)
    ]
    peaks = torch.cat([row.flatten(1).amax(1) for row in rows]) if rows else torch.ones(1)
    uniform = max((4 / row[0].numel() for row in rows), default=0.0)
    return head_grid(
        image.pixels,
        [
            LayerHeads(f"layer {layer.index}", entry.resize_to_image(tile).numpy(), layer.heads)
            for layer, entry in zip(layers, placed, strict=True)
        ],
        title=Path(image.name).name if name is None else name,
        subtitle=f"{info.name}: attention of {_read_tokens(info)}, by head",
        vmax=max(float(peaks.median()), uniform),
        **options,
    )


def _read_tokens(info: ModelInfo) -> str:
    names = {"class": "the class token", "mean": "all patches (mean)"}
    return names.get(info.pooling) or describe_read_rows(info)


def _first_query(info: ModelInfo) -> str:
    """Return which tokens ask at first on a page, as `explorer_page` takes it."""
    if info.pooling in ("mean", "attention"):
        return "mean"
    return "" if info.pooling in ("class", "none") else describe_read_rows(info)


def _geometry_of_keys(layer: RecordedLayer, explained: ExplainedModel, base: Geometry) -> Geometry:
    """Return the geometry of the maps of a layer, whose keys may lie elsewhere than the input."""
    if layer.placement is None or explained.align == "edges":
        return base
    return base.with_placement(layer.placement)


def _own_geometry(geometry: Geometry | None, base: Geometry) -> dict[str, Any] | None:
    """Return a geometry for the page; None if it is that of the page."""
    same = geometry is None or (geometry.matrix, geometry.region) == (base.matrix, base.region)
    return None if geometry is None or same else geometry.to_dict()


def _explored_layer(
    layer: RecordedLayer, explained: ExplainedModel, base: Geometry
) -> ExplorerLayer:
    weights = layer.weights.numpy()
    keys = (weights.shape[2], weights.shape[3])
    return ExplorerLayer(
        layer.index,
        layer.site,
        weights,
        layer.heads,
        layer.grid,
        layer.prefix_queries,
        keys,
        layer.num_prefix_keys,
        layer.shares,
        _own_geometry(_geometry_of_keys(layer, explained, base), base),
    )


def _explored_map(attention_map: AttentionMap, scale: MapScale, base: Geometry) -> ExplorerMap:
    values, metadata = attention_map.values, attention_map.metadata
    facts = [
        ("Values", f"{float(values.min()):.2g} to {float(values.max()):.2g}"),
        ("Grid", f"{values.shape[0]} \N{MULTIPLICATION SIGN} {values.shape[1]}"),
    ]
    if target := target_line(attention_map):
        facts.insert(0, ("Target", target))
    if attention_map.placement is not None:
        y, x = attention_map.placement.shift((values.shape[0], values.shape[1]))
        if max(abs(y), abs(x)) >= _VISIBLE_SHIFT:
            moved = f"{x:+.2f}, {y:+.2f} cells (receptive fields)"
            facts.append(("Moved", moved.replace("-", "\N{MINUS SIGN}")))
    for key, value in sorted(dict(metadata.get("options", {})).items()):
        if value is not None:
            facts.append((str(key).replace("_", " ").capitalize(), _short_text(value)))
    return ExplorerMap(
        method_title(attention_map),
        values.numpy(),
        scale.vmin,
        scale.vmax,
        scale.signed,
        _UNITS.get(attention_map.kind, "value"),
        tuple(facts),
        _own_geometry(attention_map.geometry, base),
    )


def _short_text(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:g}".replace("-", "\N{MINUS SIGN}")
    return str(value)[:40]
