"""The regular grids that image tokens form, and the cells of a photo on which they are drawn.

A vision-language model may see a photo as a whole and in tiles. In each tile tokens are in reading
order, and their centers are on evenly spaced lines:

    measured centers        grid of each tile           drawn on cells of the finest tile
     o   o  o               +--+--+--+                  +--+--+--+
     o  o   o               |o |o |o |                  |  |  |  |   a token of the whole photo
                            +--+--+--+                  +--+--+--+   spreads over those it covers
                            |o |o |o |                  |  |  |  |
                            +--+--+--+                  +--+--+--+
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.geometry.affine import Geometry

_MISFIT = 0.3  # mean distance of centers from their lines, in cells
_CLEAR, _MANY = 0.5, 16  # minimum correlation of at least so many centers with rows and columns
_WIDE = 2  # tokens of a tile that may be computed from the whole photo, outside of the grid
_WIDER = 1.5  # such tokens are this many times as wide as the others
_BLURRED = 1.6  # cells; wider tokens are those of convolutions, which see their neighbors' pixels
_SQUARE = 0.4  # maximum logarithm of the aspect ratio of their cells
_INNER = 5  # lines; from so many on, the outermost do not count: resampling repeats the edge
_EDGE = 0.04  # cells; a grid that ends this close to an edge ends there
_FEW = 10  # lines; fewer are less certain, so that the tolerance is larger
_WHOLE = 2.5  # divided by the patches along a tile: tolerance for a whole number of patches
_QUARTER = 0.25  # cells or pixels; a token this close to a patch is that patch
_CERTAIN = 3.0  # standard errors between a measurement and its tolerance
_HALF = 0.04  # patches; tolerance for a last patch of which half is padding
_MOST = 4  # maximum ratio of patches to lines along a tile
_SNAP = 0.1  # cells; a token that ends this close to the edge of a drawn cell ends there
_SLIVER = 0.25  # cells; smaller parts of other tiles need no additional cells


_Lines = tuple[Int[Tensor, " m"], Int[Tensor, "m 2"], Float[Tensor, "2"]]


@dataclass(frozen=True, eq=False)
class Placement:
    """Image tokens of a model, with their positions on a photo.

    Args:
        columns: Index of the key of each image token.
        boxes: Left, top, right, bottom of its visible part, in pixels of the upright photo.
        visible: Fraction of its cell that is on the photo; the rest is padding.
        geometry: Geometry of the cells on the photo.
        down: Fraction of each token in each row of cells.
        across: Fraction of each token in each column of cells.
    """

    columns: Int[Tensor, " i"]
    boxes: Float[Tensor, "i 4"]
    visible: Float[Tensor, " i"]
    geometry: Geometry
    down: Float[Tensor, "i y"]
    across: Float[Tensor, "i x"]

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the cells."""
        return self.down.shape[1], self.across.shape[1]

    def is_near(self, other: "Placement", limit: float) -> bool:
        """Whether all edges of tokens are within a limit of another placement's, in tokens."""
        if not torch.equal(self.columns, other.columns):
            return False
        side = (self.boxes[:, 2:] - self.boxes[:, :2]).median(0).values.repeat(2)
        return bool(((self.boxes - other.boxes).abs() <= limit * side).all())

    def rasterize(self, rows: Float[Tensor, "t i"]) -> Float[Tensor, "t y x"]:
        """Return values of image tokens as maps, whose sum is that of the visible parts."""
        maps = rows.new_zeros(len(rows), *self.grid_size)
        for index, row in enumerate(rows * self.visible):
            maps[index] = (self.down.T * row) @ self.across
        return maps


