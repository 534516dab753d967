"""Image reader: files, bytes, PIL images and arrays to upright 8-bit RGB, or one clear error.

Arrays that are not photos keep the values of all channels, along with a rendering.
"""

import io
import os
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Shaped, UInt8
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from visattn.images.formats import MAX_PIXELS, image_formats, unknown_format
from visattn.images.rgb import channel_values, draw_channels, from_array, is_photo, to_rgb
from visattn.io.safe_text import printable_name, read_bytes_bounded
from visattn.io.sources import Location, is_url
from visattn.results.records import read_array

_MAX_BYTES = 256 * 2**20
_MAX_SCANS = 100  # of a JPEG; cameras and image editors write up to about twelve
_MAX_ASPECT = 100  # resizing the short side of a longer strip would take too much memory
_THUMBNAIL = 640  # pixels
_ROUNDING = 0.02  # interpolation may exceed [0, 1] by this
_TURNS = {  # EXIF orientation -> operation that makes the stored pixels upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_XMP = ("xmp", "XML:com.adobe.xmp")  # Pillow would rotate by it; browsers do not
# After FF, 00 is data and D0 to D7 are restarts within a scan: neither begins a segment.
_JPEG_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]", re.DOTALL)
_PILLOW_LOCK = threading.Lock()  # its limit and warning filters are process-wide

PathLike = str | os.PathLike[str]


class ImageError(ValueError):
    """An image cannot be read; the message names the image and the reason."""


@dataclass(frozen=True, eq=False, repr=False)
class LoadedImage:
    """An upright RGB image.

    Args:
        pixels: RGB, 0 to 255.
        name: Path of the file, or `image`.
        values: Channel values, if it is not a photo; `pixels` is then a rendering of them.
        display: What the rendering shows; "" for a photo.

    Example:
        >>> LoadedImage(np.zeros((2, 3, 3), dtype=np.uint8)).size
        (2, 3)
    """

    pixels: UInt8[np.ndarray, "y x 3"]
    name: str = "image"
    values: Float32[np.ndarray, "y x c"] | None = None
    display: str = ""

    def __repr__(self) -> str:
        """Return name and size in one line."""
        return f"LoadedImage({self.name!r}, {self.size[0]} x {self.size[1]})"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, upright, in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    @property
    def num_pixels(self) -> int:
        """Number of pixels."""
        return self.size[0] * self.size[1]


ImageLike = (
    PathLike | Location | bytes | io.IOBase | Image.Image | np.ndarray | LoadedImage | Tensor
)
"""All types of images; tensors are model inputs, which only `visattn.explain` accepts."""
_SOURCES = (str, os.PathLike, Location, bytes, Image.Image, np.ndarray, LoadedImage)


def list_images(images: Iterable[ImageLike] | ImageLike) -> list[ImageLike]:
    """Return one image, or several, as a list.

    Raises:
        ValueError: If there is none.

    Example:
        >>> list_images("photo.jpg")
        ['photo.jpg']
    """
    if isinstance(images, Tensor):
        images = [images] if images.ndim < 4 else list(images)
    single = isinstance(images, _SOURCES) or hasattr(images, "read")
    listed: list[Any] = [images] if single else list(images)  # pyright: ignore[reportArgumentType]
    if not listed:
        raise ValueError("there must be at least one image, got none")
    # a stream can be read once
    return [bytes(e.read(_MAX_BYTES)) if hasattr(e, "read") else e for e in listed]


