"""All that a model looked at, in a page that can be touched: heads, patches, methods."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, UInt8

from visattn.viz.html.photo_page import LONGEST, photo_page
from visattn.viz.html.safe_text import shown_text
from visattn.viz.maps.colormap import color_table

_NAME, _TITLE = 60, 200  # characters
_SCRIPTS = (
    "overlays.js", "photo.js", "choices.js", "facts.js", "ramps.js", "places.js", "heads.js",
    "tiles.js", "explorer.js",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class ExploredLayer:
    """One layer of attention among tokens, as a page shows it.

    Args:
        number: Of the layer, counted from 0.
        site: Path of the module.
        weights: Of each head, from each token that asks to each cell of the grid `keys`.
        heads: The numbers of the heads.
        grid: Rows and columns of the tokens that ask.
        askers: Roles of the tokens that ask before those on the grid.
        keys: Rows and columns of what is looked at.
        before: How many more tokens are looked at, which lie nowhere on the image.

    Raises:
        ValueError: If a number of heads or tokens does not fit the weights.

    Example:
        >>> seen = np.full((2, 5, 2, 2), 0.2)
        >>> layer = ExploredLayer(0, "a", seen, (0, 1), (2, 2), ("class",), (2, 2), 1)
        >>> layer.patches
        4
    """

    number: int
    site: str
    weights: Float[np.ndarray, "h q y x"]
    heads: tuple[int, ...]
    grid: tuple[int, int]
    askers: tuple[str, ...]
    keys: tuple[int, int]
    before: int = 0

    def __post_init__(self) -> None:
        """Check that the numbers fit the weights."""
        heads, count, *keys = self.weights.shape
        patches = (0, self.grid[0] * self.grid[1])
        fitting = self.patches in patches or self.lone
        if heads != len(self.heads) or tuple(keys) != self.keys or not fitting:
            raise ValueError(
                f"weights {self.weights.shape} must be [heads, tokens, rows, columns] of "
                f"{len(self.heads)} heads, {len(self.askers)} tokens before a grid of {self.grid} "
                f"and keys on {self.keys}; got {count} tokens"
            )

    @property
    def patches(self) -> int:
        """How many of the tokens that ask lie on the grid: all, or none."""
        return self.weights.shape[1] - len(self.askers)

    @property
    def lone(self) -> bool:
        """Whether it is a pool: one row, asked by nobody in particular."""
        return self.weights.shape[1] == 1 and not self.askers


@dataclass(frozen=True, eq=False)
class ExploredMap:
    """A map that a method made, as a page shows it.

    Args:
        name: Of the method.
        values: On a grid that covers the network's input.
        low: The value that begins to show.
        high: The value that shows in full.
        signed: Whether values below zero speak against.
        unit: What the values are, in a word or two.
        facts: Names and texts for those who want to know more.

    Example:
        >>> ExploredMap("Grad-CAM", np.ones((7, 7))).unit
        'value'
    """

    name: str
    values: Float[np.ndarray, "y x"]
    low: float = 0.0
    high: float = 1.0
    signed: bool = False
    unit: str = "value"
    facts: tuple[tuple[str, str], ...] = ()


def explorer_page(
    image: UInt8[np.ndarray, "y x 3"],
    geometry: Mapping[str, Any],
    *,
    layers: Sequence[ExploredLayer] = (),
    maps: Sequence[ExploredMap] = (),
    name: str = "image",
    model: str = "",
    title: str = "",
    colors: str = "magma",
    opacity: float = 0.7,
    style: Literal["heat", "light"] = "heat",
    longest: int = LONGEST,
    index: str | None = None,
) -> str:
    """Return a page of HTML, whole in itself, in which one sees where each head looked.

    A wall of tiles shows all heads of all layers; a place that is clicked on the photo asks, and
    every tile shows where it looked. Beside them stand the maps of methods. Attention is kept with
    8 bits a number, on a square law, so that what is faint stays visible: it is off by at most a
    250th of the largest number of its row.

    Args:
        image: RGB, of any size and proportions.
        geometry: How the maps lie on the image, as `Geometry.to_dict` writes it.
        layers: Of attention among tokens, if the model has any.
        maps: Of methods.
        name: Of the photo; stands on the page.
        model: Its name; stands on the page.
        title: What the maps are about, such as the class and its score.
        colors: The table of `heat`, see `visattn.viz.maps.colormap.color_table`.
        opacity: How far attention in full covers the image at first, between 0 and 1.
        style: At first.
        longest: Of the photo in the page, in pixels.
        index: Name of a page to go back to.

    Raises:
        ValueError: If there is nothing to show, numbers are not finite, the geometry is of another
            image, or there is no such opacity, style or color table.

    Example:
        >>> place = {"matrix": np.eye(3).tolist(), "input_size": [30, 40],
        ...          "image_size": [30, 40], "region": [0, 0, 40, 30]}
        >>> shown = ExploredMap("<Grad-CAM>", np.ones((3, 4)))
        >>> page = explorer_page(np.zeros((30, 40, 3), np.uint8), place, maps=[shown])
        >>> page[:15], "<Grad-CAM>" in page
        ('<!doctype html>', False)
    """
    _check(layers, maps)
    return photo_page(
        "explorer.html",
        image,
        geometry,
        styles=["paper.css", "viewer.css", "explorer.css"],
        scripts=_SCRIPTS,
        data={
            "table": base64.b64encode(color_table(colors).tobytes()).decode(),
            "title": shown_text(title, _TITLE),
            "layers": [_layer_data(layer) for layer in layers],
            "maps": [_map_data(one) for one in maps],
        },
        texts={"model": shown_text(model, _TITLE), "title": shown_text(title, _TITLE)},
        name=name,
        colors=colors,
        opacity=opacity,
        style=style,
        longest=longest,
        index=index,
    )


def eight_bits(
    weights: Float[np.ndarray, "h q y x"],
) -> tuple[UInt8[np.ndarray, "h q y x"], Float[np.ndarray, "h q"]]:
    """Return weights as codes of 8 bits, and the largest weight of each row.

    A weight is the square of its code's share of 255, times the largest of its row.

    Args:
        weights: Not below 0.

    Example:
        >>> codes, tops = eight_bits(np.array([[[[0.0, 0.1, 0.9]]]]))
        >>> codes.ravel(), tops
        (array([  0,  85, 255], dtype=uint8), array([[0.9]], dtype=float32))
    """
    tops = weights.max(axis=(2, 3), initial=0).astype(np.float32)
    shares = weights / np.where(tops > 0, tops, 1)[..., None, None]
    codes = np.rint(255 * np.sqrt(np.clip(shares, 0, 1)))
    return codes.astype(np.uint8), tops


def _check(layers: Sequence[ExploredLayer], maps: Sequence[ExploredMap]) -> None:
    if not layers and not maps:
        raise ValueError("a page needs a layer of attention or the map of a method")
    if not all(np.isfinite(one.weights).all() for one in layers) or not all(
        np.isfinite(one.values).all() for one in maps
    ):
        raise ValueError("maps that are shown must be finite, got NaN or infinity")


def _layer_data(layer: ExploredLayer) -> dict[str, Any]:
    codes, tops = eight_bits(layer.weights)
    return {
        "number": layer.number,
        "site": shown_text(layer.site, _TITLE),
        "heads": list(layer.heads),
        "grid": list(layer.grid),
        "keys": list(layer.keys),
        "askers": [shown_text(asker, _NAME) for asker in layer.askers],
        "count": layer.weights.shape[1],
        "lone": layer.lone,
        "before": layer.before,
        "tops": base64.b64encode(tops.astype("<f4").tobytes()).decode(),
        "codes": base64.b64encode(codes.tobytes()).decode(),
    }


def _map_data(one: ExploredMap) -> dict[str, Any]:
    first = -one.high if one.signed else one.low
    size = np.abs(one.values) if one.signed else one.values
    return {
        "name": shown_text(one.name, _NAME),
        "grid": list(one.values.shape),
        "scale": [one.low, one.high],
        "clipped": bool(size.max() > one.high),
        "signed": one.signed,
        "unit": shown_text(one.unit, _NAME),
        "range": f"{first:.2g} to {one.high:.2g}".replace("-", "\N{MINUS SIGN}"),
        "facts": [[shown_text(name, _NAME), shown_text(text, _TITLE)] for name, text in one.facts],
        "values": base64.b64encode(one.values.astype("<f4").tobytes()).decode(),
    }