@dataclass(frozen=True, eq=False)
class Centers:
    """Measured tokens in the order of their keys; y before x, as fractions of the photo.

    Args:
        mean: Center of the pixels of each token.
        extent: Height and width of a uniform token with the same variance.
        whole: Whether none of its pixels are padding.
        part: Slice of the pixel values (a tile, or the whole photo) that it is computed from.
        parts: The part of the photo that each slice shows: top, left, bottom, right.
        frames: The edges of the slices including padding; zeros if unknown.
        sides: Height and width of a slice in pixel values; zeros if they are not in rows.
    """

    mean: Float[Tensor, "i 2"]
    extent: Float[Tensor, "i 2"]
    whole: Bool[Tensor, " i"]
    part: Int[Tensor, " i"]
    parts: Float[Tensor, "s 2 2"]
    frames: Float[Tensor, "s 2 2"]
    sides: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of tokens on a grid, and their visible parts, as fractions of the photo.

    Args:
        members: Indices of the measured tokens that have a cell.
        full: Top, left and bottom, right of each cell.
        shown: The same of its visible part.
        certain: Whether each cell is certain to be a patch, so that no more noise is needed.
    """

    members: Int[Tensor, " i"]
    full: Float[Tensor, "i 2 2"]
    shown: Float[Tensor, "i 2 2"]
    certain: bool


def find_cells(centers: Centers) -> Cells | None:
    """Return the cells of tokens; None if the tokens of some tile do not form a grid."""
    found: list[tuple[Tensor, Tensor, Tensor, bool]] = []
    lines = [0.0, 0.0]  # rows and columns of a tile with its padding
    tiles = [tile for group in _groups(centers.part) for tile in _tiles(centers, group)]
    for group, arranged in tiles:
        if arranged is None:
            return None
        kept, index, pitch = arranged
        members = group[kept]
        for part in centers.part[members].unique():
            own = centers.part[members] == part
            cells, shown, certain = _cells_of(centers, members[own], index[own], pitch, lines)
            found.append((members[own], cells, shown, certain and len(kept) == len(group)))
    *cells, certain = zip(*found, strict=True)
    members, full, shown = map(torch.cat, cells)
    order = members.argsort()
    return Cells(members[order], full[order], shown[order], all(certain))


def _groups(part: Int[Tensor, " i"]) -> list[Int[Tensor, " _m"]]:
    """Split tokens into runs that share no tile: one tile each, or tiles that are read row by row.

    Example:
        >>> _groups(torch.tensor([0, 0, 1, 2, 1, 2, 3]))
        [tensor([0, 1]), tensor([2, 3, 4, 5]), tensor([6])]
    """
    last = {tile: index for index, tile in enumerate(part.tolist())}
    ends = torch.tensor([last[tile] for tile in part.tolist()]).cummax(0).values
    cuts = (ends == torch.arange(len(part))).nonzero()[:-1, 0] + 1
    return list(torch.arange(len(part)).tensor_split(cuts.tolist()))


def _tiles(centers: Centers, group: Int[Tensor, " n"]) -> list[tuple[Tensor, _Lines | None]]:
    """Split tokens into tiles and their lines, for models that read tiles as one long image.

    A tile is the longest run of whole rows that forms a grid.
    """
    mean, extent = centers.mean[group], centers.extent[group]
    if (whole := _arrange(mean, extent, centers.sides)) is not None:
        return [(group, whole)]
    back = (mean[1:, 1] < mean[:-1, 1]) | (mean[1:, 0] < mean[:-1, 0] - 0.5 * extent[:-1, 0])
    ends = [*(back.nonzero()[:, 0] + 1).tolist(), len(group)]
    tiles, start, end, lines = list[tuple[Tensor, _Lines | None]](), 0, len(group), whole
    while start < len(group):
        for end in (end for end in reversed(ends) if end > start):
            if (lines := _arrange(mean[start:end], extent[start:end])) is not None:
                break
        tiles.append((group[start:end], lines))
        start = end
    return tiles


def _arrange(
    mean: Float[Tensor, "n 2"], extent: Float[Tensor, "n 2"], sides: tuple[int, int] = (0, 0)
) -> _Lines | None:
    """Return the tokens that form a grid, their rows and columns, and the distance of lines.

    Args:
        mean: Centers of the tokens, in reading order.
        extent: Their sides.
        sides: Height and width of the slice, to assume square cells if centers are rough; or zeros.
    """
    narrow = extent.sum(1).argsort()
    widths = extent.sum(1)[narrow]
    for wide in range(min(_WIDE + 1, len(mean))):
        if wide and float(widths[-wide]) < _WIDER * float(widths[-wide - 1]):
            continue
        kept = narrow[: len(narrow) - wide].sort().values
        found: dict[float, tuple[Tensor, Tensor, Tensor]] = {}
        for rows in (n for n in range(1, len(kept) + 1) if len(kept) % n == 0):
            columns = len(kept) // rows
            index = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2)
            steps, off = index - index.double().mean(0), mean[kept] - mean[kept].mean(0)
            several = torch.tensor([rows, columns]) > 1
            slope = (steps * off).sum(0) / steps.square().sum(0).clamp(min=1e-9)
            pitch = torch.where(several, slope, extent[kept].mean(0))
            misfit = float(((off - steps * pitch) / pitch).norm(dim=1).mean())
            order = (slope * steps.norm(dim=0) / off.norm(dim=0).clamp(min=1e-9))[several]
            in_order = len(order) == 2 and float(order.min()) > _CLEAR and len(kept) >= _MANY
            in_order &= bool((extent[kept].median(0).values > _BLURRED * pitch).all())
            # a single line of tokens that see their neighbors' pixels is part of a larger tile
            seen = (extent[kept].median(0).values / pitch)[several]
            whole = len(order) == 2 or bool((seen <= _BLURRED).all())
            if not bool((pitch > 0).all()):
                continue
            # centers of tokens that see much of the photo are rough: assume square cells
            long = abs(math.log(rows * sides[1] / columns / sides[0])) if sides[0] else math.inf
            if misfit < _MISFIT and whole:
                found[misfit] = kept, index, pitch
            elif in_order and long < _SQUARE:
                found[_MISFIT + long] = kept, index, pitch
        if found:
            return found[min(found)]
    return None


def _slope(index: Tensor, values: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Return the slope of values over their index."""
    steps = index - index.double().mean()
    return (steps @ (values - values.mean())) / (steps @ steps).clamp(min=1e-9)


