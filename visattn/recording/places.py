"""Where each slot of a tensor lies on the image, measured with small noise.

A slot (a cell of a map, a token) is computed from some pixels p of the image. If noise n is added
to the image, it changes by d = sum_p J_p n_p; if the noise grows with the rows y, by
d_y = sum_p J_p n_p y_p, and the noise of different pixels is independent:

    photo, photo + n, photo + n * rows, photo + n * columns        -> d, d_y, d_x of every slot
    mean row of its pixels     <d_y, d> / |d|^2                     (a slot with d = 0 has none)
    their variance             |d_y|^2 / |d|^2 - mean^2

Tokens whose centers stand on even lines are a grid, whatever their order in the sequence is
(windows, a class token in the middle, swapped rows):

    o o o o
    o o o o       12 centers on 3 x 4 lines
    o o o o
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import interpolate

Grid = tuple[int, int]
IMAGES = 4
_COARSE_CELLS = 16  # of the coarse noise in the photo, as the areas of a real one
_AMPLITUDES = {torch.float64: 1e-4, torch.float32: 1e-2}  # small: slots change linearly
_SILENT = 1e-7  # share of the largest squared change below which a slot does not change
_SPREAD = 0.25  # of the pixels of a token that is computed from the whole image
_EVERYWHERE = 0.37  # of channels; 0.41 of all pixels alike, 0.32 of half of them
_MANY = 16  # tokens that stand in order by chance no more
_SHIFT = 0.06  # of the middle of all centers, as a share of the image
SHIFTED = -1.0
_BEYOND = 1.04  # images between the first and the last center of a map: cells lie outside of it
_TURN = 0.1  # of the usual step between lines, at the border; mirrored padding turns around
_BLURRED = 1.5  # steps between lines; 1 for a kernel of 7 pixels and a stride of 2
_UNSEEN = 0.1  # of the image, at a border, that no cell of the first map is computed from
_MIN_TOKENS = 4  # fewer stand on some lines by chance
_MAX_GLOBAL = 2  # such tokens beside a grid
_MEAN, _NEAR = 0.4, 0.5  # mean and largest distance of tokens from their cells, in cells
_SLOPE = 0.02  # of the centers of rows, if the network adds changes of the whole image to all
_EXTENT = 0.1  # of the centers of a grid, as a share of the image
CLEAR = 0.6  # correlation of rows with their centers
_CHANNELS = 32  # of maps, evenly spaced, that are compared
_LIKELY = 0.6  # mean distance of tokens in the order of their sequence that are not sure
_KNOWN = 1.0  # mean distance of tokens that are those of another layer
_UNSURE = 0.9  # mean distance up to which more noise may show that tokens lie on a grid


def probe_images(
    channels: int, size: tuple[int, int], like: Tensor, seed: int = 0
) -> Float[Tensor, "4 {channels} {size[0]} {size[1]}"]:
    """Return a photo-like image, and copies with noise, noise by rows and noise by columns.

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
    return (photo + _AMPLITUDES.get(like.dtype, 0.5) * changes).to(like)


def moments(tensor: Float[Tensor, "4 c *axes"], *channels: int) -> Float[Tensor, "5 n *w"]:
    """Return |d|^2, <d_y, d>, <d_x, d>, |d_y|^2 and |d_x|^2 of slots, over axes of channels."""
    wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
    d, y, x = wide[1:] - wide[:1]
    axes = [axis - 1 for axis in channels]
    pairs = ((d, d), (y, d), (x, d), (y, y), (x, x))
    return torch.stack([(one * other).sum(axes) for one, other in pairs])


@dataclass(frozen=True, eq=False)
class Places:
    """Tokens that lie on a grid.

    Args:
        cells: Slot of each cell, by rows.
        free: Slots that lie nowhere: class tokens, padding.
        sure: Whether each token has its own place; else more noise may tell.
        likely: Whether tokens in the order of the sequence are near their cells, if not sure.
    """

    grid: Grid
    cells: Int[Tensor, " n"]
    free: tuple[int, ...] = ()
    sure: bool = True
    likely: bool = True


