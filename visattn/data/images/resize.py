"""An image of any size in the frame that a network looks through, and where everything went."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from visattn.data.images.reader import LoadedImage
from visattn.geometry.affine import Geometry

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class ResizeSpec:
    """How an image comes into the size that a network takes.

    Args:
        size: Height and width of the network's input.
        fit: `crop` resizes the shorter side and cuts out the middle; `squash` resizes both sides
            and bends the proportions; `pad` shows the whole image, with bars beside it.
        shorter: With `crop`, the length to which the shorter side is resized first; by default the
            shorter side of `size`. Where the image is then too small, there are bars.
        resampling: `bilinear` or `bicubic`, both with antialiasing.
        fill: Color of the bars, RGB, 0 to 255.

    Raises:
        ValueError: If a value is out of range, or `shorter` is given without `crop`.

    Example:
        >>> ResizeSpec((224, 224), shorter=256).fit
        'crop'
    """

    size: tuple[int, int]
    fit: Literal["crop", "squash", "pad"] = "crop"
    shorter: int | None = None
    resampling: Literal["bilinear", "bicubic"] = "bilinear"
    fill: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        """Check the values."""
        if len(self.size) != 2 or min(self.size) < 1:
            raise ValueError(f"size must be a height and a width of at least 1, got {self.size}")
        if self.fit not in ("crop", "squash", "pad"):
            raise ValueError(f"fit must be crop, squash or pad, got {self.fit!r}")
        if self.resampling not in _FILTERS:
            raise ValueError(f"resampling must be bilinear or bicubic, got {self.resampling!r}")
        if self.shorter is not None and (self.fit != "crop" or self.shorter < 1):
            raise ValueError(
                f"shorter must be at least 1 and goes with crop, got {self.shorter} with {self.fit}"
            )


def frame(image: LoadedImage, framing: ResizeSpec) -> tuple[UInt8[Tensor, "3 y x"], Geometry]:
    """Return what the network sees of an image, and the way back.

    The pixels are those of `torchvision.transforms.v2` (`Resize` on an image of Pillow, then
    `CenterCrop`), to the bit.

    Args:
        image: Upright, as `read_image` returns it.
        framing: Size and fit.

    Example:
        >>> image = LoadedImage(np.zeros((480, 640, 3), dtype=np.uint8))
        >>> pixels, geometry = frame(image, ResizeSpec((224, 224), shorter=256))
        >>> pixels.shape, [round(edge, 2) for edge in geometry.seen()]
        (torch.Size([3, 224, 224]), [108.86, 30.0, 529.27, 450.0])
    """
    height, width = framing.size
    (rows, columns), canvas, bars, cut = _steps(image.size, framing)
    source = Image.fromarray(image.pixels)
    pixels = np.array(source.resize((columns, rows), _FILTERS[framing.resampling]))
    if canvas != (rows, columns):
        (top, left), inner = bars, pixels
        pixels = np.full((*canvas, 3), framing.fill, dtype=np.uint8)
        pixels[top : top + rows, left : left + columns] = inner
    top, left = cut
    pixels = np.ascontiguousarray(
        pixels[top : top + height, left : left + width].transpose(2, 0, 1)
    )
    return torch.from_numpy(pixels), framed_geometry(image.size, framing, image.orientation)


def framed_geometry(size: tuple[int, int], framing: ResizeSpec, orientation: int = 1) -> Geometry:
    """Return the way from an image of this size to what the network sees of it.

    Args:
        size: Height and width of the upright image.
        framing: Size and fit.
        orientation: The EXIF orientation in which the file holds the image.

    Example:
        >>> framed_geometry((448, 640), ResizeSpec((224, 224))).seen()
        (96.0, 0.0, 544.0, 448.0)
    """
    resized, canvas, bars, cut = _steps(size, framing)
    geometry = Geometry.identity(size, orientation).resized(resized)
    if canvas != resized:
        geometry = geometry.padded(*bars, canvas)
    return geometry if canvas == framing.size else geometry.cropped(*cut, framing.size)


def _steps(
    size: tuple[int, int], framing: ResizeSpec
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Return the resized size, that with bars, the width of these, and what is cut off before."""
    y, x = resized = _resized_size(size, framing)
    height, width = framing.size
    canvas = (max(y, height), max(x, width))
    bars = ((canvas[0] - y) // 2, (canvas[1] - x) // 2)
    cut = (round((canvas[0] - height) / 2), round((canvas[1] - width) / 2))  # half to even
    return resized, canvas, bars, cut


def _resized_size(size: tuple[int, int], framing: ResizeSpec) -> tuple[int, int]:
    (y, x), (height, width) = size, framing.size
    if framing.fit == "squash":
        return framing.size
    if framing.fit == "crop":
        shorter = framing.shorter or min(framing.size)
        longer = int(shorter * max(y, x) / min(y, x))  # cut off, as torchvision does
        return (shorter, longer) if y <= x else (longer, shorter)
    scale = min(height / y, width / x)
    return max(1, round(y * scale)), max(1, round(x * scale))
