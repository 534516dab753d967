"""Places of image tokens on the photo, found by probing the model and its processor."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from visattn.geometry.affine import Geometry

NO_TOKEN, SHARED = -1, -2


@dataclass(frozen=True, eq=False)
class Placement:
    """Image tokens of a model, with their places on a photo.

    Args:
        columns: Index of the key of each image token.
        boxes: Left, top, right, bottom of its visible part, in pixels of the upright photo.
        visible: Share of its pixels that are on the photo; the others are padding.
        geometry: Geometry of the grid on the photo.
        cells: Weights from image tokens to cells of the grid, which keep the visible mass.
        grid_size: Rows and columns of the grid.
    """

    columns: Int[Tensor, " i"]
    boxes: Float[Tensor, "i 4"]
    visible: Float[Tensor, " i"]
    geometry: Geometry
    cells: Float[Tensor, "cells i"]
    grid_size: tuple[int, int]

    def rasterize(self, rows: Float[Tensor, "*axes i"]) -> Float[Tensor, "*axes y x"]:
        """Return values of image tokens as maps; their visible mass is kept.

        Args:
            rows: One value per image token.
        """
        return (rows @ self.cells.to(rows).T).unflatten(-1, self.grid_size)

    def through(self, columns: Int[Tensor, " l"], mixing: Float[Tensor, "l i"]) -> "Placement":
        """Return the placement of tokens that are mixtures of these image tokens.

        Args:
            columns: Index of the key of each mixed token.
            mixing: Share of each image token in each mixed token.
        """
        mixing = mixing.to(self.cells)
        return replace(
            self,
            columns=columns,
            boxes=mixing @ self.boxes / mixing.sum(1, keepdim=True).clamp(min=1e-12),
            visible=mixing @ self.visible,
            cells=self.cells @ mixing.T,
        )


def token_owners(
    states: Float[Tensor, "m d"], pixels: Tensor
) -> tuple[Int[Tensor, " e"], Float[Tensor, ""]]:
    """Return for each pixel element the token that depends on it.

    Gradients of the tokens are scaled by powers of two that encode their number. This is exact in
    every floating-point format, so that a ratio that is no power of two shows a shared pixel.

    Args:
        states: Tokens that were computed without attention.
        pixels: The pixels that they were computed from.

    Returns:
        The token of each element, `NO_TOKEN`, or `SHARED` if several tokens depend on it; and the
        share of shared elements among those that a token depends on.
    """
    count = len(states)
    base = 8 if states.dtype == torch.float16 else 64
    digits = max(1, math.ceil(math.log(max(count, 2), base)))
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(states.shape[1], generator=generator).to(states)
    index = torch.arange(count, device=states.device)

    def gradient(scale: Tensor) -> Tensor:
        upstream = scale.to(states.dtype)[:, None] * direction
        [result] = torch.autograd.grad(states, [pixels], upstream, retain_graph=True,
                                       allow_unused=True)  # fmt: skip
        return torch.zeros_like(pixels).flatten() if result is None else result.flatten()

    plain = gradient(torch.ones(count, device=states.device)).double()
    touched = plain != 0
    owners = torch.full_like(plain, NO_TOKEN, dtype=torch.long)
    owners[touched] = 0
    shared = torch.zeros_like(touched)
    for digit in range(digits):
        exponent = index // base**digit % base - base // 2
        ratio = gradient(2.0**exponent).double()[touched] / plain[touched]
        value = torch.log2(ratio.abs().clamp(min=1e-300)) + base // 2
        rounded = value.round()
        wrong = ((value - rounded).abs() > 1e-3) | (ratio <= 0) | (rounded < 0) | (rounded >= base)
        shared[touched] |= wrong
        owners[touched] += rounded.clamp(0, base - 1).long() * base**digit
    owners[shared] = SHARED
    return owners.cpu(), (shared.sum() / touched.sum().clamp(min=1)).float().cpu()


def element_positions(
    process: Callable[[Image.Image], Tensor], size: tuple[int, int], shape: torch.Size
) -> tuple[Float[Tensor, "e 2"], Tensor]:
    """Return the place of each pixel element on the photo, by processing at least four test photos.

    Two are black and white, two ramps. As a ramp has 256 gray levels, steeper ramps over a part of
    an axis follow if the photo is cropped to less than half, or its pixels are more than 255.

    Args:
        process: Returns the pixels of a photo.
        size: Height and width of the photo.
        shape: Shape of its pixels.

    Returns:
        Share of the width and of the height, and whether the element shows the photo at all.

    Raises:
        ValueError: If the shape of the pixels depends on the content of the photo.
    """

    def processed(gray: UInt8[np.ndarray, "..."]) -> Tensor:
        photo = np.repeat(np.broadcast_to(gray, size)[:, :, None], 3, 2)
        output = process(Image.fromarray(np.ascontiguousarray(photo)))
        if output.shape != shape:
            raise ValueError(
                f"the processor must return pixels of one shape for photos of {size[0]} x "
                f"{size[1]} pixels, got {tuple(shape)} and {tuple(output.shape)}"
            )
        return output.detach().double().cpu().flatten()

    black, white = (processed(np.array(level, np.uint8)) for level in (0, 255))
    span = white - black
    shows_photo = span.abs() > 1e-3 * max(float(span.abs().max()), 1e-9)
    safe = torch.where(shows_photo, span, torch.ones_like(span))

    def positions(axis: int, begin: float, end: float) -> Tensor:
        centers = (np.arange(size[axis]) + 0.5) / size[axis]
        ramp = np.rint(255 * np.clip((centers - begin) / (end - begin), 0, 1)).astype(np.uint8)
        levels = (processed(ramp if axis else ramp[:, None]) - black) / safe
        return (begin + (end - begin) * levels).clamp(0, 1)

    axes: list[Tensor] = []
    for axis in (1, 0):
        place = positions(axis, 0.0, 1.0)
        edges = _windows(place[shows_photo], math.sqrt(shape.numel() / 3), size[axis])
        coarse = place.clone()
        for begin, end in itertools.pairwise(edges):
            within = (coarse >= begin) & (coarse <= end)
            margin = (end - begin) / 8
            finer = positions(axis, max(0.0, begin - margin), min(1.0, end + margin))
            place = torch.where(within, finer, place)
        axes.append(place)
    return torch.stack(axes, -1), shows_photo


def _windows(places: Float[Tensor, " e"], pixels: float, side: int) -> list[float]:
    """Return the edges of the parts of an axis that need a ramp of their own, or [].

    Args:
        places: Places of the elements that show the photo, as shares of the side.
        pixels: Number of pixels along a side of the input.
        side: Number of pixels along the side of the photo.
    """
    if not len(places):
        return []
    margin = max(1 / 255, 0.5 / side)
    low, high = max(0.0, float(places.min()) - margin), min(1.0, float(places.max()) + margin)
    count = min(math.ceil(pixels / 255), 8, side)
    if count == 1 and high - low > 0.5:
        return []
    return torch.linspace(low, high, count + 1, dtype=torch.float64).tolist()


@dataclass(frozen=True, eq=False)
class TokenMoments:
    """Position and extent of image tokens on a photo.

    Args:
        columns: Index of the key of each token.
        visible: Share of its pixels that are on the photo.
        mean: Mean x and y of these pixels, in pixels of the photo.
        extent: Width and height of the token's box.
    """

    columns: Int[Tensor, " i"]
    visible: Float[Tensor, " i"]
    mean: Float[Tensor, "i 2"]
    extent: Float[Tensor, "i 2"]


def owned_pixel_moments(
    owners: Int[Tensor, " e"], points: Float[Tensor, "e 2"], shows_photo: Tensor
) -> TokenMoments:
    """Return position and extent of tokens that do not share pixels.

    Args:
        owners: Token of each pixel element.
        points: Position of each element on the photo, in pixels.
        shows_photo: Whether the element shows the photo.
    """
    owned = owners >= 0
    columns, members = owners[owned].unique(return_inverse=True)
    points, on_photo = points[owned], shows_photo[owned].double()
    count = _sum(torch.ones_like(on_photo), members, len(columns))
    number = _sum(on_photo, members, len(columns))
    safe = number.clamp(min=1)[:, None]
    mean = _sum(points * on_photo[:, None], members, len(columns)) / safe
    spread = (points - mean[members]) ** 2 * on_photo[:, None]
    variance = _sum(spread, members, len(columns)) / safe
    step = _pixel_steps(variance, count, number == count)
    extent = (12 * variance + step**2).sqrt()
    kept = number > 0
    return TokenMoments(columns[kept], (number / count)[kept], mean[kept], extent[kept])


def _pixel_steps(
    variance: Float[Tensor, "i 2"], count: Float[Tensor, " i"], whole: Tensor
) -> Float[Tensor, "i 2"]:
    """Return width and height of a pixel of each token, in pixels of the photo.

    The positions of n pixels with distance s have the variance (n^2 - 1) s^2 / 12. Where padding
    hides rows or columns of a token, the other axis gives the step, with the proportions that whole
    tokens have.

    Args:
        variance: Variance of the positions of the visible pixels.
        count: Number of elements of the token, three per pixel.
        whole: Whether all of them are visible.
    """
    side = (count / 3).sqrt().clamp(min=2)[:, None]
    step = (12 * variance / (side**2 - 1)).sqrt()
    known = step[whole] if bool(whole.any()) else step
    width, height = known.median(0).values.clamp(min=1e-9)
    other = step.flip(1) * torch.stack([width / height, height / width])
    return torch.where(whole[:, None], step, torch.maximum(step, other))


def shared_pixel_moments(
    states: Float[Tensor, "m d"], pixels: Tensor, points: Float[Tensor, "e 2"], shows_photo: Tensor
) -> TokenMoments:
    """Return position and extent of tokens that share pixels: moments of their gradients.

    It takes one backward pass per token.

    Args:
        states: Tokens that were computed without attention.
        pixels: The pixels that they were computed from.
        points: Position of each pixel element on the photo, in pixels.
        shows_photo: Whether the element shows the photo.
    """
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(states.shape[1], generator=generator).to(states)
    placed: list[tuple[int, float, Tensor, Tensor]] = []
    for index in range(len(states)):
        upstream = torch.zeros_like(states)
        upstream[index] = direction
        [gradient] = torch.autograd.grad(
            states, [pixels], upstream, retain_graph=True, allow_unused=True
        )
        if gradient is None or not bool(gradient.any()):
            continue
        weight = gradient.flatten().double().abs().cpu()
        on_photo = weight * shows_photo
        if float(on_photo.sum()) <= 1e-6 * float(weight.sum()):
            continue
        mean = on_photo @ points / on_photo.sum()
        variance = on_photo @ (points - mean) ** 2 / on_photo.sum()
        placed.append((index, float(on_photo.sum() / weight.sum()), mean, (12 * variance).sqrt()))
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

    Args:
        moments: Positions and extents of the tokens.
        geometry: Identity geometry of the photo.
        shared: Whether tokens share pixels, so that their boxes overlap.

    Raises:
        ValueError: If no token has a place on the photo.
    """
    if not len(moments.columns):
        raise ValueError("no image token of the model has a place on the photo")
    half = moments.extent.clamp(min=1e-3) / 2
    boxes = torch.cat([moments.mean - half, moments.mean + half], -1)
    visible = moments.visible
    grid_geometry, cells, grid_size = _raster(boxes, visible, geometry, shared=shared)
    return Placement(
        moments.columns, boxes.float(), visible.float(), grid_geometry, cells, grid_size
    )


