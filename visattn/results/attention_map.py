"""Attention maps: weights on a grid, with the geometry that places them on the image."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import interpolate, pad

from visattn.geometry.affine import Geometry, Margin
from visattn.geometry.preprocessing import geometry_of_transform
from visattn.results.info import MapInfo
from visattn.results.kinds import MapKind
from visattn.results.map_boxes import BOX_THRESHOLD, MapBox, MapBoxes, part_boxes
from visattn.results.records import Result, shown

_UNIFORM = 0.25  # maximum deviation from the mean in a nearly uniform map, as a share of the mean
_COARSE = 4  # grids with fewer cells per side are reported as coarse


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMap(Result):
    """Attention weights on a grid, with the geometry that places each cell on the original image.

    `len`, indexing and iteration use the first axis. Labels, if any, name its entries: `maps[2]` is
    the map of the third word.

    Args:
        values: Weights `[..., y, x]`; `[..., c]` for the kind `channel`.
        site: Qualified name of the module that computed them, as in `named_modules()`.
        kind: A spatial `gate`, a softmax over `tokens`, one map per word (`words`), one
            per object query (`queries`), a `glimpse`, an
            attribution computed with a target (`gradient`), bottom-up `saliency` of the image, or a
            `channel` gate, which has no position on the image.
        geometry: Transform from the part of the network's input that the cells cover to the image;
            None if unknown.
        info: How they were computed.
        labels: A name for each map of the first axis; () for none.
        margin: Uncovered pixels of the network's input at top and bottom, and left and right; above
            0 only for networks without padding.

    Raises:
        ValueError: If the labels do not match the first axis.

    Example:
        >>> maps = AttentionMap(torch.rand(2, 3, 5), "decoder.attend", "words", labels=("a", "dog"))
        >>> [(word.info.label, tuple(word.values.shape)) for word in maps]
        [('a', (3, 5)), ('dog', (3, 5))]
    """

    values: Float[Tensor, "*axes"]
    site: str
    kind: MapKind
    geometry: Geometry | None = None
    info: MapInfo = field(default_factory=MapInfo)
    labels: tuple[str, ...] = ()
    margin: Margin = (0, 0)

    def __post_init__(self) -> None:
        """Check the labels, which name maps in figures."""
        if self.labels and (
            self.values.ndim == self._map_ndim or len(self.labels) != len(self.values)
        ):
            raise ValueError(
                "there must be one label for each map of the first axis, "
                f"got {len(self.labels)} labels for values of shape {tuple(self.values.shape)}"
            )

    @classmethod
    def from_array(
        cls,
        values: Any,
        transform: object = None,
        image_size: tuple[int, int] | None = None,
        *,
        channels: Literal["sum", "mean", "max_abs"] | None = None,
        site: str = "array",
    ) -> "AttentionMap":
        """Return maps that were computed elsewhere, placed on their image.

        Args:
            values: Array or tensor `[..., y, x]` that covers the network's input, at any
                resolution; `[..., c, y, x]` with `channels`, as Captum's attributions.
            transform: Preprocessing that the image went through: a deterministic transform of
                torchvision or timm, a `ResizeSpec` or a `Geometry`; None if the input was the image
                itself.
            image_size: Height and width of the image after EXIF rotation; needed unless `transform`
                is a `Geometry`. Without either, the maps have no geometry.
            channels: How the axis of the color channels is reduced; Captum's visualization takes
                the sum. None if there is none.
            site: Name of their source.

        Raises:
            ValueError: If a transform is unknown or random, or has no image size.

        Example:
            >>> from torchvision.transforms import v2
            >>> steps = v2.Compose([v2.Resize(16), v2.CenterCrop(16)])
            >>> attributions = torch.ones(1, 3, 16, 16)  # of Captum, for an image of 20 x 40
            >>> maps = AttentionMap.from_array(attributions, steps, (20, 40), channels="sum")
            >>> maps[0], maps.geometry.region
            (AttentionMap(array, gradient, 16 x 16, 3 to 3, on 20 x 40), (10.0, 0.0, 30.0, 20.0))
        """
        tensor = torch.as_tensor(values).detach()
        tensor = tensor if tensor.is_floating_point() else tensor.float()
        if channels is not None:
            rules = {"sum": tensor.sum, "mean": tensor.mean, "max_abs": tensor.abs().amax}
            tensor = rules[channels](-3)
        geometry = transform_geometry(transform, image_size)
        info = MapInfo(signed=bool((tensor < 0).any()))  # negative values count against the target
        return cls(tensor, site, "gradient", geometry, info)

    def to_attributions(
        self, channels: int = 3, size: tuple[int, int] | None = None
    ) -> Float[Tensor, "b c y x"]:
        """Return maps as attributions of the network's input, for Captum and Quantus.

        They are interpolated bilinearly; the sum over the channels is the map.

        Args:
            channels: Color channels of the input, over which a map is divided.
            size: Height and width of the input; by default that of the geometry.

        Example:
            >>> gate = AttentionMap(torch.tensor([[0.0, 1.0]]), "gate", "gate")
            >>> gate.to_attributions(channels=1, size=(1, 4))
            tensor([[[[0.0000, 0.2500, 0.7500, 1.0000]]]])
        """
        maps = self.values.detach().flatten(0, -3) if self.values.ndim > 2 else self.values[None]
        size = size or cast("Geometry", self.input_geometry).input_size
        maps = resample_to_input(maps, size, self.margin)
        return (maps / channels).unsqueeze(1).repeat(1, channels, 1, 1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the values as a NumPy array, for `np.asarray`.

        Example:
            >>> np.asarray(AttentionMap(torch.eye(2), "layer4", "gradient")).shape
            (2, 2)
        """
        return np.array(self.values.detach().cpu().numpy(), dtype, copy=copy)

    def __repr__(self) -> str:
        """Return a one-line summary.

        Example:
            >>> AttentionMap(torch.eye(2), "layer4", "gradient", info=MapInfo(class_name="dog"))
            AttentionMap(layer4, gradient, 2 x 2, 0 to 1, dog, no geometry)
        """
        shape = " x ".join(map(str, self.values.shape))
        values = self.values.detach()
        limits = f"{float(values.min()):.3g} to {float(values.max()):.3g}" if values.numel() else ""
        label = " ".join(self.labels) or self.info.class_name or self.info.label
        position = "no geometry"
        if self.geometry is not None:
            position = "on {} x {}".format(*self.geometry.image_size)
        parts = [self.site, self.kind, shape, limits, truncate_text(label), position]
        return f"AttentionMap({', '.join(filter(None, parts))})"

    def _repr_png_(self) -> bytes | None:
        """Return the maps as an image for notebooks, with one color scale.

        `visattn.overlay(photo, attention_map)` draws one of them on its photo.

        Example:
            >>> AttentionMap(torch.eye(2), "layer4", "gradient")._repr_png_()[1:4]
            b'PNG'
        """
        return shown(self)

    @property
    def _map_ndim(self) -> int:
        return 1 if self.kind == "channel" else 2

    def __len__(self) -> int:
        """Return the number of maps along the first axis."""
        if self.values.ndim == self._map_ndim:
            raise TypeError("a single map has no length and cannot be indexed")
        return len(self.values)

    def __getitem__(self, index: int | slice) -> "AttentionMap":
        """Return one map or a slice of them; a single map keeps its label in `info`."""
        len(self)  # raises for a single map, whose rows are not maps
        if isinstance(index, slice):
            return replace(self, values=self.values[index], labels=self.labels[index])
        info = replace(self.info, label=self.labels[index]) if self.labels else self.info
        return replace(self, values=self.values[index], labels=(), info=info)

    def __iter__(self) -> Iterator["AttentionMap"]:
        """Iterate over the maps of the first axis."""
        return (self[index] for index in range(len(self)))

    @property
    def input_geometry(self) -> Geometry | None:
        """Transform from the network's input to the image; None if unknown."""
        top, left = self.margin
        return None if self.geometry is None else self.geometry.inset((-top, -left))

    def with_geometry(self, geometry: Geometry) -> "AttentionMap":
        """Return the same map with a geometry.

        Args:
            geometry: That of the network's input.

        Example:
            >>> gate = AttentionMap(torch.rand(2, 2), "gate", "gate")
            >>> gate.with_geometry(Geometry.identity((8, 8))).resize_to_image().shape
            torch.Size([8, 8])
        """
        return replace(self, geometry=geometry.inset(self.margin))

    def display_range(self) -> tuple[float, float]:
        """Return one display range (vmin, vmax) for these maps.

        For gates vmax is 1. For weights that sum to 1, one map in five has a higher peak, but vmax
        is at least four times the uniform weight, so that nearly uniform attention is drawn
        faintly. For maps of several texts it is the largest peak, so that the texts can be
        compared.

        Example:
            >>> uniform = AttentionMap(torch.full((3, 4, 4), 1 / 16), "attend", "words")
            >>> uniform.display_range()
            (0.0, 0.25)
        """
        if self.kind == "gate":
            return 0.0, 1.0
        values = self.values.reshape(-1, *self.values.shape[-self._map_ndim :])
        peaks = values.flatten(1).nan_to_num(0.0).amax(1)
        share = 1.0 if self.info.texts else 0.8
        top = float(peaks.float().quantile(share, interpolation="lower")) if len(peaks) else 0.0
        if self.kind in ("tokens", "words", "queries"):
            top = max(top, 4 / values.shape[1:].numel())
        return 0.0, top if top > 0 else 1.0

    def resize_to_image(
        self, size: tuple[int, int] | None = None, *, smooth: bool = True
    ) -> Float[Tensor, "*axes y x"]:
        """Resample the map to the pixels of the image; NaN outside of the map.

        Each pixel gets the value at its center, as `align_corners=False` does. Values are not
        rescaled, and are between those of the surrounding cells. Pixels beyond the centers of the
        outermost cells get the value of the nearest one, up to a whole cell away.

        Args:
            size: Height and width of the result; by default those of the image.
            smooth: Bilinear interpolation between cell centers; if False, nearest neighbor.

        Raises:
            ValueError: If the kind is `channel`, or the geometry is unknown.

        Example:
            >>> halves = AttentionMap(torch.tensor([[0.0, 1.0]]), "gate", "gate")
            >>> halves.with_geometry(Geometry.identity((1, 4))).resize_to_image()
            tensor([[0.0000, 0.2500, 0.7500, 1.0000]])
            >>> middle = Geometry.identity((1, 6)).cropped(0, 1, (1, 4))
            >>> halves.with_geometry(middle).resize_to_image(smooth=False)
            tensor([[nan, 0., 0., 1., 1., nan]])
        """
        if self.kind == "channel":
            raise ValueError(
                f"only spatial maps can be resized to the image; {self.site} is a channel gate"
            )
        if self.geometry is None:
            raise ValueError(
                f"the map must have a geometry to be resized to the image, {self.site} has none; "
                "call with_geometry(geometry) first"
            )
        # Axes are resampled separately, since geometries only scale, translate or flip. Example: an
        # image of width 8, whose center (x from 2 to 6) became an input of width 2, and a map of
        # two cells with values 0 and 1:
        #
        #     pixel of the image    0    1    2    3     4     5    6    7
        #     x of its center       0.5  1.5  2.5  3.5   4.5   5.5  6.5  7.5
        #     in cells                        0.25 0.75  1.25  1.75
        #     value                 nan  nan  0    0.25  0.75  1    nan  nan
        (scale_x, _, x0), (_, scale_y, y0), _ = self.geometry.matrix
        rows, columns = size or self.geometry.image_size
        image_y, image_x = self.geometry.image_size
        y = _centers(rows, image_y)
        x = _centers(columns, image_x)
        left, top, right, bottom = self.geometry.region
        visible = ((y >= top) & (y <= bottom))[:, None] & ((x >= left) & (x <= right))
        visible &= left < right and top < bottom
        grid_y, grid_x = self.values.shape[-2:]
        height, width = self.geometry.input_size
        down = (y - y0) / scale_y * grid_y / height
        along = (x - x0) / scale_x * grid_x / width
        values = _resample_axis(self.values, along, -1, smooth=smooth)
        values = _resample_axis(values, down, -2, smooth=smooth)
        return values.masked_fill_(~visible.to(values.device), torch.nan)  # a new tensor

    def boxes(self, threshold: float = BOX_THRESHOLD, *, smooth: bool = True) -> MapBoxes:
        """Return boxes around the parts of the image where each map is high.

        They enclose the pixels of `resize_to_image` at or above the threshold, part by part; pixels
        that touch at a side or a corner are one part. They do not include pixels outside the input.
        Only positive values count, so a map that is nowhere above 0 has no box.

        Args:
            threshold: Share of the peak of each map on the image, in (0, 1].
            smooth: Interpolate between cell centers, as maps are drawn; if False, parts consist of
                entire cells.

        Raises:
            ValueError: If the maps have no geometry.

        Example:
            >>> values = torch.tensor([[0.0, 1.0, 0.0, 0.2]])
            >>> gate = AttentionMap(values, "gate", "gate", Geometry.identity((2, 8)))
            >>> [(box.box, round(box.score, 2)) for box in gate.boxes(0.5, smooth=False)]
            [((2.0, 0.0, 4.0, 2.0), 0.83)]
        """
        parts: list[MapBox] = []
        maps = list(self) if self.values.ndim > self._map_ndim else [self]
        for index, attention_map in enumerate(maps):
            label = attention_map.info.label or attention_map.info.class_name
            placed = attention_map.resize_to_image(smooth=smooth)
            parts += part_boxes(placed, threshold, label, index)
        size = self.geometry.image_size  # pyright: ignore[reportOptionalMemberAccess] (checked)
        return MapBoxes(tuple(parts), threshold, size, len(maps))