def read_image(
    source: ImageLike,
    *,
    channels: int | None = None,
    max_pixels: int = MAX_PIXELS,
    value_range: tuple[float, float] | None = None,
) -> LoadedImage:
    """Read an image as upright 8-bit RGB, or with the values of all its channels.

    Animations give their first frame. Transparent pixels are composited on white. 16-bit values are
    scaled by 255/65535; wider integers and floats in a file by their own range, with NaN as black.
    Color profiles are not applied.

    Args:
        source: A file (JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, AVIF; HEIC with the extra `heif`; an
            array in a .npy file), its bytes, an open binary file, a PIL image, an array as
            `visattn.images.rgb.from_array` accepts it, or a `LoadedImage`, which is returned
            unchanged.
        channels: Number of channels of the model. Arrays that are not photos then have `values`,
            and all images do if it is neither 1 nor 3 (multispectral, depth).
        max_pixels: Maximum number of pixels to decode.
        value_range: Values of float and 32-bit files that map to black and white instead of their
            own range; see `visattn.images.rgb.to_rgb`.

    Raises:
        ImageError: If the image cannot be read, for any reason; the cause is chained.
        TypeError: If `source` has an unsupported type.

    Example:
        >>> read_image(np.array([[0, 257, 65535]], dtype=np.uint16)).pixels[0, :, 0]
        array([  0,   1, 255], dtype=uint8)
        >>> bands = read_image(np.zeros((2, 3, 8), np.int16), channels=8)
        >>> bands.values.shape, bands.pixels.shape
        ((2, 3, 8), (2, 3, 3))
        >>> read_image(b"no image")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        visattn.images.reader.ImageError: image: not an image of a known format (JPEG, ...
    """
    if isinstance(source, LoadedImage):
        return source
    if hasattr(source, "read"):
        source = bytes(source.read(_MAX_BYTES))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    with _reading(source) as name:
        if isinstance(source, (str, os.PathLike)) and Path(source).suffix.lower() == ".npy":
            source = read_array(Path(source))
        is_array = isinstance(source, np.ndarray)
        if channels is None or (channels in (1, 3) and not (is_array and not is_photo(source))):
            image = _open_image(source, max_pixels)
            image.load()  # now, so that a damaged file raises here
            return LoadedImage(np.array(_upright(image, to_rgb(image, value_range))), name)
        if not is_array:
            image = _open_image(source, max_pixels)
            colors = image.convert("RGB") if image.mode in ("P", "1") else image
            source = np.asarray(_upright(image, colors))
        values = channel_values(source)
        pixels, display = draw_channels(values)
        return LoadedImage(pixels, name, values, display)


def read_label_image(source: PathLike | bytes) -> UInt8[np.ndarray, "y x"]:
    """Return the class indices of an upright mask: its gray values or palette indices.

    Args:
        source: A file with one channel, such as a PNG, or its bytes.

    Raises:
        ImageError: If the image cannot be read, has several channels, or values above 255.

    Example:
        >>> file = io.BytesIO()
        >>> Image.fromarray(np.array([[0, 7, 255]], np.uint8)).save(file, "PNG")
        >>> read_label_image(file.getvalue())
        array([[  0,   7, 255]], dtype=uint8)
    """
    with _reading(source):
        image = _open_image(source, MAX_PIXELS)
        numbers = np.array(_upright(image, image))
        if numbers.ndim != 2 or numbers.dtype.kind not in "biu" or not 0 <= numbers.max() <= 255:
            raise ImageError(
                f"a mask must have one channel of class indices from 0 to 255, got {image.mode} "
                f"up to {numbers.max()}: save it as a gray or palette PNG"
            )
        return numbers.astype(np.uint8)


def read_size(
    source: PathLike | Location | bytes, *, max_pixels: int = MAX_PIXELS
) -> tuple[int, int]:
    """Return height and width of the upright image, from the header.

    Raises:
        ImageError: If the header cannot be read. The pixels may still be damaged.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (7, 5)).save(file, "png")
        >>> read_size(file.getvalue())
        (5, 7)
    """
    with _reading(source):
        return _upright_size(_open_image(source, max_pixels))


def make_thumbnail(image: LoadedImage) -> UInt8[np.ndarray, "y x 3"]:
    """Downsample an image to at most 640 pixels, for notebooks.

    Example:
        >>> make_thumbnail(LoadedImage(np.zeros((900, 1300, 3), np.uint8))).shape
        (300, 434, 3)
    """
    factor = -(-max(image.size) // _THUMBNAIL)
    return np.asarray(Image.fromarray(image.pixels).reduce(factor))


def _open_image(source: ImageLike, max_pixels: int) -> Image.Image:
    """Open an image: read its header and check its size."""
    if isinstance(source, Image.Image):
        image = source
    elif isinstance(source, np.ndarray):
        image = from_array(source)
    else:
        if isinstance(source, Location):
            source = source.read_bytes(_MAX_BYTES)
        elif not isinstance(source, bytes):
            source = read_bytes_bounded(Path(source), _MAX_BYTES)  # pyright: ignore[reportArgumentType]
        image = _open_content(source, max_pixels)
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"{width} x {height} pixels are more than {max_pixels:,}: raise the limit with "
            "read_image(photo, max_pixels=N) or visattn overlay --max-pixels N"
        )
    if max(width, height) > _MAX_ASPECT * min(width, height):
        raise ImageError(f"the aspect ratio of {width} x {height} pixels exceeds {_MAX_ASPECT}")
    return image


def _open_content(content: bytes, max_pixels: int) -> Image.Image:
    with _PILLOW_LOCK, warnings.catch_warnings(action="ignore"):  # about size and damaged tags
        limit = Image.MAX_IMAGE_PIXELS
        if max_pixels > MAX_PIXELS:
            Image.MAX_IMAGE_PIXELS = max_pixels
        try:
            image = Image.open(io.BytesIO(content), formats=image_formats())
        except UnidentifiedImageError as error:
            raise ImageError(unknown_format(content)) from error
        finally:
            Image.MAX_IMAGE_PIXELS = limit
    if image.format in ("JPEG", "MPO") and _count_scans(content) > _MAX_SCANS:
        raise ImageError(f"a JPEG must have at most {_MAX_SCANS} scans")
    return image