def place_tokens(
    moment: Float[Tensor, "5 *windows slots"],
    size: tuple[int, int],
    known: Callable[[int], tuple[Grid, Int[Tensor, " n"]] | None] = lambda _: None,
) -> Places | None:
    """Return where tokens lie, windows one after the other; None if their centers form no grid.

    Args:
        moment: Of each token.
        size: Height and width of the image.
        known: Returns the grid of a number of tokens, and their slots, if these tokens were found
            among those of a layer that was placed: then their centers need not be as sharp.

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
    widest = spread.argsort(descending=True)[:_MAX_GLOBAL]
    wide = [int(slot) for slot in widest if spread[slot] > _SPREAD]
    best: _Fit | None = None
    for count in range(len(wide) + 1):  # tokens that are computed from the whole image
        chosen = own.clone()
        chosen[wide[:count]] = False
        slots = chosen.nonzero().flatten()
        usual = float(spread[slots].median()) if len(slots) >= _MIN_TOKENS else 1.0
        if usual > _EVERYWHERE or (best is not None and best.sure):
            break
        centers = torch.stack([y[slots], x[slots]], 1)
        for fit in _fits(slots, centers, size, local=usual < _SPREAD):
            best = fit if best is None or fit.rank < best.rank else best
    unsure = best is None or not best.sure
    if unsure and (found := known(int(own.sum()))) is not None and lie_at(moment, *found):
        best = _Fit(*found, 0.0, sure=True)
    if best is None or best.mean > _UNSURE:
        return None
    free = torch.ones_like(own)
    free[best.cells] = False
    return Places(
        best.grid, best.cells, tuple(free.nonzero().flatten().tolist()), best.sure, best.likely
    )


def is_shifted(centers: Tensor, spread: Tensor) -> bool:
    """Return whether centers lie around another place than the middle of the image.

    Strided convolutions may move sharp centers by some pixels, and blurred ones by their width.
    """
    return float((centers.mean() - 0.5).abs()) > max(_SHIFT, 1.5 * float(spread.mean()))


def is_whole(centers: Tensor, spread: Tensor) -> bool:
    """Return whether centers of lines reach over the image, and not beyond it; blurred ones do.

    Example:
        >>> even = (torch.arange(8) + 0.5) / 8
        >>> spread = torch.full((8,), 0.04)
        >>> [is_whole(0.5 + part * (even - 0.5), spread) for part in (1.0, 1.25, 0.5)]
        [True, False, False]
    """
    if len(centers) < 2:
        return True
    steps = centers.diff()
    usual = float(steps.median())
    if float(spread.mean()) > _BLURRED * usual:
        return True
    at_border = min(float(steps[0]), float(steps[-1]))
    if at_border < _TURN * usual or usual * (len(centers) - 1) > _BEYOND:
        return False
    low, high = float((centers - 3 * spread).min()), float((centers + 3 * spread).max())
    return low < _UNSEEN and high > 1 - _UNSEEN


def place_planes(
    tensor: Float[Tensor, "4 c y x"], size: tuple[int, int], *, first: bool = False
) -> float:
    """Return how clearly rows and columns of a map are those of the image; SHIFTED if they are not.

    Single cells of a deep network may see the same pixels. But the centers of whole rows rise from
    the first to the last, also where the network adds the same change to all cells.

    Args:
        tensor: The map of a photo and of its copies with noise.
        size: Height and width of the image.
        first: Whether the map is computed from the image by one layer, so that its rows are sharp:
            then it must reach from edge to edge, with no row of padding and no part of the image
            cut off.
    """
    grid = tensor.shape[2], tensor.shape[3]
    if grid == (1, 1) or not (fits(grid, size) or covers(grid, size)):
        return 0.0
    channels = tensor.detach()[:, :: -(-tensor.shape[1] // _CHANNELS)]
    wide = channels.to(torch.promote_types(tensor.dtype, torch.float32))
    change = wide[1:] - wide[:1]
    d, y, x = change - change.mean((2, 3), keepdim=True)
    clear, whole = 1.0, True
    for axis, moved in ((1, y), (2, x)):
        count = tensor.shape[axis + 1]
        if count == 1:
            continue
        others = [0, 3 - axis]
        energy = (d * d).sum(others)
        lines = energy > _SILENT * energy.max()
        centers = (moved * d).sum(others)[lines] / energy[lines]
        squares = (moved * moved).sum(others)[lines] / energy[lines]
        spread = (squares - centers.square()).clamp(min=0).sqrt()
        if is_shifted(centers, spread):
            return SHIFTED
        silent = change[0].square().sum(others) <= _SILENT * energy.max()  # lines of padding
        whole = whole and not bool(silent.any()) and is_whole(centers, spread)
        index = torch.arange(count).to(centers)[lines] / count
        if len(index) < 2 or not bool(centers.isfinite().all()):
            return 0.0
        off, index = centers - centers.mean(), index - index.mean()
        step = (off * index).sum() / index.square().sum()
        clear = min(clear, float((off * index).sum() / (off.norm() * index.norm() + 1e-30)))
        if step < _SLOPE:
            return 0.0
    return SHIFTED if first and clear > CLEAR and not whole else clear


def lie_at(moment: Float[Tensor, "5 *windows slots"], grid: Grid, cells: Int[Tensor, " n"]) -> bool:
    """Return whether tokens lie near the cells of a grid, in the mean."""
    energy, y, x, _, _ = moment.flatten(1)[:, cells]
    off = _distances(torch.stack([y / energy, x / energy], 1), grid) if bool(energy.all()) else None
    return off is not None and float(off.mean()) < _KNOWN


@dataclass(frozen=True, eq=False)
class _Fit:
    """Slots as cells of a grid, their mean distance from the cells, and whether that is enough."""

    grid: Grid
    cells: Int[Tensor, " n"]
    mean: float
    sure: bool
    likely: bool = False

    @property
    def rank(self) -> tuple[bool, float]:
        return not self.sure, self.mean


def _fits(
    slots: Int[Tensor, " n"], centers: Float[Tensor, "n 2"], size: tuple[int, int], *, local: bool
) -> Iterator[_Fit]:
    """Yield grids, with the tokens in the order of the sequence, and in that of their centers.

    Only centers of tokens that are computed from some pixels, and not from all, tell an order.
    """
    count = len(centers)
    for rows in (rows for rows in range(1, count + 1) if count % rows == 0 and count > 1):
        grid = rows, count // rows
        if not (fits(grid, size) or covers(grid, size)):
            continue
        if (off := _distances(centers, grid)) is not None:
            mean, largest = float(off.mean()), float(off.max())
            # all centers may be somewhat off, some of them more
            sure = mean < _MEAN and largest < _NEAR + 2 * mean
            yield _Fit(grid, slots, mean, sure, likely=count >= _MANY and mean < _LIKELY)
        by_rows = centers[:, 0].argsort().view(grid)
        order = by_rows.gather(1, centers[by_rows, 1].argsort(1)).flatten()
        if (off := _distances(centers[order], grid)) is not None:
            mean, largest = float(off.mean()), float(off.max())
            yield _Fit(grid, slots[order], 1.3 * mean, local and mean < _MEAN and largest < _NEAR)


def _distances(centers: Float[Tensor, "n 2"], grid: Grid) -> Float[Tensor, " n"] | None:
    """Return the distance of each center from its cell on even lines, None if reversed."""
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


def fits(grid: Grid, image_size: tuple[int, int]) -> bool:
    """Whether a grid of square cells can cover an image, up to one cell of padding or cropping.

    Example:
        >>> fits((3, 5), (48, 80)), fits((15, 1), (48, 80))
        (True, False)
    """
    pairs = list(zip(grid, image_size, strict=True))
    if not all(1 <= cells <= length for cells, length in pairs):
        return False
    # A cell may be cut off at the border or stand half outside: one more or one less fits as well.
    smallest = max(length / (cells + 1) for cells, length in pairs)
    largest = min(length / (cells - 1) if cells > 1 else inf for cells, length in pairs)
    return smallest < largest


def covers(grid: Grid, image_size: tuple[int, int]) -> bool:
    """Whether a grid of cells of any shape, with several rows and columns, can cover an image.

    Most grids do, so that it must be measured where their cells lie.

    Example:
        >>> covers((6, 5), (48, 80)), covers((15, 1), (48, 80))
        (True, False)
    """
    return all(2 <= cells <= length for cells, length in zip(grid, image_size, strict=True))