def _cells_of(
    centers: Centers,
    members: Int[Tensor, " n"],
    index: Int[Tensor, "n 2"],
    pitch: Tensor,
    known: list[float],
) -> tuple[Float[Tensor, "n 2 2"], Float[Tensor, "n 2 2"], bool]:
    """Return the cells of the tokens of one tile, their visible parts, and if they are certain.

    If n tokens deviate from evenly spaced lines by s cells (RMS), the standard error of the center
    of the grid is s / sqrt(n) cells, and that of the number of lines 12**0.5 times as large.
    """
    edges, frame = (each[centers.part[members[0]]] for each in (centers.parts, centers.frames))
    full, shown = torch.empty(2, len(members), 2, 2, dtype=torch.float64)
    certain = True
    for axis in (0, 1):
        lines = index[:, axis] - index[:, axis].min()
        mean = centers.mean[members, axis]
        count = int(lines.max()) + 1
        blurred = float(centers.extent[members, axis].median()) > _BLURRED * float(pitch[axis])
        low, high = edges[:, axis].tolist()
        step = float(pitch[axis])
        first, last = frame[:, axis].tolist()
        if count == 1 and known[axis] and last > first:  # a tile with one line, else padding
            step = (last - first) / known[axis]
            line = (float(mean.mean()) - first) / step
            begin = first + math.floor(line) * step
            certain &= abs(line % 1 - 0.5) < _QUARTER
        elif blurred or (count == 1 and step > 0.5 * (high - low)):
            begin, step = low, (high - low) / count  # from edge to edge
            certain = False
        else:
            used = torch.ones_like(lines, dtype=torch.bool)
            inner = (lines > 0) & (lines < count - 1) if count >= _INNER else used
            for fewer in (centers.whole[members], centers.whole[members] & inner):
                used = fewer if len(lines[fewer].unique()) > 1 else used
            step = float(_slope(lines[used], mean[used])) if count > 1 else step
            begin = float(mean[used].mean()) - step * (float(lines[used].double().mean()) + 0.5)
            misses = (mean[used] - begin - step * (lines[used] + 0.5)) / step
            error = float(misses.norm()) / max(len(misses) - 2, 1e-9)
            side = centers.sides[axis]
            # slices of one size have as many patches
            fixed = known[axis] if side and len(centers.parts) > 1 else 0.0
            found = _whole_patches(
                (first, last), (low, high), begin, step, count, error, side, fixed
            )
            if found is not None:
                begin, step, number, own = found
                certain &= own and count > 1
                known[axis] = number if own or not fixed else fixed
            else:
                certain = False
                end = begin + step * count
                near = _EDGE * step * max(1.0, _FEW / count)
                begin = low if abs(begin - low) < near else begin
                end = high if abs(end - high) < near else end
                step = (end - begin) / count
        cells = begin + step * torch.stack([lines, lines + 1], 1).double()
        full[:, :, axis] = cells
        shown[:, :, axis] = cells.clamp(0, 1)
        inside = cells.clamp(low, high)
        cut = ~centers.whole[members] & (inside[:, 1] > inside[:, 0])
        shown[cut, :, axis] = inside[cut]  # tiles that end in padding inside the photo
    return full, shown, certain


