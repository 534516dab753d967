"""Regular grids that image tokens form on a photo, and the grid on which they are drawn.

A vision-language model may see a photo as a whole and in tiles. What was measured of its tokens is
a mean and an extent each; what is drawn are the cells of the grids behind them:

    photo as a whole       its tiles, on one grid          drawn
    +-----+-----+          +--+--+--+--+                   cells of the finer grid; a token of the
    |     |     |          |  |  |  |  |                   whole spreads over those that it covers
    +-----+-----+          +--+--+--+--+
    |     |     |          |  |  |  |  |                   tiles that do not lie on one grid are a
    +-----+-----+          +--+--+--+--+                   lattice each
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.geometry.affine import Geometry

_ALIKE = 0.15  # largest difference of logarithms of sizes in one lattice
_WHOLE = 0.999  # visible share of a token without padding
_MAX_MISFIT = 0.1  # of a token, between a lattice and the centers of its tokens
_EDGE = 0.05  # of a token: lattices that end so close to the edge of the photo end there
_SLIVER = 0.25  # of a token: smaller parts of other lattices need no cells of their own
_SEEN = 0.2  # of a token at the edge of a photo, whose pixels resampling repeats
_MAX_CELLS = 512  # along an axis
_CHUNK = 256


@dataclass(frozen=True, eq=False)
class TokenMoments:
    """Position and extent of image tokens on a photo.

    Args:
        columns: Index of the key of each token.
        visible: Share of its pixels that are on the photo.
        mean: Mean x and y of these pixels, in pixels of the photo.
        extent: Width and height of the visible part.
    """

    columns: Int[Tensor, " i"]
    visible: Float[Tensor, " i"]
    mean: Float[Tensor, "i 2"]
    extent: Float[Tensor, "i 2"]

    @property
    def whole(self) -> Bool[Tensor, " i"]:
        """Whether a token has no padding; the most visible ones if all have some."""
        whole = self.visible > _WHOLE
        return whole if bool(whole.any()) else self.visible >= self.visible.max() - 1e-6


@dataclass(frozen=True)
class LatticeAxis:
    """Equal cells along x or y, in pixels of the photo.

    Args:
        begin: Begin of the first cell.
        pitch: Size of a cell.
        count: Number of cells.
    """

    begin: float
    pitch: float
    count: int

    @property
    def end(self) -> float:
        """End of the last cell."""
        return self.begin + self.pitch * self.count

    def index(self, places: Float[Tensor, " i"]) -> Int[Tensor, " i"]:
        """Return the cell of each place; cells before the first are negative."""
        return ((places - self.begin) / self.pitch).floor().long()

    def covering(self, low: float, high: float) -> "LatticeAxis":
        """Return the same lattice with cells up to two places, but for slivers."""
        before = max(0, math.ceil((self.begin - low) / self.pitch - _SLIVER))
        after = max(0, math.ceil((high - self.end) / self.pitch - _SLIVER))
        return LatticeAxis(
            self.begin - before * self.pitch, self.pitch, self.count + before + after
        )


@dataclass(frozen=True, eq=False)
class Lattice:
    """Image tokens that form a grid, such as those of a photo, or of all tiles of one.

    Args:
        members: Indices of the tokens.
        axes: The cells along x and y; None if the tokens form no grid.
    """

    members: Int[Tensor, " m"]
    axes: tuple[LatticeAxis, LatticeAxis] | None


def find_lattices(moments: TokenMoments, image_size: tuple[int, int]) -> list[Lattice]:
    """Return the lattices of tokens, those with the smallest tokens first.

    Tokens of one size on one grid form a lattice. If tiles do not lie on one grid, each is one.
    """
    lattices: list[Lattice] = []
    for members in _alike(moments):
        axes = _fit(moments, members, image_size)
        runs = [members] if axes is not None else _runs(moments, members)
        for run in runs:
            fitted = axes if axes is not None else _fit(moments, run, image_size)
            if not _is_extended(lattices, moments, run, image_size):
                lattices.append(Lattice(run, fitted))
    area = [float(moments.extent[lattice.members].median(0).values.prod()) for lattice in lattices]
    return [lattices[index] for index in sorted(range(len(area)), key=area.__getitem__)]


def _alike(moments: TokenMoments) -> list[Int[Tensor, " _m"]]:
    """Return groups of tokens of about the same size, the largest group first."""
    sizes = moments.extent.clamp(min=1e-6).log()
    rest, partial = (mask.nonzero()[:, 0] for mask in (moments.whole, ~moments.whole))
    groups: list[Tensor] = []
    # Tokens of the median size and all alike make a group, then those of the rest. The median moves
    # to the middle of its group, so that no group is cut in two at its edge.
    while len(rest):
        center = sizes[rest[sizes[rest].sum(1).argsort()[len(rest) // 2]]]
        for _ in range(2):
            near = ((sizes[rest] - center).abs() < _ALIKE).all(1)
            center = sizes[rest[near]].median(0).values if bool(near.any()) else center
        near = ((sizes[rest] - center).abs() < _ALIKE).all(1)
        near = near if bool(near.any()) else torch.ones_like(near)
        groups.append(rest[near])
        rest = rest[~near]
    if len(partial):
        group = _group_of_partial(moments, partial, groups)
        groups = [torch.cat([members, partial[group == number]]).sort().values
                  for number, members in enumerate(groups)]  # fmt: skip
    return sorted(groups, key=len, reverse=True)


def _group_of_partial(
    moments: TokenMoments, partial: Int[Tensor, " p"], groups: list[Int[Tensor, " _m"]]
) -> Int[Tensor, " p"]:
    """Return the group of each token that is partly padding.

    Its visible part is not larger than the tokens of its group, and it follows or precedes one of
    them among the keys.
    """
    distances: list[Tensor] = []
    for members in groups:
        largest = moments.extent[members].median(0).values
        fits = (moments.extent[partial] < (1 + _ALIKE) * largest).all(1)
        fits &= (moments.extent[partial] > (1 - _ALIKE) * largest).any(1) | (len(groups) == 1)
        columns = moments.columns[members]
        apart = (moments.columns[partial][:, None] - columns).abs().amin(1).double()
        distances.append(torch.where(fits, apart, apart + 1e9))
    return torch.stack(distances).argmin(0)


def _runs(moments: TokenMoments, members: Int[Tensor, " m"]) -> list[Int[Tensor, " _m"]]:
    """Return tokens tile by tile: in a tile, rows follow downwards, and begin at the same x."""
    # In the order of the keys: a row ends where x falls back or y goes on, and a tile ends where y
    # goes up again, or where rows begin elsewhere.
    x, y = moments.mean[members].T
    width, height = moments.extent[members].T
    down = y.diff() / height[1:]
    begins = (x.diff() < 0) | (down.abs() > 0.5)  # of rows
    rows = torch.cat([begins.new_zeros(1), begins]).cumsum(0)
    first = x[torch.cat([begins.new_ones(1), begins])][rows]  # x of the first token of each row
    aside = begins & (first.diff().abs() > 0.5 * width[1:])
    starts = ((down < -0.5) | aside).nonzero()[:, 0] + 1
    return list(members.tensor_split(starts.tolist()))


def _fit(
    moments: TokenMoments, members: Int[Tensor, " m"], image_size: tuple[int, int]
) -> tuple[LatticeAxis, LatticeAxis] | None:
    """Return the grid of tokens along x and y, or None if they form none."""
    axes: list[LatticeAxis] = []
    whole = members[moments.whole[members]]
    whole = whole if len(whole) else members
    for axis in (0, 1):
        fitted = _fit_axis(moments.mean[whole, axis], float(moments.extent[whole, axis].median()))
        if fitted is None:
            return None
        index = fitted.index(moments.mean[members, axis])
        low = int(index.min())
        high = int(index.max()) + 1
        begin = fitted.begin + low * fitted.pitch
        axes.append(_at_edges(LatticeAxis(begin, fitted.pitch, high - low), image_size[1 - axis]))
    return axes[0], axes[1]


def _fit_axis(places: Float[Tensor, " m"], pitch: float) -> LatticeAxis | None:
    """Return the lattice of token centers along an axis, by linear regression.

    The outermost centers count only if there are few: at the edge of the photo, resampling repeats
    its pixels.
    """
    ordered = places.double().sort().values
    starts = (ordered.diff() > 0.5 * pitch).nonzero()[:, 0] + 1
    centers = torch.stack([run.mean() for run in ordered.tensor_split(starts.tolist())])
    if len(centers) == 1:
        return LatticeAxis(float(centers[0]) - pitch / 2, pitch, 1)
    # Rows may be missing (padding): a gap of two pitches is two steps, not one that is too long.
    steps = (centers.diff() / pitch).round().clamp(min=1)
    index = torch.cat([steps.new_zeros(1), steps.cumsum(0)])
    inner = slice(1, -1) if len(centers) >= 5 else slice(None)
    x = index[inner]
    y = centers[inner]
    slope = float((x - x.mean()) @ (y - y.mean()) / ((x - x.mean()) ** 2).sum())
    offset = float(y.mean() - slope * x.mean())
    misfit = float((offset + slope * x - y).abs().max()) / pitch
    if misfit > _MAX_MISFIT:
        return None
    return LatticeAxis(offset - slope / 2, slope, int(index[-1]) + 1)


def _at_edges(axis: LatticeAxis, side: int) -> LatticeAxis:
    """Return an axis that ends at the edges of the photo if it almost does."""
    tolerance = _EDGE * axis.pitch
    begin = 0.0 if abs(axis.begin) < tolerance else axis.begin
    end = float(side) if abs(axis.end - side) < tolerance else axis.end
    return LatticeAxis(begin, (end - begin) / axis.count, axis.count)


def _is_extended(
    lattices: list[Lattice],
    moments: TokenMoments,
    members: Int[Tensor, " m"],
    image_size: tuple[int, int],
) -> bool:
    """Extend a lattice by tokens that fill free cells of it; return whether there is one.

    These are tokens at the edge of a photo whose pixels were repeated by resampling, so that they
    seem smaller than they are.
    """
    for number, lattice in enumerate(lattices):
        if lattice.axes is None or len(members) >= len(lattice.members):
            continue
        near = True
        cells: list[Tensor] = []
        for axis, line in enumerate(lattice.axes):
            places = (moments.mean[:, axis] - line.begin) / line.pitch
            cells.append(places.floor())
            index = places[members]
            size = moments.extent[members, axis] / line.pitch
            near &= bool(((index - index.floor() - 0.5).abs() < 0.35).all())
            near &= bool(((size > _SEEN) & (size < 1.3)).all())
            near &= bool(((index > -1) & (index < line.count + 1)).all())
        both = torch.stack(cells, -1)
        taken = set(map(tuple, both[lattice.members].tolist()))
        if near and not taken & set(map(tuple, both[members].tolist())):
            joined = torch.cat([lattice.members, members]).sort().values
            axes = tuple(
                _at_edges(_extended(line, cells[axis][members]), image_size[1 - axis])
                for axis, line in enumerate(lattice.axes)
            )
            lattices[number] = Lattice(joined, (axes[0], axes[1]))
            return True
    return False


def _extended(axis: LatticeAxis, cells: Float[Tensor, " m"]) -> LatticeAxis:
    before = max(0, -int(cells.min()))
    after = max(0, int(cells.max()) + 1 - axis.count)
    return LatticeAxis(axis.begin - before * axis.pitch, axis.pitch, axis.count + before + after)


def lattice_boxes(
    lattices: list[Lattice], moments: TokenMoments, image_size: tuple[int, int]
) -> Float[Tensor, "i 4"]:
    """Return the visible part of each token: its cell, or its extent if it is in no grid.

    Of tokens with padding inside the photo, where tiles end, it is their extent too.
    """
    half = moments.extent.clamp(min=1e-3) / 2
    boxes = torch.cat([moments.mean - half, moments.mean + half], -1).double()
    for lattice in lattices:
        if lattice.axes is None:
            continue
        for axis, line in enumerate(lattice.axes):
            low = line.begin + line.index(moments.mean[lattice.members, axis]) * line.pitch
            side = image_size[1 - axis]
            cells = torch.stack([low, low + line.pitch], 1).double().clamp(0, side)
            own = boxes[lattice.members][:, [axis, axis + 2]]
            padded = (moments.visible[lattice.members] <= _WHOLE)[:, None]
            elsewhere = padded & ((own - cells).abs() > _ALIKE * line.pitch).any(1, keepdim=True)
            cells = torch.where(elsewhere, own.clamp(0, side), cells)
            boxes[lattice.members, axis], boxes[lattice.members, axis + 2] = cells.unbind(1)
    return boxes


def rasterize_tokens(
    lattices: list[Lattice], moments: TokenMoments, boxes: Float[Tensor, "i 4"], geometry: Geometry
) -> tuple[Geometry, Tensor, tuple[int, int]]:
    """Return the grid on which tokens are drawn, and the share of each in each cell.

    Along each axis its cells are those of the finest lattice, whose tokens fill one cell each.

    Returns:
        The geometry of the grid, shares as a sparse matrix `[cells i]`, and rows and columns.
    """
    shares: list[Tensor] = []
    axes: list[LatticeAxis] = []
    for axis in (0, 1):
        finest = _finest(lattices, moments, boxes, axis)
        low = min(float(boxes[:, axis].min()), finest.begin)
        high = max(float(boxes[:, axis + 2].max()), finest.end)
        chosen = finest.covering(low, high)
        share = interval_shares(boxes[:, axis], boxes[:, axis + 2], chosen)
        for lattice in lattices:
            own = lattice.axes and lattice.axes[axis]
            if own and abs(own.pitch / chosen.pitch - 1) < 1e-9:
                index = chosen.index(moments.mean[lattice.members, axis]).clamp(0, chosen.count - 1)
                share[lattice.members] = torch.eye(chosen.count, dtype=share.dtype)[index]
        axes.append(chosen)
        shares.append(share)
    return assemble_grid(axes[0], axes[1], shares[0], shares[1], moments.visible, geometry)


def assemble_grid(
    x: LatticeAxis,
    y: LatticeAxis,
    across: Tensor,
    down: Tensor,
    visible: Tensor,
    geometry: Geometry,
) -> tuple[Geometry, Tensor, tuple[int, int]]:
    """Return the geometry of a grid, and the visible share of each token in each of its cells.

    `across` and `down` are the shares of each token in each column (x) and row (y).
    """
    height, width = geometry.image_size
    across = (across * visible[:, None]).float()
    chunks = [
        torch.einsum("iy,ix->yxi", down[first : first + _CHUNK].float(),
                     across[first : first + _CHUNK]).flatten(0, 1).to_sparse()
        for first in range(0, len(across), _CHUNK)
    ]  # fmt: skip
    cells = torch.cat(chunks, 1).coalesce()
    matrix = ((x.pitch, 0.0, x.begin), (0.0, y.pitch, y.begin), (0.0, 0.0, 1.0))
    region = (max(x.begin, 0.0), max(y.begin, 0.0), min(x.end, float(width)),
              min(y.end, float(height)))  # fmt: skip
    placed = Geometry(matrix, (y.count, x.count), geometry.image_size, region)
    return placed, cells, (y.count, x.count)


def _finest(
    lattices: list[Lattice], moments: TokenMoments, boxes: Float[Tensor, "i 4"], axis: int
) -> LatticeAxis:
    """Return the lattice with the smallest cells along an axis, or equal cells.

    These are for tokens that form no lattice and are smaller: tiles of 384 pixels hold 27 patches
    of 14, and the pixels that are left over part their tokens from those of the next tile.
    """
    regular = [lattice.axes[axis] for lattice in lattices if lattice.axes is not None]
    fits = [line for line in regular if line.count <= _MAX_CELLS]
    finest = min(fits, key=lambda line: line.pitch) if fits else None
    loose = [lattice.members for lattice in lattices if lattice.axes is None]
    members = max(loose, key=len) if loose else slice(None)
    extent = float(moments.extent[members, axis].median())
    if finest is not None and (not loose or extent > (1 - _ALIKE) * finest.pitch):
        return finest
    low = float(boxes[:, axis].min())
    high = float(boxes[:, axis + 2].max())
    pitch = max(extent, (high - low) / _MAX_CELLS, 1e-6)
    count = max(1, round((high - low) / pitch))
    return LatticeAxis(low, (high - low) / count, count)


def interval_shares(low: Tensor, high: Tensor, axis: LatticeAxis) -> Float[Tensor, "i n"]:
    """Return the share of each interval in each cell of an axis; they sum to 1."""
    edges = axis.begin + axis.pitch * torch.arange(axis.count + 1, dtype=torch.float64)
    overlap = torch.minimum(high[:, None], edges[1:]) - torch.maximum(low[:, None], edges[:-1])
    overlap = overlap.clamp(min=0)
    total = overlap.sum(1, keepdim=True)
    nearest = ((low + high)[:, None] / 2 - (edges[1:] + edges[:-1]) / 2).abs().argmin(1)
    alone = torch.eye(axis.count, dtype=overlap.dtype)[nearest]  # at the edge of the grid
    return torch.where(total > 1e-9, overlap / total.clamp(min=1e-9), alone)
