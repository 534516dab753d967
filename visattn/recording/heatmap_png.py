"""PNG images of attention maps without their photo, as notebooks show them."""

import math
import struct
import zlib

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.functional import interpolate, pad

_MAGMA = (  # the colormap at nine equal distances
    (0, 0, 4), (28, 16, 68), (79, 18, 123), (129, 37, 129), (181, 54, 122), (229, 80, 100),
    (251, 135, 97), (254, 194, 135), (252, 253, 191),
)  # fmt: skip
_UNSEEN = 228  # gray level of pixels outside of the network's input, and of the gaps
_COLUMNS, _MAX_MAPS, _GAP = 6, 24, 4


def heatmap_png(
    values: Float[Tensor, "n y x"], vmin: float, vmax: float, *, side: int = 160
) -> bytes:
    """Return maps as a PNG file: tiles in rows of six, at most 24 of them, on one scale.

    Args:
        values: Maps; NaN outside of the network's input, which becomes gray. Red and blue are
            swapped for negative values.
        vmin: Magnitude at the lower end of the colormap.
        vmax: Magnitude at the upper end.
        side: Longer side of a tile in pixels.

    Example:
        >>> heatmap_png(torch.rand(2, 3, 4), 0.0, 1.0)[1:4]
        b'PNG'
    """
    height, width = values.shape[1:]
    scale = side / max(height, width)
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    tiles = _colored(values[:_MAX_MAPS].detach().float().cpu(), vmin, vmax)
    tiles = interpolate(tiles.float(), size, mode="nearest-exact").to(torch.uint8)
    rows = math.ceil(len(tiles) / _COLUMNS)
    columns = min(len(tiles), _COLUMNS)
    padded = pad(tiles, (0, _GAP, 0, _GAP), value=_UNSEEN)
    blank = padded.new_full((rows * columns - len(tiles), *padded.shape[1:]), _UNSEEN)
    grid = torch.cat([padded, blank]).unflatten(0, (rows, columns))
    image = grid.permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)
    return _png(image[:, :-_GAP, :-_GAP].permute(1, 2, 0))


def _colored(values: Float[Tensor, "n y x"], vmin: float, vmax: float) -> UInt8[Tensor, "n 3 y x"]:
    """Return the colors of magnitudes, with linear interpolation between those of `_MAGMA`."""
    anchors = torch.tensor(_MAGMA, dtype=torch.float32)
    share = (values.abs().nan_to_num(0.0) - vmin) / max(vmax - vmin, 1e-30)
    position = share.clamp(0, 1) * (len(anchors) - 1)
    lower = position.floor().long().clamp(max=len(anchors) - 2)
    colors = anchors[lower].lerp(anchors[lower + 1], (position - lower).unsqueeze(-1))
    colors = torch.where((values < 0).unsqueeze(-1), colors.flip(-1), colors)
    colors[values.isnan()] = float(_UNSEEN)
    return colors.round().to(torch.uint8).permute(0, 3, 1, 2)


def _png(image: UInt8[Tensor, "y x 3"]) -> bytes:
    """Return an RGB image as a PNG file; torch has no encoder of its own."""
    height, width = image.shape[:2]
    lines = pad(image.flatten(1), (1, 0))  # filter type 0 before each line
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(lines.flatten().tolist()), 6)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
