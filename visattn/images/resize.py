"""Resizing images to the input size of a network, with the exact geometry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage

ResizeMode = Literal["crop", "squash", "pad"]

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class ResizeSpec:
    """Resizing of images of any size to the input size of a network.

    Args:
        size: Height and width of the network's input.
        mode: `crop` resizes the shorter side and takes the center crop; `squash` resizes both
            sides and changes the aspect ratio; `pad` keeps the whole image and pads it.
        shorter: With `crop`, the length to which the shorter side is resized first; by default the
            shorter side of `size`. If the resized image is smaller than `size`, it is padded.
        interpolation: `bilinear` or `bicubic`, both with antialiasing.
        fill: Color of the padding, RGB, 0 to 255.

    Raises:
        ValueError: If a value is out of range, or `shorter` is given without `crop`.

    Example:
        >>> ResizeSpec((224, 224), shorter=256).mode
        'crop'
    """

    size: tuple[int, int]
    mode: ResizeMode = "crop"
    shorter: int | None = None
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    fill: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        """Validate the values."""
        if len(self.size) != 2 or min(self.size) < 1:
            raise ValueError(f"size must be a height and a width of at least 1, got {self.size}")
        if self.mode not in ("crop", "squash", "pad"):
            raise ValueError(f"mode must be crop, squash or pad, got {self.mode!r}")
        if self.interpolation not in _FILTERS:
            raise ValueError(
                f"interpolation must be bilinear or bicubic, got {self.interpolation!r}"
            )
        if self.shorter is not None and (self.mode != "crop" or self.shorter < 1):
            raise ValueError(
                "shorter must be at least 1 and requires mode crop, "
                f"got {self.shorter} with {self.mode}"
            )

    def geometry(self, size: tuple[int, int]) -> Geometry:
        """Return the geometry of an image of this size after `resize_to_input`.

        Args:
            size: Height and width of the upright image.

        Example:
            >>> ResizeSpec((224, 224)).geometry((448, 640)).region
            (96.0, 0.0, 544.0, 448.0)
        """
        resized, canvas, padding, crop = _resize_steps(size, self)
        geometry = Geometry.identity(size).resized(resized)
        if canvas != resized:
            geometry = geometry.padded(*padding, canvas)
        return geometry if canvas == self.size else geometry.cropped(*crop, self.size)


def resize_to_input(
    image: LoadedImage, resize: ResizeSpec
) -> tuple[UInt8[Tensor, "3 y x"], Geometry]:
    """Return an image at the input size of a network, and its geometry.

    The pixels equal those of `torchvision.transforms.v2` (`Resize` on a PIL image, then
    `CenterCrop`) to the bit.

    Example:
        >>> image = LoadedImage(np.zeros((480, 640, 3), dtype=np.uint8))
        >>> pixels, geometry = resize_to_input(image, ResizeSpec((224, 224), shorter=256))
        >>> pixels.shape, [round(edge, 2) for edge in geometry.region]
        (torch.Size([3, 224, 224]), [108.86, 30.0, 529.27, 450.0])
    """
    pixels = resize_rgb(Image.fromarray(image.pixels), resize)
    return pixels, resize.geometry(image.size)


def resize_channels(
    image: LoadedImage, resize: ResizeSpec, fill: Sequence[float]
) -> tuple[Float[Tensor, "c y x"], Geometry]:
    """Return the values of an image of any number of channels at the input size, and its geometry.

    They equal those of `torchvision.transforms.v2` on a tensor.

    Args:
        image: With `values`.
        resize: How; its `fill` is not used.
        fill: Value of padding in each channel.

    Example:
        >>> values = np.ones((4, 6, 5), np.float32)
        >>> image = LoadedImage(np.zeros((4, 6, 3), np.uint8), values=values)
        >>> values, _ = resize_channels(image, ResizeSpec((3, 3), "pad"), [0.0] * 5)
        >>> values.shape, values[0, :, 0]
        (torch.Size([5, 3, 3]), tensor([1., 1., 0.]))
    """
    if image.values is None:
        raise ValueError(f"{image.name} is a photo, and has no values of channels")
    height, width = resize.size
    (rows, columns), canvas, (top, left), crop = _resize_steps(image.size, resize)
    values = torch.from_numpy(image.values).movedim(2, 0)
    resized = interpolate(values[None], (rows, columns), mode=resize.interpolation, antialias=True)[
        0
    ]
    padded = torch.tensor(fill).view(-1, 1, 1).expand(len(values), *canvas).clone()
    padded[:, top : top + rows, left : left + columns] = resized
    top, left = crop
    return padded[:, top : top + height, left : left + width], resize.geometry(image.size)


def resize_rgb(image: Image.Image, resize: ResizeSpec) -> UInt8[Tensor, "3 y x"]:
    """Return the pixels of `resize_to_input` for an RGB image of PIL.

    Example:
        >>> resize_rgb(Image.new("RGB", (64, 48)), ResizeSpec((22, 22))).shape
        torch.Size([3, 22, 22])
    """
    height, width = resize.size
    size = (image.height, image.width)
    (rows, columns), canvas, padding, crop = _resize_steps(size, resize)
    pixels = np.array(image.resize((columns, rows), _FILTERS[resize.interpolation]))
    if canvas != (rows, columns):
        top, left = padding
        resized = pixels
        pixels = np.full((*canvas, 3), resize.fill, dtype=np.uint8)
        pixels[top : top + rows, left : left + columns] = resized
    top, left = crop
    pixels = np.ascontiguousarray(
        pixels[top : top + height, left : left + width].transpose(2, 0, 1)
    )
    return torch.from_numpy(pixels)


def _resize_steps(
    size: tuple[int, int], resize: ResizeSpec
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Return the resized size, the padded size, the top left padding, the top left crop."""
    # All modes take the same steps. An image of 100 x 151 (height x width) to 64 x 64:
    #
    #                        resized   canvas    padding   crop
    #     crop               64 x 96   64 x 96   0, 0      0, 16
    #     crop, shorter 50   50 x 75   64 x 75   7, 0      0, 6
    #     squash             64 x 64   64 x 64   0, 0      0, 0
    #     pad                42 x 64   64 x 64   11, 0     0, 0
    y, x = resized = _resized_size(size, resize)
    height, width = resize.size
    canvas = (max(y, height), max(x, width))
    padding = ((canvas[0] - y) // 2, (canvas[1] - x) // 2)
    crop = (round((canvas[0] - height) / 2), round((canvas[1] - width) / 2))  # half to even
    return resized, canvas, padding, crop


def _resized_size(size: tuple[int, int], resize: ResizeSpec) -> tuple[int, int]:
    y, x = size
    if resize.mode == "squash":
        return resize.size
    if resize.mode == "crop":
        shorter = resize.shorter or min(resize.size)
        longer = int(shorter * max(y, x) / min(y, x))  # truncated, as in torchvision
        return (shorter, longer) if y <= x else (longer, shorter)
    scale = min(resize.size[0] / y, resize.size[1] / x)
    return max(1, round(y * scale)), max(1, round(x * scale))
