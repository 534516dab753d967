"""The one form in which every kind of attention ends: values that know their place."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.blocks.tap import MapKind
from visattn.geometry.affine import Geometry


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap:
    """Attention weights on a grid that covers the network's input from edge to edge.

    `len`, indexing and iteration go over the first axis, which is that of the labels if there are
    any: `maps[2]` is the map of the third word.

    Args:
        values: Weights `[..., y, x]`; `[..., c]` if the kind is `channel`.
        site: Where in the model they were made, as a path of attributes.
        kind: What they are: a `gate`, a softmax over `tokens`, one map per word (`words`), a
            `glimpse`, made from scores and their `gradient`, from the image alone (`saliency`),
            or a gate per `channel`, which has no place on the image.
        geometry: The way to the image; None if it is not known (yet).
        made: How they were made, in plain values.
        labels: A name for each map of the first axis, or none.

    Raises:
        ValueError: If the kind is unknown, there are too few axes, or the labels do not fit.

    Example:
        >>> maps = AttentionMap(torch.rand(2, 3, 5), "decoder.attend", "words", labels=("a", "dog"))
        >>> [(one.made["label"], tuple(one.values.shape)) for one in maps]
        [('a', (3, 5)), ('dog', (3, 5))]
    """

    values: Float[Tensor, "*axes"]
    site: str
    kind: MapKind
    geometry: Geometry | None = None
    made: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the kind, the axes and the labels."""
        if self.kind not in get_args(MapKind):
            raise ValueError(f"kind must be one of {get_args(MapKind)}, got {self.kind!r}")
        if self.values.ndim < self._own_axes:
            axes = "[..., c]" if self.kind == "channel" else "[..., y, x]"
            given = tuple(self.values.shape)
            raise ValueError(f"values of kind {self.kind} must be {axes}, got shape {given}")
        if self.labels and (
            self.values.ndim == self._own_axes or len(self.labels) != len(self.values)
        ):
            raise ValueError(
                "labels must name the maps of the first axis, one each, "
                f"got {len(self.labels)} labels for {tuple(self.values.shape)}"
            )

    def __repr__(self) -> str:
        """Return what the map is in one line.

        Example:
            >>> AttentionMap(torch.eye(2), "layer4", "gradient", made={"class": "dog"})
            AttentionMap(layer4, gradient, 2 x 2, 0 to 1, dog, not placed)
        """
        shape = " x ".join(map(str, self.values.shape))
        values = self.values.detach()
        ends = f"{float(values.min()):.3g} to {float(values.max()):.3g}" if values.numel() else ""
        about = " ".join(self.labels) or self.made.get("class") or self.made.get("label") or ""
        place = "not placed"
        if self.geometry is not None:
            place = "on {} x {}".format(*self.geometry.image_size)
        parts = [self.site, self.kind, shape, ends, shortened(str(about)), place]
        return f"AttentionMap({', '.join(filter(None, parts))})"

    @property
    def _own_axes(self) -> int:
        return 1 if self.kind == "channel" else 2

    def __len__(self) -> int:
        """Return the number of maps along the first axis."""
        if self.values.ndim == self._own_axes:
            raise TypeError("this is a single map: it has no length and cannot be indexed")
        return len(self.values)

    def __getitem__(self, which: int | slice) -> "AttentionMap":
        """Return one map, or a run of them; one map keeps its label in `made`."""
        count = len(self)
        if isinstance(which, slice):
            return replace(self, values=self.values[which], labels=self.labels[which])
        if not -count <= which < count:
            raise IndexError(f"there are {count} maps, got index {which}")
        made = {**self.made, "label": self.labels[which]} if self.labels else self.made
        return replace(self, values=self.values[which], labels=(), made=made)

    def __iter__(self) -> Iterator["AttentionMap"]:
        """Go over the maps of the first axis."""
        return (self[index] for index in range(len(self)))

    def placed(self, geometry: Geometry) -> "AttentionMap":
        """Return the same values with a place.

        Example:
            >>> gate = AttentionMap(torch.rand(2, 2), "gate", "gate")
            >>> gate.placed(Geometry.identity((8, 8))).on_image().shape
            torch.Size([8, 8])
        """
        return replace(self, geometry=geometry)

    def scale(self) -> tuple[float, float]:
        """Return the values at which these maps, all alike, should begin to show and show in full.

        A gate shows in full at 1. Weights that sum to 1 do so at the peak of the middle map, when
        the maps are ordered by their peaks, and not below four times an even spread: attention that
        is nearly everywhere looks as faint as it is.

        Example:
            >>> even = AttentionMap(torch.full((3, 4, 4), 1 / 16), "attend", "words")
            >>> even.scale()
            (0.0, 0.25)
        """
        if self.kind == "gate":
            return 0.0, 1.0
        values = self.values.reshape(-1, *self.values.shape[-self._own_axes :])
        peaks = values.flatten(1).nan_to_num(0.0).amax(1)
        top = float(peaks.median()) if len(peaks) else 0.0
        if self.kind in ("tokens", "words"):
            top = max(top, 4 / values[0].numel())
        return 0.0, top if top > 0 else 1.0

    def on_image(
        self, size: tuple[int, int] | None = None, *, smooth: bool = True
    ) -> Float[Tensor, "*axes y x"]:
        """Return the values on the pixels of the image; NaN where the network did not look.

        Every pixel takes the value at its center, so a cell appears where it lies and nowhere else.
        Values are never scaled, and lie between those of the cells around.

        Args:
            size: Height and width of the image if it is to be drawn smaller or larger than it is.
            smooth: Interpolate between the centers of the cells; if false, show the cells.

        Raises:
            ValueError: If the map has no place: its kind is `channel`, or its geometry not known.

        Example:
            >>> halves = AttentionMap(torch.tensor([[0.0, 1.0]]), "gate", "gate")
            >>> halves.placed(Geometry.identity((1, 4))).on_image()
            tensor([[0.0000, 0.2500, 0.7500, 1.0000]])
            >>> middle = Geometry.identity((1, 6)).cropped(0, 1, (1, 4))
            >>> halves.placed(middle).on_image(smooth=False)
            tensor([[nan, 0., 0., 1., 1., nan]])
        """
        if self.kind == "channel":
            raise ValueError(f"{self.site} is a gate per channel: it has no place on the image")
        if self.geometry is None:
            raise ValueError(f"{self.site} does not know its image; call placed(geometry) first")
        (xx, xy, x0), (yx, yy, y0), _ = self.geometry.matrix
        rows, columns = size or self.geometry.image_size
        values, (grid_y, grid_x) = self.values, self.values.shape[-2:]
        height, width = self.geometry.input_size
        image_y, image_x = self.geometry.image_size
        y, x = _centers(rows, image_y), _centers(columns, image_x)
        left, top, right, bottom = self.geometry.region
        seen = ((y >= top) & (y <= bottom))[:, None] & ((x >= left) & (x <= right))
        seen &= left < right and top < bottom
        if xy:  # a quarter turn: the image's x runs along the grid's y
            values = values.transpose(-1, -2)
            down, along = (y - y0) / yx * grid_x / width, (x - x0) / xy * grid_y / height
        else:
            down, along = (y - y0) / yy * grid_y / height, (x - x0) / xx * grid_x / width
        values = _sampled(values, along, -1, smooth=smooth)
        values = _sampled(values, down, -2, smooth=smooth)
        return values.masked_fill_(~seen.to(values.device), torch.nan)  # ours: sampled above