def transform_geometry(transform: Any, image_size: tuple[int, int] | None) -> Geometry | None:
    """Return the geometry of a transform's output on an image; None without both.

    Args:
        transform: Steps of torchvision or timm, a `ResizeSpec` or a `Geometry`; None for no step.
        image_size: Height and width of the image.

    Raises:
        ValueError: If the transform is random or unknown, or there is no size.

    Example:
        >>> transform_geometry(None, (3, 5)).input_size
        (3, 5)
    """
    if isinstance(transform, Geometry):
        return transform
    if image_size is None:
        if transform is not None:
            raise ValueError(
                "image_size must be the height and width of the image before the transform"
            )
        return None
    if transform is None:
        return Geometry.identity(image_size)
    if callable(own := getattr(transform, "geometry", None)):  # a ResizeSpec
        return cast("Geometry", own(image_size))
    return geometry_of_transform(transform, image_size)


def resample_to_input(
    maps: Float[Tensor, "*axes y x"], size: tuple[int, int], margin: Margin = (0, 0)
) -> Float[Tensor, "*axes y2 x2"]:
    """Return maps at every pixel of the network's input, interpolated bilinearly between cells.

    The size is that of the input. Uncovered margins get the values of the outermost cells.

    Example:
        >>> resample_to_input(torch.tensor([[0.0, 1.0]]), (1, 4))
        tensor([[0.0000, 0.2500, 0.7500, 1.0000]])
        >>> resample_to_input(torch.tensor([[0.0, 1.0]]), (1, 4), (0, 1))
        tensor([[0., 0., 1., 1.]])
    """
    top, left = margin
    batch = maps.reshape(1, -1, *maps.shape[-2:])
    covered = (size[0] - 2 * top, size[1] - 2 * left)
    fine = interpolate(batch, covered, mode="bilinear", align_corners=False)
    if top or left:
        fine = pad(fine, (left, left, top, top), mode="replicate")
    return fine.reshape(*maps.shape[:-2], *size)


