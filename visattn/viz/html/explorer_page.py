"""Interactive HTML page of a model: attention of all heads and queries, and attribution maps."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from visattn.attribution.layer_weights import describe_read_rows
from visattn.attribution.methods import METHODS
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap
from visattn.results.scale import MapScale, map_scale
from visattn.results.values import RecordedLayer
from visattn.viz.html.document import (
    SOFTWARE,
    PageOptions,
    fact,
    map_row,
    map_view,
    own_geometry,
    photo_page,
)
from visattn.viz.maps import UNITS, method_title, target_line
from visattn.viz.text import join_notes, sanitize_text

_NAME = 60  # characters
_MINUS = "\N{MINUS SIGN}"
_PAPER = re.compile(r"(\w.*?) (\d{4}),? (?:arXiv:([\w./-]*\w))?")


def explorer_html(
    image: LoadedImage,
    geometry: Geometry,
    *,
    subject: Subject,
    layers: Sequence[RecordedLayer] = (),
    maps: Sequence[AttentionMap] = (),
    scales: Sequence[MapScale] | None = None,
    **options: Any,
) -> str:
    """Return a self-contained HTML page to explore the attention of all layers and heads.

    A grid of tiles shows all heads of all layers for the selected query; a click on the image
    selects the patch there as the query. Attention is quantized to 8 bits on a square-root scale,
    which keeps low values distinguishable: the error is at most 1/250 of the maximum of each row.

    Args:
        image: The original image.
        geometry: Its geometry on the input of the network.
        subject: The model.
        layers: Attention from `record_layers`.
        maps: Maps of methods, placed on the image.
        scales: One color scale per map; by default that of `map_scale`.
        options: Fields of `PageOptions`, such as `name`, `index` and `colormap`.

    Raises:
        ValueError: If there are neither layers nor maps, or values are not finite.

    Example:
        >>> from visattn.recording.subject import analyze_model
        >>> from visattn.models import VisionTransformer
        >>> model = VisionTransformer(
        ...     ("cat", "dog"), img_size=(16, 24), patch_size=8, embed_dim=8, depth=2, num_heads=2
        ... )
        >>> subject = analyze_model(model)
        >>> from visattn import read_image
        >>> from visattn.pipelines.layer_attention import record_layers
        >>> photo = read_image(np.zeros((16, 24, 3), np.uint8))
        >>> place = Geometry.identity((16, 24))
        >>> layers = record_layers(subject, torch.zeros(1, 3, 16, 24))
        >>> explorer_html(photo, place, subject=subject, layers=layers)[:15]
        '<!doctype html>'
    """
    if not layers and not maps:
        raise ValueError("a page needs at least one attention layer or attribution map")
    arrays = [*(layer.weights for layer in layers), *(each.values for each in maps)]
    if not all(bool(each.isfinite().all()) for each in arrays):
        raise ValueError("maps must be finite, got NaN or infinity")
    page = PageOptions(**options).otherwise(name=Path(image.name).name, smooth=True)
    scales = scales or [map_scale([entry]) for entry in maps]
    title = next(filter(None, map(target_line, maps)), "Attention")
    several = len({*filter(None, map(target_line, maps))}) > 1  # buttons show the target
    views = [_map_view(*pair, geometry, several) for pair in zip(maps, scales, strict=True)]
    return photo_page(
        image.pixels,
        geometry,
        [map_row(views, title)],
        page,
        kind="methods",
        model=subject.info.name,
        bibtex=bibtex([each.info.method for each in maps]),
        layers=[_layer_data(layer, subject, geometry) for layer in layers],
        read=sanitize_text(_first_query(subject.info), _NAME),
        pooled=_pooling_text(layers, subject.info),
    )


def bibtex(methods: Sequence[str]) -> str:
    """Return BibTeX of the papers of methods and of visattn.

    Example:
        >>> "author = {Selvaraju and others}" in bibtex(["gradcam"])
        True
    """
    entries: dict[str, str] = {}
    for method in (METHODS[name] for name in methods if name in METHODS):
        source = (method.function.__doc__ or "").partition("Source:")[2]
        found = _PAPER.match(f"{source.strip()} ")
        if found is None:
            continue
        authors, year, arxiv = found.groups()
        names = authors.replace(", ", " and ").replace(" et al.", " and others")
        fields = {"author": names, "title": method.title, "year": year}
        fields |= {"eprint": arxiv, "archivePrefix": arxiv and "arXiv"}
        lines = [f"  {key} = {{{value}}}," for key, value in fields.items() if value]
        entries[method.name] = "\n".join([f"@misc{{{method.name},", *lines, "}"])
    return "\n\n".join([*entries.values(), SOFTWARE])


def quantize_weights(
    weights: Float[np.ndarray, "h q y x"],
) -> tuple[UInt8[np.ndarray, "h q y x"], Float[np.ndarray, "h q"]]:
    """Return weights as 8-bit codes, and the maximum of each row.

    A weight is (code / 255)^2 times the maximum of its row.

    Args:
        weights: Non-negative weights.

    Example:
        >>> codes, tops = quantize_weights(np.array([[[[0.0, 0.1, 0.9]]]]))
        >>> codes.ravel(), tops
        (array([  0,  85, 255], dtype=uint8), array([[0.9]], dtype=float32))
    """
    tops = weights.max(axis=(2, 3), initial=0).astype(np.float32)
    shares = weights / np.where(tops > 0, tops, 1)[..., None, None]
    codes = np.rint(255 * np.sqrt(np.clip(shares, 0, 1)))
    return codes.astype(np.uint8), tops


def _first_query(info: ModelInfo) -> str:
    """Return the initial query: `mean` of all patches, or the tokens that the model reads."""
    if info.pooling in ("mean", "attention"):
        return "mean"
    return "" if info.pooling in ("class", "none") else describe_read_rows(info)


def _layer_data(layer: RecordedLayer, subject: Subject, base: Geometry) -> dict[str, Any]:
    codes, tops = quantize_weights(layer.weights.numpy())
    count = layer.weights.shape[1]
    return {
        "number": layer.index,
        "site": layer.site,
        "heads": list(layer.heads),
        "grid": list(layer.grid),
        "keys": list(layer.weights.shape[2:]),
        "query_roles": layer.prefix_queries,
        "count": count,
        "is_pooling": count == 1 and not layer.prefix_queries,
        "before": layer.num_prefix_keys,
        "shares": list(layer.shares),
        "averaged": _averaged_grid(layer, subject.info) is not None,
        **own_geometry(base.inset(layer.margin), base),
        "tops": tops,
        "codes": codes,
    }


def _averaged_grid(layer: RecordedLayer, info: ModelInfo) -> tuple[int, int] | None:
    """Return the grid of averaged queries of a layer; None if no queries were averaged."""
    grid = next((each.grid for each in info.attention_layers if each.site == layer.site), None)
    return None if grid is None or tuple(grid) == tuple(layer.grid) else grid


def _pooling_text(layers: Sequence[RecordedLayer], info: ModelInfo) -> str:
    """Return the note on averaged queries; "" without them."""
    pairs = {(own, layer.grid) for layer in layers if (own := _averaged_grid(layer, info))}
    texts = [
        f"{y0} \N{MULTIPLICATION SIGN} {x0} patches to {y} \N{MULTIPLICATION SIGN} {x}"
        for (y0, x0), (y, x) in sorted(pairs)
    ]
    said = f"Neighboring queries are averaged to keep this page small: {'; '.join(texts)} queries."
    return said if texts else ""


def _map_view(
    attention_map: AttentionMap, scale: MapScale, base: Geometry, several: bool
) -> dict[str, Any]:
    values, name = attention_map.values.numpy(), method_title(attention_map)
    unit = "against \N{MIDDLE DOT} for" if scale.signed else UNITS.get(attention_map.kind, "value")
    target = attention_map.info.target_name if several else ""
    said = target_line(attention_map)
    return map_view(
        values, join_notes(name, target), (scale.vmin, scale.vmax),
        range=(float(values.min()), float(values.max())), signed=scale.signed,
        unit=unit, which="Method", facts=[fact("Target", said)] if said else [],
        details=[fact(*each) for each in _details(attention_map)],
        note=join_notes(scale.note, attention_map.info.note),
        **own_geometry(attention_map.geometry, base),
    )  # fmt: skip


def _details(attention_map: AttentionMap) -> list[tuple[str, str]]:
    """Return the settings of a map, as names and values."""
    rows, columns = attention_map.values.shape
    info, grid = attention_map.info, f"{rows} \N{MULTIPLICATION SIGN} {columns}"
    facts = [("Grid", grid), *([("Input", info.input_text)] if info.input_text else [])]
    options = dict(info.options)
    if info.layer is not None and "layers" in options:
        options["layers"] = info.layer  # by name, since the index of a layer is not informative
    for key, value in sorted(options.items()):
        if value is not None:
            facts.append((str(key).replace("_", " ").capitalize(), _short_text(value)))
    return facts


def _short_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:g}".replace("-", _MINUS)
    return str(value)[:_NAME]
