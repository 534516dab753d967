"""Places of image tokens on the photo, found by probing the model and its processor."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.geometry.affine import Geometry
from visattn.pipelines.words.lattice import (
    LatticeAxis,
    TokenMoments,
    assemble_grid,
    find_lattices,
    interval_shares,
    lattice_boxes,
    rasterize_tokens,
)

NO_TOKEN = -1
SHARED = -2
_MOST_TOKENS = (64, 64**2)  # whose number has one digit, or two
_CLEAN = 0.1  # largest distance of a digit from a whole number
_SMALLEST = 0.6  # pixels of the photo; edges of smaller tokens lie between pixels
_STRONG = 0.01  # of the mean gradient
_WEAK = 0.001
_FEW = 0.02  # of the median number of elements of a token


@dataclass(frozen=True, eq=False)
class Placement:
    """Image tokens of a model, with their places on a photo.

    Args:
        columns: Index of the key of each image token.
        boxes: Left, top, right, bottom of its visible part, in pixels of the upright photo.
        visible: Share of its pixels that are on the photo; the others are padding.
        geometry: Geometry of the grid on the photo.
        weights: Sparse matrix from image tokens to cells of the grid, which keeps the visible mass.
        grid_size: Rows and columns of the grid.
    """

    columns: Int[Tensor, " i"]
    boxes: Float[Tensor, "i 4"]
    visible: Float[Tensor, " i"]
    geometry: Geometry
    weights: Tensor
    grid_size: tuple[int, int]

    @property
    def cells(self) -> Float[Tensor, "cells i"]:
        """The weights as a dense matrix."""
        return self.weights.to_dense()

    def rasterize(self, rows: Float[Tensor, "*axes i"]) -> Float[Tensor, "*maps y x"]:
        """Return values of image tokens as maps; their visible mass is kept."""
        flat = rows.float().reshape(-1, rows.shape[-1])
        maps = torch.sparse.mm(self.weights.to(flat.device), flat.T).T.to(rows)
        return maps.reshape(*rows.shape[:-1], *self.grid_size)

    def through(self, columns: Int[Tensor, " l"], mixing: Float[Tensor, "l i"]) -> "Placement":
        """Return the placement of tokens that are mixtures of these image tokens."""
        mixing = mixing.to(self.boxes)
        return replace(
            self,
            columns=columns,
            boxes=mixing @ self.boxes / mixing.sum(1, keepdim=True).clamp(min=1e-12),
            visible=mixing @ self.visible,
            weights=torch.sparse.mm(self.weights, mixing.T).to_sparse(),
        )


def token_owners(
    states: Float[Tensor, "m d"], pixels: Tensor
) -> tuple[Int[Tensor, " e"], Float[Tensor, ""]]:
    """Return for each pixel element the token that depends on it.

    Gradients of the tokens are scaled by factors from 1 to 2 that encode the digits of their
    number. A factor that is none of these shows a pixel that several tokens share.

    Returns:
        The token of each element, `NO_TOKEN`, or `SHARED` if several tokens depend on it; and the
        share of shared elements among those that a token depends on.
    """
    # A backward pass per token would take minutes. Instead all tokens are followed at once, and
    # their gradients are weighted so that the weight tells the token, as a number in base `base`.
    # With 100 tokens, base 10 and two digits, for the three pixels p, q, r:
    #
    #     token 37 -> p    token 42 -> q    tokens 37 and 42 -> r
    #     pass with weights 1             p: g1          q: g2          r: g3 + g4
    #     pass with 1 + (last digit)/10   p: 1.7 g1      q: 1.2 g2      r: 1.7 g3 + 1.2 g4
    #     pass with 1 + (first digit)/10  p: 1.3 g1      q: 1.4 g2      r: 1.3 g3 + 1.4 g4
    #     quotients, less 1, times 10     7, 3 -> 37     2, 4 -> 42     no whole numbers: shared
    count = len(states)
    digits = 1 + sum(count > most for most in _MOST_TOKENS)
    base = max(2, math.ceil(count ** (1 / digits) - 1e-9))
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(states.shape[1], generator=generator).to(states)
    index = torch.arange(count, device=states.device)

    def gradient(scale: Tensor) -> Tensor:
        upstream = scale.to(states.dtype)[:, None] * direction
        [result] = torch.autograd.grad(states, [pixels], upstream, retain_graph=True,
                                       allow_unused=True)  # fmt: skip
        return torch.zeros_like(pixels).flatten() if result is None else result.flatten()

    plain = gradient(torch.ones(count, device=states.device))
    size = plain.abs()
    touched = size > 0
    inverse = base / torch.where(touched, plain, 1.0)
    worst = torch.zeros_like(plain)
    number = torch.zeros_like(plain)
    for digit in range(digits):
        value = gradient(1 + index // base**digit % base / base).mul_(inverse).sub_(base)
        nearest = value.round().clamp_(0, base - 1)
        torch.maximum(worst, value.sub_(nearest).abs_(), out=worst)
        number.add_(nearest, alpha=base**digit)
    wrong = touched & ~((worst <= _CLEAN) & (number < count))
    owners = torch.where(touched & ~wrong, number, count).long()
    owners.masked_fill_(size < _least_gradient(size, owners, count)[owners], NO_TOKEN)
    shared = wrong & (size > _STRONG * size.sum() / touched.count_nonzero().clamp(min=1))
    owners.masked_fill_(shared, SHARED)
    share = shared.count_nonzero() / touched.count_nonzero().clamp(min=1)
    return owners, share.float().cpu()


def _least_gradient(
    size: Float[Tensor, " e"], owners: Int[Tensor, " e"], count: int
) -> Float[Tensor, " m1"]:
    """Return the smallest gradient by which a pixel element can be that of each token.

    Where it is much smaller than others of the token, its terms cancel, so that little but rounding
    is left, and the token may be another one. If a token owns almost no elements, chance made their
    digits whole numbers: it is one of text. Elements without a token have the owner `count`, for
    which nothing is enough.
    """
    number = torch.bincount(owners, minlength=count + 1)
    least = _WEAK * torch.bincount(owners, size, minlength=count + 1) / number.clamp(min=1)
    owning = number[:-1][number[:-1] > 0].double()
    if len(owning):
        least[number < _FEW * owning.median()] = torch.inf
    least[-1] = torch.inf
    return least.to(size)


def owned_pixel_moments(
    owners: Int[Tensor, " e"], points: Float[Tensor, "e 2"], shows_photo: Tensor
) -> TokenMoments:
    """Return position and extent of tokens that do not share pixels.

    The points of elements are in pixels of the photo; NaN for an axis that their color channel does
    not tell.
    """
    total = int(owners.max()) + 1 if len(owners) else 0
    tokens = torch.where(owners >= 0, owners, total)  # the last one is none

    def sums(index: Tensor, weights: Tensor | None = None) -> Float[Tensor, "2 m"]:
        both = torch.bincount(index, weights, minlength=2 * (total + 1))
        return both.view(2, -1)[:, :total].double().cpu()

    on_photo = torch.where(shows_photo, tokens, total)
    count = sums(tokens)[0]
    shown = sums(on_photo)[0]
    number, first, second = (torch.zeros(2, total, dtype=torch.float64) for _ in range(3))
    for index, place in _coordinates(points, on_photo, total):
        number += sums(index)
        first += sums(index, place)
        second += sums(index, place.square_())
    number.clamp_(min=1)
    mean = (first / number).T
    variance = (second / number - (first / number) ** 2).clamp(min=0).T
    step = _pixel_steps(variance[shown > 0], count[shown > 0], (shown == count)[shown > 0])
    kept = shown > 0
    extent = (12 * variance[kept] + step**2).sqrt()
    columns = kept.nonzero()[:, 0]
    return TokenMoments(columns, (shown[kept] / count[kept]), mean[kept], extent)


def _coordinates(
    points: Float[Tensor, "e 2"], tokens: Int[Tensor, " e"], total: int
) -> Iterator[tuple[Int[Tensor, " e"], Float[Tensor, " e"]]]:
    """Yield the coordinates of elements with their tokens; those of y are `total` + 1 further on.

    Where each color channel tells one axis, all elements are one list, which takes half the time.
    """
    x, y = points.unbind(1)
    tells_x = x.isfinite()
    tells_y = y.isfinite()
    below = tokens + (total + 1)
    if not bool((tells_x & tells_y).any()):
        yield torch.where(tells_x, tokens, below), torch.where(tells_x, x, y).double().nan_to_num_()
        return
    yield torch.where(tells_x, tokens, total), x.double().nan_to_num_()
    yield torch.where(tells_y, below, total), y.double().nan_to_num_()


def _pixel_steps(
    variance: Float[Tensor, "i 2"], count: Float[Tensor, " i"], whole: Tensor
) -> Float[Tensor, "i 2"]:
    """Return width and height of a pixel of each token, in pixels of the photo.

    The positions of n pixels with distance s have the variance (n^2 - 1) s^2 / 12. Where padding
    hides rows or columns of a token, the other axis gives the step, with the proportions that whole
    tokens have. A pixel is three elements of its token.
    """
    side = (count / 3).sqrt().clamp(min=2)[:, None]
    step = (12 * variance / (side**2 - 1)).sqrt()
    if not len(step):
        return step
    known = step[whole] if bool(whole.any()) else step
    width, height = known.median(0).values.clamp(min=1e-9)
    step = torch.where(step > 0, step, torch.stack([width, height]))  # a single visible pixel
    other = step.flip(1) * torch.stack([width / height, height / width])
    return torch.where(whole[:, None], step, torch.maximum(step, other))


def shared_pixel_moments(
    states: Float[Tensor, "m d"],
    pixels: Tensor,
    points: Float[Tensor, "e 2"],
    shows_photo: Tensor,
) -> TokenMoments:
    """Return position and extent of tokens that share pixels: moments of their gradients.

    It takes one backward pass per token.
    """
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(states.shape[1], generator=generator).to(states)
    counted = points.isfinite() & shows_photo[:, None]
    places = points.double().nan_to_num(0.0)
    placed: list[tuple[int, float, Tensor, Tensor]] = []
    for index in range(len(states)):
        upstream = torch.zeros_like(states)
        upstream[index] = direction
        [gradient] = torch.autograd.grad(
            states, [pixels], upstream, retain_graph=True, allow_unused=True
        )
        if gradient is None or not bool(gradient.any()):
            continue
        weight = gradient.flatten().double().abs()
        on_photo = float((weight * shows_photo).sum() / weight.sum())
        if on_photo <= 1e-6:
            continue
        weights = weight[:, None] * counted
        total = weights.sum(0).clamp(min=1e-300)
        mean = (weights * places).sum(0) / total
        variance = (weights * (places - mean) ** 2).sum(0) / total
        placed.append((index, on_photo, mean.cpu(), (12 * variance).sqrt().cpu()))
    columns, visible, means, extents = zip(*placed, strict=True) if placed else ((), (), (), ())
    empty = torch.empty(0, 2, dtype=torch.float64)
    return TokenMoments(
        torch.tensor(columns, dtype=torch.long),
        torch.tensor(visible, dtype=torch.float64),
        torch.stack(means) if means else empty,
        torch.stack(extents) if extents else empty,
    )


def place_tokens(moments: TokenMoments, geometry: Geometry, *, shared: bool = False) -> Placement:
    """Return the places of image tokens, and the grid on which their values are drawn.

    Boxes of tokens that share pixels overlap.

    Raises:
        ValueError: If no token has a place on the photo, or the photo is too small.
    """
    if not len(moments.columns):
        raise ValueError("no image token of the model has a place on the photo")
    size = geometry.image_size
    smallest = float(moments.extent[moments.whole].median(0).values.min())
    if smallest < _SMALLEST:
        raise ValueError(
            f"the photo is too small to place image tokens on it: it has {size[1]} x {size[0]} "
            f"pixels (width x height), and a token covers {smallest:.2g} of a pixel; enlarge it"
        )
    lattices = [] if shared else find_lattices(moments, size)
    boxes = lattice_boxes(lattices, moments, size)
    if shared:  # overlapping boxes: about as many cells as tokens, on the whole photo
        pitch = math.sqrt(size[0] * size[1] / len(boxes))
        x, y = (
            LatticeAxis(0.0, side / n, n)
            for side in size[::-1]
            for n in [max(1, round(side / pitch))]
        )
        across = interval_shares(boxes[:, 0], boxes[:, 2], x)
        down = interval_shares(boxes[:, 1], boxes[:, 3], y)
        drawn = assemble_grid(x, y, across, down, moments.visible, geometry)
    else:
        drawn = rasterize_tokens(lattices, moments, boxes, geometry)
    return Placement(
        moments.columns, boxes.float(), moments.visible.float(), drawn[0], drawn[1], drawn[2]
    )