def _count_scans(content: bytes) -> int:
    """Count the scans of a JPEG: a progressive file of kilobytes may have thousands.

    Thumbnails in the header are not counted, nor anything after the end of the image, where phones
    append videos (ITU-T T.81, annex B).
    """
    scans, offset = 0, 2
    while match := _JPEG_MARKER.search(content, offset):
        marker, offset = content[match.end() - 1], match.end()
        if marker == 0xD9:  # the end
            break
        scans += marker == 0xDA
        if marker not in (0x01, 0xD8):  # markers without content
            offset += max(2, int.from_bytes(content[offset : offset + 2], "big"))
    return scans


def _upright_size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    # For TIFF, Pillow already reports the upright size.
    turned = _exif_orientation(image) >= 5 and image.format != "TIFF"
    return (width, height) if turned else (height, width)


def _upright(image: Image.Image, pixels: Image.Image) -> Image.Image:
    """Rotate the pixels of an image upright by its EXIF orientation."""
    image.load()  # makes a TIFF upright
    turn = _TURNS.get(_exif_orientation(image))
    return pixels if turn is None else pixels.transpose(turn)


def _exif_orientation(image: Image.Image) -> int:
    with _PILLOW_LOCK, warnings.catch_warnings(action="ignore"):  # about size and damaged tags
        xmp = {key: image.info.pop(key) for key in _XMP if key in image.info}
        try:
            return image.getexif().get(ExifTags.Base.Orientation, 1)
        except SyntaxError:  # the block is not EXIF; read the file as one without it
            return 1
        finally:
            image.info.update(xmp)


@contextmanager
def _reading(source: object) -> Iterator[str]:
    """Yield the name of an image; raise decoder errors with the name and the reason."""
    name = str(getattr(source, "filename", "")) or "image"
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
    elif isinstance(source, Location):
        name = source.address
    elif not isinstance(source, _SOURCES):
        raise TypeError(
            "an image must be a path, bytes, an open file, a PIL image, an array or a LoadedImage, "
            f"got {type(source).__name__}; pass tensors, as model inputs, to "
            "visattn.explain"
        )
    try:
        yield name
    except Exception as error:  # struct.error, zlib.error, SyntaxError, KeyError ...
        if isinstance(error, FileNotFoundError):
            reason = "no such file" + ", or no connection to it" * is_url(name)
        elif isinstance(error, (OSError, ValueError)):
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            reason = reason.removeprefix(f"{name} is ")
        else:
            reason = f"{type(error).__name__}: {error}"
        raise ImageError(f"{printable_name(name)}: {printable_name(reason)}") from error


def single_image(tensor: Tensor) -> Shaped[Tensor, "c y x"]:
    """Return a tensor, or a batch of one, as a single detached image.

    Raises:
        ValueError: If it is not a single image.

    Example:
        >>> single_image(torch.zeros(1, 3, 4, 6)).shape
        torch.Size([3, 4, 6])
    """
    if tensor.ndim == 4 and len(tensor) == 1:
        tensor = tensor[0]
    if tensor.ndim != 3:
        kind = "; volumes and clips are not supported" if tensor.ndim > 3 else ""
        raise ValueError(
            f"a tensor must be an image [c, y, x] or a batch [b, c, y, x], got "
            f"{list(tensor.shape)}{kind}"
        )
    return tensor.detach()


def render_tensor(
    tensor: Float[Tensor, "c y x"],
    mean: Iterable[float] | None = None,
    std: Iterable[float] | None = None,
) -> LoadedImage:
    """Render a model input, in its original colors if mean and std are known.

    Otherwise, or if values then exceed [0, 1], each channel is stretched between its percentiles.

    Example:
        >>> render_tensor(torch.zeros(3, 2, 2), (0.5,) * 3, (0.25,) * 3).pixels[0, 0]
        array([128, 128, 128], dtype=uint8)
    """
    values = tensor.detach().float().cpu()
    text = ""
    if mean is not None and std is not None:
        scale, shift = (torch.tensor(list(each)).view(-1, 1, 1) for each in (std, mean))
        colors = values * scale + shift
        # Interpolation and rounding may slightly exceed [0, 1].
        if colors.min() > -_ROUNDING and colors.max() < 1 + _ROUNDING:
            values = colors.clamp(0, 1)
            text = "; mean and std undone"
    array = np.ascontiguousarray(values.movedim(0, 2).numpy())
    pixels, display = draw_channels(array)
    return LoadedImage(pixels, name="tensor", values=array, display=display + text)
