"""Resizing images to the input size of a network, with the exact geometry."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Shaped, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.geometry.affine import Geometry
from visattn.geometry.preprocessing import center_crop, crop_offset
from visattn.images.reader import LoadedImage
from visattn.results.kinds import ResizeMode as ResizeMode

Size = tuple[int, int]

_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class ResizeSpec:
    """How images of any size are resized to the input size of a network.

    Args:
        size: Height and width of the network's input.
        mode: `crop` resizes the shorter side and takes the center crop; `squash` resizes both
            sides and changes the aspect ratio; `pad` keeps the whole image and pads it.
        shorter: With `crop`, the length to which the shorter side is resized first; by default the
            shorter side of `size`. If the resized image is smaller than `size`, it is padded.
        interpolation: `bilinear` or `bicubic`, both with antialiasing.
        fill: Color of the padding, RGB, 0 to 255.

    Raises:
        ValueError: If the mode or the interpolation is unknown.

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
        """Check mode and interpolation."""
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
        return center_crop(Geometry.identity(size).resized(_resized_size(size, self)), self.size)


def resize_to_input(
    image: LoadedImage, resize: ResizeSpec
) -> tuple[UInt8[Tensor, "3 y x"], Geometry]:
    """Resize an image to the input size of a network, and return its geometry, too.

    The pixels are bit-identical to those of `torchvision.transforms.v2` (`Resize` on a PIL image,
    then `CenterCrop`).

    Example:
        >>> image = LoadedImage(np.zeros((480, 640, 3), dtype=np.uint8))
        >>> pixels, geometry = resize_to_input(image, ResizeSpec((224, 224), shorter=256))
        >>> pixels.shape, [round(edge, 2) for edge in geometry.region]
        (torch.Size([3, 224, 224]), [108.86, 30.0, 529.27, 450.0])
    """
    rows, columns = _resized_size(image.size, resize)
    resampling = _FILTERS[resize.interpolation]
    resized = Image.fromarray(image.pixels).resize((columns, rows), resampling)
    return _centered(np.array(resized), resize.size, resize.fill), resize.geometry(image.size)


def resize_channels(
    image: LoadedImage, resize: ResizeSpec, fill: Sequence[float]
) -> tuple[Float[Tensor, "c y x"], Geometry]:
    """Resize an image with any number of channels, and return its geometry, too.

    The values equal those of `torchvision.transforms.v2` on a tensor.

    Args:
        image: With `values`.
        resize: How to resize; its `fill` is not used.
        fill: Value of padding in each channel.

    Example:
        >>> values = np.ones((4, 6, 5), np.float32)
        >>> image = LoadedImage(np.zeros((4, 6, 3), np.uint8), values=values)
        >>> values, _ = resize_channels(image, ResizeSpec((3, 3), "pad"), [0.0] * 5)
        >>> values.shape, values[0, :, 0]
        (torch.Size([5, 3, 3]), tensor([1., 1., 0.]))
    """
    values = torch.from_numpy(image.values).movedim(2, 0)[None]  # pyright: ignore[reportArgumentType]
    size = _resized_size(image.size, resize)
    [resized] = interpolate(values, size, mode=resize.interpolation, antialias=True)
    channels_last = resized.movedim(0, 2).numpy()
    return _centered(channels_last, resize.size, fill), resize.geometry(image.size)


def _centered(pixels: Shaped[np.ndarray, "y x c"], size: Size, fill: Sequence[float]) -> Any:
    """Return the center crop of resized pixels, padded where they are smaller, channels first."""
    # The steps of all modes for an image of 100 x 151 (height x width) to 64 x 64:
    #
    #                        resized   window starts at
    #     crop               64 x 96   0, 16
    #     crop, shorter 50   50 x 75   -7, 6             7 rows of padding above and below
    #     squash             64 x 64   0, 0
    #     pad                42 x 64   -11, 0
    starts = list(map(crop_offset, pixels.shape, size))
    source = tuple(slice(max(at, 0), max(at, 0) + n) for at, n in zip(starts, size, strict=True))
    inner = pixels[source]
    top, left = (max(-at, 0) for at in starts)
    canvas = np.full((*size, pixels.shape[2]), fill, pixels.dtype)
    canvas[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
    return torch.from_numpy(np.ascontiguousarray(canvas.transpose(2, 0, 1)))


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