def _sum(values: Tensor, members: Tensor, count: int) -> Tensor:
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, members, values)


def _raster(
    boxes: Tensor, visible: Tensor, geometry: Geometry, *, shared: bool
) -> tuple[Geometry, Tensor, tuple[int, int]]:
    """Return a grid over the tokens, and the share of each token in each cell."""
    height, width = geometry.image_size
    if shared:  # overlapping boxes: about as many cells as tokens, on the whole photo
        pitch = math.sqrt(height * width / len(boxes))
        left, right, nx = 0.0, float(width), max(1, round(width / pitch))
        top, bottom, ny = 0.0, float(height), max(1, round(height / pitch))
    else:
        left, right, nx = _axis(boxes[:, 0], boxes[:, 2], visible, width)
        top, bottom, ny = _axis(boxes[:, 1], boxes[:, 3], visible, height)
    across = _overlap(boxes[:, 0], boxes[:, 2], left, right, nx)
    down = _overlap(boxes[:, 1], boxes[:, 3], top, bottom, ny)
    cells = torch.einsum("iy,ix->yxi", down, across).flatten(0, 1) * visible
    matrix = (
        ((right - left) / nx, 0.0, left),
        (0.0, (bottom - top) / ny, top),
        (0.0, 0.0, 1.0),
    )
    region = (max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height)))
    placed = Geometry(matrix, (ny, nx), geometry.image_size, region, geometry.orientation)
    return placed, cells.float(), (ny, nx)


