"""Resizing images to the input size of a network, with the exact geometry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage

ResizeMode = Literal["crop", "squash", "pad"]
Size = tuple[int, int]

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
        ValueError: If the mode or the interpolation is another one.

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
        """Refuse a mode that would be taken for another."""
        if self.mode not in get_args(ResizeMode) or self.interpolation not in _FILTERS:
            raise ValueError(
                "mode must be crop, squash or pad, and interpolation bilinear or bicubic, got "
                f"{self.mode!r} and {self.interpolation!r}"
            )

    def geometry(self, size: tuple[int, int]) -> Geometry:
        """Return the geometry of an image of this size after `resize_to_input`.

        Args:
            size: Height and width of the upright image.

        Example:
            >>> ResizeSpec((224, 224)).geometry((448, 640)).region
            (96.0, 0.0, 544.0, 448.0)
        """
        steps = _resize_steps(size, self)
        geometry = Geometry.identity(size).resized(steps.resized)
        return geometry.padded(*steps.padding, steps.canvas).cropped(*steps.crop, self.size)


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
    steps = _resize_steps(image.size, resize)
    values = torch.from_numpy(image.values).movedim(2, 0)[None]  # pyright: ignore[reportArgumentType]
    resized = interpolate(values, steps.resized, mode=resize.interpolation, antialias=True)[0]
    return steps.fit(resized.movedim(0, 2).numpy(), fill), resize.geometry(image.size)


def resize_rgb(image: Image.Image, resize: ResizeSpec) -> UInt8[Tensor, "3 y x"]:
    """Return the pixels of `resize_to_input` for an RGB image of PIL.

    Example:
        >>> resize_rgb(Image.new("RGB", (64, 48)), ResizeSpec((22, 22))).shape
        torch.Size([3, 22, 22])
    """
    steps = _resize_steps((image.height, image.width), resize)
    resized = image.resize((steps.resized[1], steps.resized[0]), _FILTERS[resize.interpolation])
    return steps.fit(np.array(resized), resize.fill)


class _Steps(NamedTuple):
    """Steps of a resize: to a size, into the padding of a canvas, and a crop of it."""

    resized: Size
    canvas: Size
    padding: Size
    crop: Size
    size: Size

    def fit(self, pixels: Shaped[np.ndarray, "y x c"], fill: Sequence[float]) -> Any:
        """Return resized pixels on their canvas, cropped, channels first."""
        if self.canvas != self.resized:
            (top, left), (rows, columns) = self.padding, self.resized
            inner, pixels = pixels, np.full((*self.canvas, pixels.shape[2]), fill, pixels.dtype)
            pixels[top : top + rows, left : left + columns] = inner
        (top, left), (height, width) = self.crop, self.size
        window = pixels[top : top + height, left : left + width].transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(window))


def _resize_steps(size: Size, resize: ResizeSpec) -> _Steps:
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
    return _Steps(resized, canvas, padding, crop, resize.size)


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