def _whole_patches(
    frame: tuple[float, float], shown: tuple[float, float], begin: float, step: float, count: int,
    error: float, side: int = 0, fixed: float = 0.0,
) -> tuple[float, float, float, bool] | None:  # fmt: skip
    """Return start and length of the patches of a tile, their number, and whether it is certain.

    A tile has whole patches. The center of a token is off if the vision tower weights its pixels
    unevenly, but its cell is a patch. Since most tiles have a token for each patch that shows part
    of the photo, only few numbers of patches fit.

    Args:
        frame: Edges of the tile.
        shown: Edges of the photo in it.
        begin: Start of the measured lines.
        step: Their distance.
        count: Their number.
        error: Standard error of the center of the lines, in steps.
        side: Pixel values along the tile; patches have a whole number of them, with a remainder.
        fixed: Number of patches, if it is known.

    Example:
        >>> measured = {"begin": -0.14, "step": 0.317, "count": 4, "error": 0.03}  # 7.2 patches
        >>> _whole_patches((-0.64, 1.64), (0.0, 1.0), **measured)[2:]  # 7 need 5 lines or 3
        (8.0, True)
    """
    length = frame[1] - frame[0]
    measured, middle = length / step, begin + step * count / 2
    doubt = _CERTAIN * 12**0.5 * error * measured / count
    limit = max(_EDGE, _WHOLE / measured) if measured else 0.0
    found: list[tuple[bool, float, float, float, float]] = []
    most = math.ceil(min(measured + limit + doubt, _MOST * count))
    for number in [fixed] if fixed else [half / 2 for half in range(2 * count - 1, 2 * most + 1)]:
        own, off = length / number, abs(number - measured)
        if number % 1 and (off > _HALF or side % number):  # of whole pixels
            continue
        inside = [(edge - frame[0]) / own for edge in shown]
        start, stop = math.floor(inside[0] + _EDGE), math.ceil(inside[1] - _EDGE)
        if stop - start == count and off < limit + doubt:
            found.append((False, off, frame[0] + start * own, own, number))
        elif off < limit + (doubt if fixed else 0.0):
            start = round((middle - frame[0]) / own - count / 2)
            start = max(min(start, math.floor(number) - count), 0)
            found.append((True, off, frame[0] + start * own, own, number))
    pixels = round(side / measured) if measured > 0 else 0
    if (
        pixels
        and not found
        and abs(side / measured - pixels) + doubt * pixels / measured < _QUARTER
    ):
        own, off = length * pixels / side, abs(side / pixels - measured)
        start = round((begin - frame[0]) / own)
        found.append((True, off, frame[0] + start * own, own, side / pixels))
    if not length or not found:
        return None
    some, off, nearest, own, number = min(found)
    away = abs(middle - nearest - own * count / 2) / own
    if not some and away < _QUARTER + _CERTAIN * error:
        return nearest, own, number, sum(not each[0] for each in found) == 1
    certain = (fixed or off + doubt < limit) and away + _CERTAIN * error < _QUARTER
    return (nearest if away < _QUARTER else middle - own * count / 2), own, number, bool(certain)


def draw(cells: Cells, columns: Int[Tensor, " i"], size: tuple[int, int]) -> Placement:
    """Return the placement of tokens on cells of the size of the smallest tokens.

    Args:
        cells: The cells of the tokens.
        columns: Index of the key of each.
        size: Height and width of the photo.
    """
    sides = torch.tensor(size, dtype=torch.float64)
    full, shown = cells.full * sides, cells.shown * sides
    visible = ((shown[:, 1] - shown[:, 0]) / (full[:, 1] - full[:, 0])).prod(1)
    axes: list[tuple[float, float, Tensor]] = []
    for axis in (0, 1):
        low, high = full[:, :, axis].unbind(1)
        finest = (high - low) < 1.05 * (high - low).min()
        begin, pitch = float(low[finest].min()), float((high - low)[finest].median())
        count = round((float(high[finest].max()) - begin) / pitch)
        pitch = (float(high[finest].max()) - begin) / count
        first, last = float(shown[:, 0, axis].min()), float(shown[:, 1, axis].max())
        before = max(0, math.ceil((begin - first) / pitch - _SLIVER))
        after = max(0, math.ceil((last - begin) / pitch - count - _SLIVER))
        begin, count = begin - before * pitch, count + before + after
        shares = _shares((shown[:, :, axis] - begin) / pitch, count)
        axes.append((begin, pitch, shares))
    (top, height, down), (left, width, across) = axes
    matrix = ((width, 0.0, left), (0.0, height, top), (0.0, 0.0, 1.0))
    region = (max(left, 0.0), max(top, 0.0), min(left + width * across.shape[1], float(size[1])),
              min(top + height * down.shape[1], float(size[0])))  # fmt: skip
    geometry = Geometry(matrix, (down.shape[1], across.shape[1]), size, region)
    boxes = shown.flip(2).flatten(1)
    return Placement(columns, boxes.float(), visible.float(), geometry, down, across)


def _shares(interval: Float[Tensor, "i 2"], count: int) -> Float[Tensor, "i n"]:
    """Return the fraction of each interval in each of `count` unit cells; fractions sum to 1.

    Example:
        >>> _shares(torch.tensor([[0.02, 1.0], [0.5, 2.0]]), 2)
        tensor([[1.0000, 0.0000],
                [0.3333, 0.6667]])
    """
    nearest = interval.round()
    snapped = torch.where((interval - nearest).abs() < _SNAP, nearest, interval)
    snapped = torch.where(snapped[:, 1:] > snapped[:, :1], snapped, interval)
    cells = torch.arange(count)
    low, high = snapped[:, :1].clamp(0, count - 1e-3), snapped[:, 1:].clamp(1e-3, count)
    overlap = (torch.minimum(high, cells + 1) - torch.maximum(low, cells)).clamp(min=0)
    return (overlap / overlap.sum(1, keepdim=True)).float()
