"""Interactive HTML page of a model: attention of all heads and queries, and attribution maps."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, UInt8

from visattn.viz.html.photo_page import LONGEST, page_geometry, photo_page
from visattn.viz.html.safe_text import sanitize_text
from visattn.viz.maps.colormap import colormap_lut

_NAME, _TITLE = 60, 200  # characters
_SCRIPTS = (
    "overlays.js", "photo.js", "widgets.js", "heads.js",
    "tiles.js", "explorer.js",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ExplorerLayer:
    """One self-attention layer, as a page shows it.

    Args:
        number: Index of the layer, from 0.
        site: Path of the module.
        weights: Attention of each head from each query to each cell of the key grid.
        heads: Indices of the heads.
        grid: Rows and columns of the query patches.
        query_roles: Roles of the prefix tokens among the queries, such as class and register.
        keys: Rows and columns of the key patches.
        before: Number of prefix tokens among the keys.
        shares: Share of each query in what the scores of the model read; () if unknown.
        geometry: Geometry of the keys, from `Geometry.to_dict`; None if it is that of the page.

    Raises:
        ValueError: If the numbers of heads or tokens do not match the weights.

    Example:
        >>> weights = np.full((2, 5, 2, 2), 0.2)
        >>> layer = ExplorerLayer(0, "a", weights, (0, 1), (2, 2), ("class",), (2, 2), 1)
        >>> layer.patches
        4
    """

    number: int
    site: str
    weights: Float[np.ndarray, "h q y x"]
    heads: tuple[int, ...]
    grid: tuple[int, int]
    query_roles: tuple[str, ...]
    keys: tuple[int, int]
    before: int = 0
    shares: tuple[float, ...] = ()
    geometry: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check the shapes."""
        heads, count, *keys = self.weights.shape
        patches = (0, self.grid[0] * self.grid[1])
        matches = self.patches in patches or self.is_pooling
        matches = matches and len(self.shares) in (0, count)
        if heads != len(self.heads) or tuple(keys) != self.keys or not matches:
            raise ValueError(
                f"weights {self.weights.shape} must be [heads, tokens, rows, columns] of "
                f"{len(self.heads)} heads, {len(self.query_roles)} prefix tokens, a query grid of "
                f"{self.grid} and a key grid of {self.keys}; got {count} tokens"
            )

    @property
    def patches(self) -> int:
        """Number of query patches: all patches of the grid, or none."""
        return self.weights.shape[1] - len(self.query_roles)

    @property
    def is_pooling(self) -> bool:
        """Whether it is attention pooling: one query without a token."""
        return self.weights.shape[1] == 1 and not self.query_roles


@dataclass(frozen=True, eq=False)
class ExplorerMap:
    """The map of an attribution method, as a page shows it.

    Args:
        name: Name of the method.
        values: Values on a grid.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end of the colormap.
        signed: Whether the map has negative values.
        unit: Unit or quantity of the values.
        facts: Names and values of further properties.
        geometry: Geometry of the grid, from `Geometry.to_dict`; None if it is that of the page.

    Example:
        >>> ExplorerMap("Grad-CAM", np.ones((7, 7))).unit
        'value'
    """

    name: str
    values: Float[np.ndarray, "y x"]
    vmin: float = 0.0
    vmax: float = 1.0
    signed: bool = False
    unit: str = "value"
    facts: tuple[tuple[str, str], ...] = ()
    geometry: Mapping[str, Any] | None = None


