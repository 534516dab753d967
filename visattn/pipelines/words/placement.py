"""Places of image tokens on the photo, found by probing the model and its processor."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
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
    """Return the place of each pixel element on the photo, by processing four test photos.

    Args:
        process: Returns the pixels of a photo.
        size: Height and width of the photo.
        shape: Shape of its pixels.

    Returns:
        Share of the width and of the height, and whether the element shows the photo at all.

    Raises:
        ValueError: If the shape of the pixels depends on the content of the photo.
    """
    height, width = size
    x = np.rint(255 * (np.arange(width) + 0.5) / width).astype(np.uint8)
    y = np.rint(255 * (np.arange(height) + 0.5) / height).astype(np.uint8)
    photos = (
        np.zeros(size, np.uint8),
        np.full(size, 255, np.uint8),
        np.broadcast_to(x, size),
        np.broadcast_to(y[:, None], size),
    )
    outputs: list[Tensor] = []
    for photo in photos:
        rgb = Image.fromarray(np.ascontiguousarray(np.repeat(photo[:, :, None], 3, 2)))
        output = process(rgb)
        if output.shape != shape:
            raise ValueError(
                f"the processor must return pixels of one shape for photos of {height} x {width} "
                f"pixels, got {tuple(shape)} and {tuple(output.shape)}"
            )
        outputs.append(output.detach().double().cpu().flatten())
    black, white, across, down = outputs
    span = white - black
    seen = span.abs() > 1e-3 * max(float(span.abs().max()), 1e-9)
    safe = torch.where(seen, span, torch.ones_like(span))
    positions = torch.stack([(across - black) / safe, (down - black) / safe], -1)
    return positions.clamp(0, 1), seen


def place_tokens(
    owners: Int[Tensor, " e"],
    positions: Float[Tensor, "e 2"],
    seen: Tensor,
    geometry: Geometry,
) -> Placement:
    """Return the places of the tokens that own pixels.

    Args:
        owners: Token of each pixel element.
        positions: Place of each element, as shares of width and height.
        seen: Whether the element shows the photo.
        geometry: Identity geometry of the photo.

    Raises:
        ValueError: If no token has a place on the photo.
    """
    columns, members = owners[owners >= 0].unique(return_inverse=True)
    if not len(columns) or not bool(seen[owners >= 0].any()):
        raise ValueError("no token has a place on the photo")
    height, width = geometry.image_size
    points = positions[owners >= 0] * torch.tensor([width, height], dtype=torch.float64)
    on_photo = seen[owners >= 0].double()
    count = _sum(torch.ones_like(on_photo), members, len(columns))
    number = _sum(on_photo, members, len(columns))
    kept = number > 0
    columns, number, count = columns[kept], number[kept], count[kept]
    mean = torch.stack([_sum(points[:, a] * on_photo, members, len(kept)) for a in (0, 1)], -1)[
        kept
    ] / number[:, None]
    renumbered = (kept.cumsum(0) - 1)[members].clamp(min=0)
    spread = (points - mean[renumbered]) ** 2 * on_photo[:, None]
    variance = torch.stack([_sum(spread[:, a], members, len(kept)) for a in (0, 1)], -1)[kept]
    variance = variance / number[:, None]
    side = (count / 3).sqrt().clamp(min=2)[:, None]  # pixels along a side of the token
    extent = (12 * variance).sqrt() * side / (side**2 - 1).sqrt()
    boxes = torch.cat([mean - extent / 2, mean + extent / 2], -1)
    visible = number / count
    grid_geometry, cells, grid_size = _raster(boxes, visible, geometry)
    return Placement(columns, boxes.float(), visible.float(), grid_geometry, cells, grid_size)


def _sum(values: Tensor, members: Tensor, count: int) -> Tensor:
    return torch.zeros(count, dtype=values.dtype).index_add_(0, members, values)


def _raster(
    boxes: Tensor, visible: Tensor, geometry: Geometry
) -> tuple[Geometry, Tensor, tuple[int, int]]:
    """Return a grid over the tokens, and the share of each token in each cell."""
    height, width = geometry.image_size
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
