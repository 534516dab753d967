"""Positions of the slots of a tensor on the image, measured with small noise.

A slot (a cell of a map, a token) is computed from some pixels p of the image. Noise n on the image
changes it by d = sum_p J_p n_p, and noise that grows with the rows y by d_y = sum_p J_p n_p y_p.
Since the noise of different pixels is independent:

    photo, photo + n, photo + n * rows, photo + n * columns        -> d, d_y, d_x of every slot
    mean row of its pixels     <d_y, d> / |d|^2                     (a slot with d = 0 has none)
    their variance             |d_y|^2 / |d|^2 - mean^2

Tokens whose centers are on evenly spaced lines form a grid, whatever their order in the sequence
(windows, a class token in the middle, swapped rows):

    o o o o
    o o o o       12 centers on 3 x 4 lines
    o o o o

In a trained network with padding, the cells cover the input from edge to edge. Without padding,
each convolution loses pixels at the border, which leaves a margin around the cells:

    84 pixels -> 20 (8 x 8, stride 4) -> 9 (4 x 4, stride 2) -> 7 (3 x 3): 7 cells of 4 * 2 pixels
    |- margin 14 -|------ 56 ------|- margin 14 -|
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import interpolate

from visattn.geometry.affine import Margin
from visattn.recording.interception import in_this_run

Grid = tuple[int, int]
IMAGES = 4
_COARSE_CELLS = 16  # per side, of the coarse noise that stands for the regions of a photo
_AMPLITUDES = {torch.float64: 1e-4, torch.float32: 1e-2}  # small, so that slots change linearly
_SILENT = 1e-7  # relative squared change below which a slot counts as unchanged
# Spread of the pixels of a slot, in images: 0.41 for the whole image, 0.32 for one half of it, and
# 0.41 / n for one of n x n patches.
_WIDE = 0.25  # a token that is computed from the whole image, among others that are not
_EVERYWHERE = 0.37  # channels, or tokens that all see the whole image
# Distances of tokens from evenly spaced lines, in cells: within 0.05 in a ViT, within 0.3 in a
# hybrid, and 1 or more if tokens are in another order.
_MEAN, _LARGEST = 0.4, 0.5
_MANY, _LIKELY = 16, 0.6  # this many tokens are not in order by chance
_UNSURE = 0.9  # mean distance up to which more noise may show that tokens form a grid
_NEAR = 1.0  # mean distance up to which tokens are at the positions of another layer's
_MIN_TOKENS = 4  # fewer are on some lines by chance
_EXTENT = 0.1  # minimum extent of the centers of a grid, in images; it is smaller by chance
_SLOPE = 0.02  # the same for rows of a map, if the network changes all cells alike
CLEAR = 0.6  # correlation of rows with their centers
_SHIFT = 0.06  # maximum offset of the mean center, in images; strides shift sharp ones a little
# Number of evenly spaced channels to compare; fewer for fine maps, whose lines are longer.
_FEWEST, _VALUES = 8, 32 * 28 * 28
_STRIDED = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)


def probe_images(
    channels: int, size: tuple[int, int], like: Tensor, seed: int = 0
) -> Float[Tensor, "4 {channels} {size[0]} {size[1]}"]:
    """Return a photo-like image, and copies with noise, noise times rows and noise times columns.

    Example:
        >>> images = probe_images(3, (10, 14), torch.zeros(1))
        >>> (images[1:] - images[0]).abs().mean((1, 2, 3)).round(decimals=4)
        tensor([0.0083, 0.0042, 0.0042])
    """
    random = torch.Generator().manual_seed(0)
    coarse_size = [min(_COARSE_CELLS, side) for side in size]
    coarse = torch.randn(2, channels, *coarse_size, generator=random)
    fine = torch.randn(2, channels, *size, generator=random)
    photo = (0.5 * fine + interpolate(coarse, size))[0]
    noise = torch.randn(channels, *size, generator=random.manual_seed(seed + 1))
    rows, columns = ((torch.arange(side) + 0.5) / side for side in size)
    changes = torch.stack([0 * noise, noise, noise * rows[:, None], noise * columns])
    return (photo + _AMPLITUDES.get(like.dtype, 0.2) * changes).to(like)


def _changes(tensor: Float[Tensor, "4 c *axes"]) -> Float[Tensor, "3 c *axes"]:
    """Return d, d_y and d_x."""
    wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
    return wide[1:] - wide[:1]


def moments(tensor: Float[Tensor, "4 c *axes"], *channels: int) -> Float[Tensor, "5 n *w"]:
    """Return |d|^2, <d_y, d>, <d_x, d>, |d_y|^2 and |d_x|^2 of slots, over axes of channels."""
    d, y, x = _changes(tensor)
    axes = [axis - 1 for axis in channels]
    pairs = ((d, d), (y, d), (x, d), (y, y), (x, x))
    return torch.stack([(one * other).sum(axes) for one, other in pairs])


@dataclass(frozen=True, eq=False)
class Places:
    """Tokens that form a grid.

    Args:
        cells: Slot of each cell, row by row.
        off: Mean distance of the tokens from their cells, in cells.
        sure: Whether it is certain which cell each token is at; if not, more noise may show it.
        free: Slots without a position: class tokens, padding.
    """

    grid: Grid
    cells: Int[Tensor, " n"]
    off: float = 0.0
    sure: bool = True
    free: tuple[int, ...] = ()

    def rank(self) -> tuple[bool, float]:
        """Return a sort key that is smaller for a better grid."""
        return not self.sure, self.off

    @property
    def likely(self) -> bool:
        """Whether it is sure, or many tokens are near their cells in the order of the sequence."""
        in_order = len(self.cells) >= _MANY and bool((self.cells.diff() == 1).all())
        return self.sure or (in_order and self.off < _LIKELY)


def place_tokens(moment: Float[Tensor, "5 *windows slots"], size: tuple[int, int]) -> Places | None:
    """Return the grid of tokens, given window by window; None if their centers form no grid.

    Example:
        >>> y, x = torch.tensor([[0.5, 0.25, 0.25, 0.75, 0.75], [0.5, 0.75, 0.25, 0.25, 0.75]])
        >>> energy = torch.tensor([0.0, 1, 1, 1, 1])
        >>> places = place_tokens(torch.stack([energy, y, x, y**2, x**2]), (8, 8))
        >>> places.grid, places.cells.tolist(), places.free
        ((2, 2), [2, 1, 3, 4], (0,))
    """
    energy, *others = moment.flatten(1)
    if not bool(moment.isfinite().all()) or not bool(energy.any()):
        return None
    own = energy > _SILENT * energy.max()
    y, x, yy, xx = (other / energy for other in others)
    spread = ((yy - y * y) + (xx - x * x)).nan_to_num().clamp(min=0).sqrt()
    best: Places | None = None
    windows = moment[0].numel() // moment.shape[-1]
    # a grid may come with up to two class tokens, which are computed from the whole image
    wide = [slot for slot in spread.argsort(descending=True)[:2].tolist() if spread[slot] > _WIDE]
    for count in range(len(wide) + 1):
        chosen = own.clone()
        chosen[wide[:count]] = False
        slots = chosen.nonzero().flatten()
        usual = float(spread[slots].median()) if len(slots) >= _MIN_TOKENS else 1.0
        if usual > _EVERYWHERE or (best is not None and best.sure):
            break
        centers = torch.stack([y[slots], x[slots]], 1)
        # only tokens that are computed from few pixels can reveal another order
        for usual_orders in (windows, 0) if usual < _WIDE else (windows,):
            found = [*_fits(slots, centers, usual, size, usual_orders)]
            best = min([*found, *([best] if best else [])], key=Places.rank, default=None)
            if best is not None and best.sure:
                break
    if best is None or best.off > _UNSURE:
        return None
    free = set(range(len(own))) - set(best.cells.tolist())
    return replace(best, free=tuple(sorted(free)))


def _fits(
    slots: Int[Tensor, " n"], centers: Float[Tensor, "n 2"], spread: float, size: Grid, windows: int
) -> Iterator[Places]:
    """Yield grids, with tokens in the usual orders, or sorted by their centers for 0 windows.

    The spread is the median spread of the pixels of a token.
    """
    count = len(centers)
    for rows in (rows for rows in range(1, count + 1) if count % rows == 0):
        grid = rows, count // rows
        if not (fits(grid, size) or covers(grid, size)):
            continue
        orders = _usual_orders(grid, windows)
        if not windows:
            by_rows = centers[:, 0].argsort().view(grid)
            orders = iter([by_rows.gather(1, centers[by_rows, 1].argsort(1)).flatten()])
        for order in orders:
            if (off := _distances(centers[order], grid)) is None:
                continue
            mean, largest = float(off.mean()), float(off.max())
            if windows:  # the wider its pixels are spread, the more a center is off by chance
                sure = mean < min(_LIKELY, 0.15 + spread * max(grid) / 4)
                yield Places(grid, slots[order], mean, sure and largest < _LARGEST + 2 * mean)
            else:  # sorting moves even random tokens closer to their cells
                sure = mean < _MEAN and largest < _LARGEST
                yield Places(grid, slots[order], 1.3 * mean, sure)


def _usual_orders(grid: Grid, windows: int) -> Iterator[Int[Tensor, " n"]]:
    """Yield the slot of each cell: row by row, in windows, or in windows of spaced cells.

    1 1 2 2      1 2 1 2
    1 1 2 2      3 4 3 4      4 windows of 2 x 2 cells, as in MaxViT
    3 3 4 4      1 2 1 2
    3 3 4 4      3 4 3 4
    """
    (rows, columns), cells = grid, torch.arange(grid[0] * grid[1])
    yield cells
    for down in (n for n in range(1, windows + 1) if windows > 1 and windows % n == 0):
        across = windows // down
        if rows % down == 0 and columns % across == 0:
            blocks = cells.view(down, rows // down, across, columns // across)
            spaced = cells.view(rows // down, down, columns // across, across)
            yield blocks.permute(0, 2, 1, 3).flatten().argsort()
            yield spaced.permute(1, 3, 0, 2).flatten().argsort()


def lie_at(moment: Float[Tensor, "5 *windows slots"], grid: Grid, cells: Int[Tensor, " n"]) -> bool:
    """Return whether tokens are close to the cells of a grid, on average."""
    energy, y, x, _, _ = moment.flatten(1)[:, cells]
    off = _distances(torch.stack([y / energy, x / energy], 1), grid) if bool(energy.all()) else None
    return off is not None and float(off.mean()) < _NEAR


def _distances(centers: Float[Tensor, "n 2"], grid: Grid) -> Float[Tensor, " n"] | None:
    """Return the distance of each center from its cell, None if lines are reversed or too close."""
    lines = centers.view(*grid, 2)
    off: list[Tensor] = []
    for axis, count in enumerate(grid):
        values = lines[..., axis] - lines[..., axis].mean()
        index = torch.arange(count).to(values) - (count - 1) / 2
        index = index[:, None] if axis == 0 else index[None]
        step = (values * index).mean() / index.square().mean() if count > 1 else torch.tensor(1.0)
        if step * count < _EXTENT:
            return None
        off.append(values / step - index)
    return (off[0].square() + off[1].square()).sqrt().flatten()


def _line_centers(
    change: Float[Tensor, "3 c y x"], axis: int
) -> tuple[Bool[Tensor, " n"], Float[Tensor, " m"], Float[Tensor, " m"]]:
    """Return which rows (axis 0) or columns (1) of a map change, their centers and spreads."""
    d, moved, others = change[0], change[1 + axis], [0, 2 - axis]
    energy = (d * d).sum(others)
    lines = energy > _SILENT * energy.max()
    centers = (moved * d).sum(others)[lines] / energy[lines]
    squares = (moved * moved).sum(others)[lines] / energy[lines]
    return lines, centers, (squares - centers.square()).clamp(min=0).sqrt()


def place_planes(tensor: Float[Tensor, "4 c y x"], size: tuple[int, int]) -> float:
    """Return how clearly the rows and columns of a map follow those of the image, from 0 to 1.

    Single cells of a deep network may depend on the same pixels. But the centers of whole rows
    increase from the first to the last, even if the network adds the same change to all cells.

    Args:
        tensor: The map of a photo and of its copies with noise.
        size: Height and width of the image.
    """
    grid = tensor.shape[2], tensor.shape[3]
    if grid == (1, 1) or not (fits(grid, size) or covers(grid, size)):
        return 0.0
    count = max(_FEWEST, _VALUES // (grid[0] * grid[1]))
    change = _changes(tensor[:, :: -(-tensor.shape[1] // count)])
    change = change - change.mean((2, 3), keepdim=True)
    clear = 1.0
    for axis, count in enumerate(grid):
        if count == 1:
            continue
        lines, centers, spread = _line_centers(change, axis)
        if len(centers) < 2 or not bool(centers.isfinite().all()):
            return 0.0
        shift = float((centers.mean() - 0.5).abs())
        index = torch.arange(count).to(centers)[lines] / count
        off, index = centers - centers.mean(), index - index.mean()
        step = (off * index).sum() / index.square().sum()
        if step < _SLOPE or shift > max(_SHIFT, 1.5 * float(spread.mean())):
            return 0.0
        clear = min(clear, float((off * index).sum() / (off.norm() * index.norm() + 1e-30)))
    return clear


def shows_whole(tensor: Float[Tensor, "4 c y x"], size: tuple[int, int], step: Grid) -> bool:
    """Return whether the first layer gets exactly the whole image, resized or not.

    Its pixels are sharp, so that line centers are exact to a pixel. Padding or cropping by less
    than a stride at the end is allowed, since layers do that themselves for other image sizes.

    Args:
        tensor: The input of the layer, of a photo and of its copies with noise.
        size: Height and width of the image.
        step: Stride of the layer.
    """
    change = _changes(tensor)
    for axis, side in enumerate(size):
        lines, centers, spread = _line_centers(change, axis)
        index = torch.arange(len(lines)).to(centers)[lines] + 0.5
        near = max(1 / side, 0.01) + float(spread.mean())  # pixels are not sharp after a gate
        whole = bool(((centers - index / len(lines)).abs() < near).all())
        cut = abs(len(lines) - side)
        as_is = cut < step[axis] and bool(((centers - index / side).abs() < near).all())
        if not (whole and bool(lines.all())) and not as_is:
            return False
    return True


def fits(grid: Grid, image_size: tuple[int, int]) -> bool:
    """Whether a grid of square cells can cover an image, up to one cell of padding or cropping.

    Example:
        >>> fits((3, 5), (48, 80)), fits((15, 1), (48, 80))
        (True, False)
    """
    pairs = list(zip(grid, image_size, strict=True))
    if not all(1 <= cells <= length for cells, length in pairs):
        return False
    # A cell may be cropped at the border or extend over it: one cell more or less fits as well.
    smallest = max(length / (cells + 1) for cells, length in pairs)
    largest = min(length / (cells - 1) if cells > 1 else inf for cells, length in pairs)
    return smallest < largest


def covers(grid: Grid, image_size: tuple[int, int]) -> bool:
    """Whether a grid of cells of any shape, with several rows and columns, can cover an image.

    Most grids can, so that the positions of their cells must be measured.

    Example:
        >>> covers((6, 5), (48, 80)), covers((15, 1), (48, 80))
        (True, False)
    """
    return all(2 <= cells <= length for cells, length in zip(grid, image_size, strict=True))


class CellStrides:
    """The strides of the feature maps of a network, in pixels of its input, as its modules run.

    They are products of the strides of convolutions and pooling. Other resizing, such as by a
    function or adaptive pooling, is taken to map edges to edges.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 8, 4), nn.ReLU(), nn.Conv2d(4, 4, 4, 2))
        >>> with CellStrides().watching(network) as strides:
        ...     network(torch.zeros(1, 3, 84, 84)).shape
        torch.Size([1, 4, 9, 9])
        >>> strides.margin((9, 9))
        (6, 6)
    """

    def __init__(self) -> None:
        self._first: nn.Module | None = None
        self._strides: dict[Grid, tuple[float, float]] = {}

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator["CellStrides"]:
        """Collect the strides of the maps that the model computes inside the context."""
        note = in_this_run(self._note)
        with ExitStack() as stack:
            for module in model.modules():
                if isinstance(module, _STRIDED):
                    # before the hooks of blocks that were inserted after the module
                    handle = module.register_forward_hook(note, prepend=True)
                    stack.callback(handle.remove)
            yield self

    def margin(self, grid: Grid, size: tuple[int, int] | None = None) -> Margin:
        """Return how many pixels no cell covers, above and below, and left and right.

        Args:
            grid: Rows and columns of a map.
            size: Height and width of the input; by default of that of the first convolution.
        """
        if not self._strides:
            return 0, 0
        seen = next(iter(self._strides))  # the input of the first convolution
        margins = [0, 0]
        for axis, stride in enumerate(self._of(grid)):
            free = seen[axis] - stride * grid[axis]
            if free >= stride / 2:
                margins[axis] = round(free / 2 * (size or seen)[axis] / seen[axis])
        return margins[0], margins[1]

    def _note(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if not args:  # called by keyword
            return
        before, after = ((each.shape[-2], each.shape[-1]) for each in (args[0], output))
        if self._first is None or module is self._first:  # another run of the model
            self._first = module
            self._strides = {before: (1.0, 1.0)}
        step: Any = module.stride
        y, x = step if isinstance(step, tuple) else (step, step)
        rows, columns = self._of(before)
        self._strides.setdefault(after, (rows * y, columns * x))

    def _of(self, grid: Grid) -> tuple[float, float]:
        """Return the stride of a map, from the known map of the most similar size."""
        near = min(
            self._strides,
            key=lambda known: sum(abs(log(a / b)) for a, b in zip(known, grid, strict=True)),
        )
        (rows, columns), (y, x) = near, self._strides[near]
        return y * rows / grid[0], x * columns / grid[1]