def explorer_page(
    image: UInt8[np.ndarray, "y x 3"],
    geometry: Mapping[str, Any],
    *,
    layers: Sequence[ExplorerLayer] = (),
    maps: Sequence[ExplorerMap] = (),
    name: str = "image",
    model: str = "",
    title: str = "",
    colormap: str = "magma",
    opacity: float = 0.7,
    style: Literal["heat", "light"] = "heat",
    longest: int = LONGEST,
    index: str | None = None,
    read: str = "",
) -> str:
    """Return a self-contained HTML page that shows the attention of all heads and attribution maps.

    A grid of tiles shows all heads of all layers for the selected query; a click on the image
    selects the patch there as the query. Attention is quantized to 8 bits on a square-root scale,
    which keeps low values distinguishable: the error is at most 1/250 of the maximum of each row.

    Args:
        image: RGB, of any size and proportions.
        geometry: Geometry of the network's input, from `Geometry.to_dict`.
        layers: Of attention among tokens, if the model has any.
        maps: Of methods.
        name: Name of the image.
        model: Its name; stands on the page.
        title: What the maps are about, such as the class and its score.
        colormap: See `colormap_lut`.
        opacity: Initial opacity at `vmax`, between 0 and 1.
        style: At first.
        longest: Maximum side of the embedded image in pixels.
        index: File name of the index page to link to.
        read: Which tokens ask at first: `mean` for all patches together, other text as the name of
            the tokens that the scores read (`ExplorerLayer.shares`), or "" for the first token.

    Raises:
        ValueError: If there is nothing to show, values are not finite, the geometry belongs to
            another image, or an option is invalid.

    Example:
        >>> place = {"matrix": np.eye(3).tolist(), "input_size": [30, 40],
        ...          "image_size": [30, 40], "region": [0, 0, 40, 30]}
        >>> shown = ExplorerMap("<Grad-CAM>", np.ones((3, 4)))
        >>> page = explorer_page(np.zeros((30, 40, 3), np.uint8), place, maps=[shown])
        >>> page[:15], "<Grad-CAM>" in page
        ('<!doctype html>', False)
    """
    _check_finite(layers, maps)
    return photo_page(
        "explorer.html",
        image,
        geometry,
        styles=["paper.css", "viewer.css", "explorer.css"],
        scripts=_SCRIPTS,
        data={
            "table": base64.b64encode(colormap_lut(colormap).tobytes()).decode(),
            "title": sanitize_text(title, _TITLE),
            "layers": [_layer_data(layer) for layer in layers],
            "maps": [_map_data(entry) for entry in maps],
            "read": sanitize_text(read, _NAME),
        },
        texts={"model": sanitize_text(model, _TITLE), "title": sanitize_text(title, _TITLE)},
        name=name,
        colormap=colormap,
        opacity=opacity,
        style=style,
        longest=longest,
        index=index,
    )


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


def _check_finite(layers: Sequence[ExplorerLayer], maps: Sequence[ExplorerMap]) -> None:
    if not layers and not maps:
        raise ValueError("a page needs at least one attention layer or attribution map")
    if not all(np.isfinite(layer.weights).all() for layer in layers) or not all(
        np.isfinite(entry.values).all() for entry in maps
    ):
        raise ValueError("maps must be finite, got NaN or infinity")


def _layer_data(layer: ExplorerLayer) -> dict[str, Any]:
    codes, tops = quantize_weights(layer.weights)
    return {
        "number": layer.number,
        "site": sanitize_text(layer.site, _TITLE),
        "heads": list(layer.heads),
        "grid": list(layer.grid),
        "keys": list(layer.keys),
        "query_roles": [sanitize_text(role, _NAME) for role in layer.query_roles],
        "count": layer.weights.shape[1],
        "is_pooling": layer.is_pooling,
        "before": layer.before,
        "shares": list(layer.shares),
        **_geometry_data(layer.geometry),
        "tops": base64.b64encode(tops.astype("<f4").tobytes()).decode(),
        "codes": base64.b64encode(codes.tobytes()).decode(),
    }


def _geometry_data(geometry: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if geometry is None else {"geometry": page_geometry(geometry)}


def _map_data(entry: ExplorerMap) -> dict[str, Any]:
    first = -entry.vmax if entry.signed else entry.vmin
    size = np.abs(entry.values) if entry.signed else entry.values
    return {
        "name": sanitize_text(entry.name, _NAME),
        "grid": list(entry.values.shape),
        **_geometry_data(entry.geometry),
        "scale": [entry.vmin, entry.vmax],
        "clipped": bool(size.max() > entry.vmax),
        "signed": entry.signed,
        "unit": sanitize_text(entry.unit, _NAME),
        "range": f"{first:.2g} to {entry.vmax:.2g}".replace("-", "\N{MINUS SIGN}"),
        "facts": [
            [sanitize_text(name, _NAME), sanitize_text(text, _TITLE)] for name, text in entry.facts
        ],
        "values": base64.b64encode(entry.values.astype("<f4").tobytes()).decode(),
    }