def shortened(text: str, most: int = 60) -> str:
    """Return a text of one line, cut where it is longer than a part of a line may be.

    Example:
        >>> shortened("a dog"), shortened("a" * 9, 5)
        ('a dog', 'aa...')
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _centers(count: int, length: int) -> Float[Tensor, " n"]:
    """Return the centers of `count` pixels that share `length` pixels of the image."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) * (length / count)


def _sampled(
    values: Float[Tensor, "*axes y x"], at: Float[Tensor, " n"], axis: int, *, smooth: bool
) -> Float[Tensor, "*axes y2 x2"]:
    """Return the values of one axis at places given in cells, the first reaching from 0 to 1."""
    last = values.shape[axis] - 1
    if not smooth:
        return _taken(values, at.floor().long().clamp(0, last), axis)
    at = (at - 0.5).clamp(0, last)
    before = at.floor().long().clamp(max=max(last - 1, 0))
    share = (at - before).to(values)
    share = share if axis == -1 else share[:, None]
    after = _taken(values, (before + 1).clamp(max=last), axis)
    return _taken(values, before, axis).lerp_(after, share)


def _taken(
    values: Float[Tensor, "*axes y x"], index: Int[Tensor, " n"], axis: int
) -> Float[Tensor, "*axes y2 x2"]:
    return values.index_select(axis, index.to(values.device))