def _axis(low: Tensor, high: Tensor, visible: Tensor, side: int) -> tuple[float, float, int]:
    """Return begin, end and number of cells of an axis, so that the finest tokens are cells."""
    whole = visible > 0.999 if bool((visible > 0.999).any()) else visible > 0
    pitch = float((high - low)[whole].quantile(0.1))
    full = (high - low).clamp(min=pitch)  # tokens at the edge of the photo may be partly padding
    begin, end = float((high - full).min()), float((low + full).max())
    count = max(1, round((end - begin) / max(pitch, 1e-6)))
    begin = 0.0 if abs(begin) < pitch / 20 else begin  # ramps flatten at the edge of the photo
    end = float(side) if abs(end - side) < pitch / 20 else end
    return begin, end, min(count, 256)


def _overlap(low: Tensor, high: Tensor, begin: float, end: float, count: int) -> Tensor:
    """Return the share of each interval in each of `count` cells, which sums to 1."""
    edges = torch.linspace(begin, end, count + 1, dtype=torch.float64)
    shared = torch.minimum(high[:, None], edges[1:]) - torch.maximum(low[:, None], edges[:-1])
    shared = shared.clamp(min=0)
    shared = shared / shared.sum(1, keepdim=True).clamp(min=1e-12)
    return torch.where(shared.amax(1, keepdim=True) > 0.9, (shared > 0.9).double(), shared)
