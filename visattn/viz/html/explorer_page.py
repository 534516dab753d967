"""Interactive HTML page of a model: attention of all heads and queries, and attribution maps."""

import base64
import re
from collections.abc import Sequence
from dataclasses import replace
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
from visattn.viz.html.document import PageOptions, PageParts, own_geometry, photo_page
from visattn.viz.maps import UNITS, method_title, target_line
from visattn.viz.text import join_notes, sanitize_text

_NAME, _TITLE = 60, 200  # characters
_SCRIPTS = ("heads.js", "tiles.js", "explorer.js")
_MINUS = "\N{MINUS SIGN}"
_PAPER = re.compile(r"(\w.*?) (\d{4}),? (?:arXiv:([\w./-]*\w))?")
_SOFTWARE = """\
@software{visattn,
  author = {{The visattn authors}},
  title = {visattn: attention for images},
  year = {2026},
}"""


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
        >>> from visattn.attribution.analysis import analyze_model
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
    page = PageOptions(**options).otherwise(name=Path(image.name).name)
    scales = scales or [map_scale([entry]) for entry in maps]
    title = next(filter(None, map(target_line, maps)), "Attention")
    return photo_page(
        image.pixels,
        geometry,
        PageParts(
            "explorer.html",
            _SCRIPTS,
            data={
                "smooth": True,
                "title": sanitize_text(title, _TITLE),
                "layers": [_layer_data(layer, subject, geometry) for layer in layers],
                "maps": [_map_data(*pair, geometry) for pair in zip(maps, scales, strict=True)],
                "pooled": _pooling_text(layers, subject.info),
                "read": sanitize_text(_first_query(subject.info), _NAME),
            },
            texts={
                "title": sanitize_text(title, _TITLE),
                "bibtex": bibtex([each.info.method for each in maps]),
            },
            styles=["explorer.css"],
            model=subject.info.name,
        ),
        page,
    )


def bibtex(methods: Sequence[str]) -> str:
    """Return the papers of methods and visattn itself, to be cited.

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
    return "\n\n".join([*entries.values(), _SOFTWARE])


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
    """Return which tokens ask at first: `mean` for all patches, or the name of what is read."""
    if info.pooling in ("mean", "attention"):
        return "mean"
    return "" if info.pooling in ("class", "none") else describe_read_rows(info)


def _layer_data(layer: RecordedLayer, subject: Subject, base: Geometry) -> dict[str, Any]:
    codes, tops = quantize_weights(layer.weights.numpy())
    count = layer.weights.shape[1]
    return {
        "number": layer.index,
        "site": sanitize_text(layer.site, _TITLE),
        "heads": list(layer.heads),
        "grid": list(layer.grid),
        "keys": list(layer.weights.shape[2:]),
        "query_roles": [sanitize_text(role, _NAME) for role in layer.prefix_queries],
        "count": count,
        "is_pooling": count == 1 and not layer.prefix_queries,
        "before": layer.num_prefix_keys,
        "shares": list(layer.shares),
        "averaged": _is_averaged(layer, subject.info),
        **own_geometry(base.inset(layer.margin), base),
        "tops": _float_text(tops),
        "codes": base64.b64encode(codes.tobytes()).decode(),
    }


def _is_averaged(layer: RecordedLayer, info: ModelInfo) -> bool:
    """Whether the queries of a layer are means of several patches."""
    grids = {each.site: each.grid for each in info.attention_layers}
    return layer.site in grids and tuple(grids[layer.site]) != tuple(layer.grid)


def _pooling_text(layers: Sequence[RecordedLayer], info: ModelInfo) -> str:
    """Return what the page says of queries that are means of several patches; "" if none are."""
    averaged = [layer for layer in layers if _is_averaged(layer, info)]
    if not averaged:
        return ""
    grids = {each.site: each.grid for each in info.attention_layers}
    of_layers = {(tuple(grids[layer.site]), tuple(layer.grid)) for layer in averaged}
    texts = [
        f"{y0} \N{MULTIPLICATION SIGN} {x0} patches to {y} \N{MULTIPLICATION SIGN} {x}"
        for (y0, x0), (y, x) in sorted(of_layers)
    ]
    return f"Neighboring queries are averaged to keep this page small: {'; '.join(texts)} queries."


def _float_text(values: np.ndarray) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _map_data(attention_map: AttentionMap, scale: MapScale, base: Geometry) -> dict[str, Any]:
    values = attention_map.values.numpy()
    scale = replace(scale, values=(float(values.min()), float(values.max())))
    return {
        "name": sanitize_text(method_title(attention_map), _NAME),
        "grid": list(values.shape),
        **own_geometry(attention_map.geometry, base),
        "scale": [scale.vmin, scale.vmax],
        "range": scale.values,
        "signed": scale.signed,
        "unit": UNITS.get(attention_map.kind, "value"),
        "ends": scale.text,
        "note": join_notes(scale.note, attention_map.info.note),
        "facts": [
            [sanitize_text(name, _NAME), sanitize_text(text, _TITLE)]
            for name, text in _facts(attention_map)
        ],
        "values": _float_text(values),
    }


def _facts(attention_map: AttentionMap) -> list[tuple[str, str]]:
    """Return names and values of further properties of a map."""
    values = attention_map.values
    ends = (f"{float(end):.2g}".replace("-", _MINUS) for end in (values.min(), values.max()))
    facts = [
        ("Values", " to ".join(ends)),
        ("Grid", f"{values.shape[0]} \N{MULTIPLICATION SIGN} {values.shape[1]}"),
    ]
    if attention_map.info.input_text:
        facts.append(("Input", attention_map.info.input_text))
    if target := target_line(attention_map):
        facts.insert(0, ("Target", target))
    info = attention_map.info
    options = {
        **info.options,
        # By its name: the number of a layer says nothing to a reader.
        **({} if info.layer is None or "layers" not in info.options else {"layers": info.layer}),
    }
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