def truncate_text(text: str, max_length: int = 60) -> str:
    """Return a text as one line of at most `max_length` characters.

    Example:
        >>> truncate_text("a dog"), truncate_text("a" * 9, 5)
        ('a dog', 'aa...')
    """
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[: max_length - 3]}..."


def _centers(count: int, length: int) -> Float[Tensor, " n"]:
    """Return the centers of `count` pixels that together span `length` pixels of the image."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) * (length / count)


def _resample_axis(
    values: Float[Tensor, "*axes y x"], positions: Float[Tensor, " n"], axis: int, *, smooth: bool
) -> Float[Tensor, "*axes y2 x2"]:
    """Return the values of one axis at positions in units of cells; the first cell is 0 to 1."""
    last = values.shape[axis] - 1
    if not smooth:
        return _index_axis(values, positions.floor().long().clamp(0, last), axis)
    # From here on, integers are centers of cells; values are constant beyond the outermost ones.
    positions = (positions - 0.5).clamp(0, last)
    lower = positions.floor().long().clamp(max=max(last - 1, 0))
    weight = (positions - lower).to(values)
    weight = weight if axis == -1 else weight[:, None]
    upper = _index_axis(values, (lower + 1).clamp(max=last), axis)
    return _index_axis(values, lower, axis).lerp_(upper, weight)


def _index_axis(
    values: Float[Tensor, "*axes y x"], index: Int[Tensor, " n"], axis: int
) -> Float[Tensor, "*axes y2 x2"]:
    return values.index_select(axis, index.to(values.device))


def empty_map_reason(values: Float[Tensor, "*axes"]) -> str:
    """Return why a map is empty; "" if it is not.

    Example:
        >>> empty_map_reason(torch.zeros(2, 2)), empty_map_reason(torch.eye(2))
        ('the map is zero everywhere', '')
    """
    if not bool(torch.isfinite(values).all()):
        return "the map has NaN or infinity"
    if not bool(values.any()):
        return "the map is zero everywhere"
    return ""


def map_note(values: Float[Tensor, "*axes y x"]) -> str:
    """Return a note on maps that are nearly uniform or coarse; "" for others.

    Example:
        >>> map_note(torch.full((4, 5), 0.2)), map_note(torch.eye(2)), map_note(torch.eye(4))
        ('nearly uniform', 'only 2 × 2 cells', '')
    """
    cells = values.flatten(-2)
    mean = cells.mean(-1, keepdim=True)
    notes: list[str] = []
    if bool(((cells - mean).abs() <= _UNIFORM * mean.abs()).all()) and bool(mean.any()):
        notes.append("nearly uniform")
    if min(values.shape[-2:]) < _COARSE:
        notes.append("only {} \N{MULTIPLICATION SIGN} {} cells".format(*values.shape[-2:]))
    return ", ".join(notes)
