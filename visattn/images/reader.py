"""Image reader: files, bytes, PIL images and arrays to upright 8-bit RGB, or one clear error.

Arrays and files with other channels than those of photos are read with a rule for their rendering.
"""

import io
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import Float32, Shaped, UInt8
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from visattn.images.channels import Display, channel_values, draw_channels, is_photo
from visattn.images.formats import (
    HEIF_ADVICE,
    describe_skipped,
    has_heif,
    image_formats,
    image_suffixes,
    is_heif,
    is_other_image,
)
from visattn.images.integrity import count_jpeg_scans, png_rows_missing
from visattn.images.rgb import from_array, to_rgb
from visattn.io.safe_paths import walk_files
from visattn.io.safe_text import open_regular_file, printable_name
from visattn.io.sources import Location
from visattn.results.map_files import read_array

MAX_SCANS = 100  # of a JPEG; cameras and image editors write up to about twelve
MAX_ASPECT = 100  # resizing the short side of a longer strip would need too much memory

_THUMBNAIL = 640  # pixels
_HEAD_OF_PAGE = 4096  # bytes in which the generator of a page is named
_GENERATOR = b'<meta name="generator" content="visattn">'
_EXIF_TRANSPOSE = {  # EXIF orientation -> operation that makes the stored pixels upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_XMP = ("xmp", "XML:com.adobe.xmp")  # Pillow would turn an image by it; browsers do not
_WARNINGS_LOCK = threading.Lock()  # warning filters are global to the process

PathLike = str | os.PathLike[str]


_MAX_BYTES = 256 * 2**20
_MAX_PIXELS = 64_000_000
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # first bytes
_LABEL_MODES = ("1", "L", "P", "I", "I;16")


class ImageError(ValueError):
    """An image cannot be read; the message names the image and the reason."""


@dataclass(frozen=True, eq=False, repr=False)
class LoadedImage:
    """An upright RGB image.

    Args:
        pixels: RGB, 0 to 255.
        orientation: EXIF orientation of the stored image, 1 to 8.
        name: Path of the file, or `image`.
        values: Values of the channels, if it is no photo: `pixels` is then a rendering of them.
        display: How the rendering was made; "" for a photo.

    Example:
        >>> LoadedImage(np.zeros((2, 3, 3), dtype=np.uint8)).size
        (2, 3)
    """

    pixels: UInt8[np.ndarray, "y x 3"]
    orientation: int = 1
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


ImageLike = PathLike | Location | bytes | Image.Image | np.ndarray | LoadedImage | Tensor
"""Every form of an image; tensors are inputs of a model, which `visattn.explain` takes alone."""


def list_images(images: Iterable[ImageLike] | ImageLike) -> list[ImageLike]:
    """Return one image, or several, as a list.

    Raises:
        TypeError: If it is neither an image nor a list of images.
        ValueError: If there is none.

    Example:
        >>> list_images("photo.jpg")
        ['photo.jpg']
    """
    single = (str, os.PathLike, Location, bytes, Image.Image, np.ndarray, LoadedImage)
    if isinstance(images, Tensor):
        images = [images] if images.ndim < 4 else list(images)
    if not isinstance(images, (*single, Iterable)):
        _source_name(images)  # raises
    listed: list[ImageLike] = [images] if isinstance(images, single) else list(images)
    if not listed:
        raise ValueError("there must be at least one image, got none")
    if any(isinstance(image, str) and not image for image in listed):
        raise ValueError("an image must be a file or a folder, got ''; '.' is the current folder")
    return listed


def read_image(
    source: ImageLike,
    *,
    display: Display | None = None,
    max_bytes: int = _MAX_BYTES,
    max_pixels: int = _MAX_PIXELS,
) -> LoadedImage:
    """Return an image as upright 8-bit RGB, or with the values of all its channels.

    Of an animation the first frame is read. Transparent pixels are composited on white. 16-bit
    values are scaled by 255/65535; wider integers and floats in a file by their own range, with
    NaN as black. Color profiles are not applied.

    Args:
        source: A file (JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, AVIF; HEIC with the extra `heif`;
            an array in a .npy file), the bytes of one, a PIL image, an array as
            `visattn.images.rgb.from_array` accepts it, or a `LoadedImage`, which is returned
            unchanged.
        display: What a rendering shows of an image of any number of channels (multispectral,
            depth, signed values): the index of a channel, which is shown in gray, or three for
            red, green and blue, as in `display=(7, 3, 2)`; channels that leave 0 to 1 are
            stretched from their 2nd to their 98th percentile. `auto` shows the first three, and
            reads photos as photos. None reads photos alone.
        max_bytes: Largest file size that is opened.
        max_pixels: Largest image that is decoded. Pillow has its own limit, twice
            `PIL.Image.MAX_IMAGE_PIXELS`.

    Raises:
        ImageError: If the image cannot be read, for any reason; the cause is chained.
        TypeError: If `source` is of another type.

    Example:
        >>> read_image(np.array([[0, 257, 65535]], dtype=np.uint16)).pixels[0, :, 0]
        array([  0,   1, 255], dtype=uint8)
        >>> bands = read_image(np.zeros((2, 3, 8), np.int16), display=(7, 3, 2))
        >>> bands.values.shape, bands.pixels.shape
        ((2, 3, 8), (2, 3, 3))
        >>> read_image(b"no image")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        visattn.images.reader.ImageError: image: not an image of a known format (JPEG, ...
    """
    if isinstance(source, LoadedImage):
        return _displayed(source, display)
    if display is not None and (read := _read_channels(source, display, max_bytes, max_pixels)):
        values = channel_values(read[0])
        pixels, text = draw_channels(values, display)
        return LoadedImage(pixels, read[1], _source_name(source), values, text)
    image, orientation = read_rgb(source, max_bytes=max_bytes, max_pixels=max_pixels)
    return LoadedImage(np.array(image), orientation, _source_name(source))


def _displayed(image: LoadedImage, display: Display | None) -> LoadedImage:
    """Return an image that was read, with another rendering of its channels if one is named."""
    if image.values is None or display == "auto":
        return image
    if display is None:
        raise ImageError(
            f"{image.name} has {image.values.shape[2]} channels of values and is no photo: "
            "visattn.explain takes it, and a model that has as many channels"
        )
    pixels, text = draw_channels(image.values, display)
    return replace(image, pixels=pixels, display=text)


def _read_channels(
    source: ImageLike, display: Display, max_bytes: int, max_pixels: int
) -> tuple[Shaped[np.ndarray, "..."], int] | None:
    """Return the channels of an image and its EXIF orientation; None if it is read as a photo."""
    with _explained_errors(source):
        if isinstance(source, np.ndarray) or _is_npy(source):
            array = source if isinstance(source, np.ndarray) else read_array(Path(source))  # pyright: ignore[reportArgumentType]
            if display == "auto" and is_photo(array):
                return None
            channel_values(array[:1, :1] if array.ndim in (2, 3) else array)  # refuses others
            return array, 1
        if display == "auto":
            return None
        image = _open_image(source, max_bytes)  # pyright: ignore[reportArgumentType]
        _check_size(*image.size, max_pixels)
        image.load()
        if image.mode in ("P", "1"):
            image = image.convert("RGB")
        orientation = _exif_orientation(image)
        return np.asarray(_upright(image, orientation)), orientation


def _is_npy(source: object) -> bool:
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix.lower() == ".npy"


def read_rgb(
    source: ImageLike,
    *,
    reduction: Callable[[tuple[int, int]], int] | None = None,
    max_bytes: int = _MAX_BYTES,
    max_pixels: int = _MAX_PIXELS,
) -> tuple[Image.Image, int]:
    """Return an image as an upright RGB image of PIL, and its EXIF orientation.

    Args:
        reduction: Maps height and width of a JPEG to 1, 2, 4 or 8, the factor by which its sides
            are reduced in decoding (DCT scaling), several times faster. None decodes all pixels.

    Raises:
        ImageError: If the image cannot be read, for any reason; the cause is chained.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (70, 50)).save(file, "jpeg")
        >>> read_rgb(file.getvalue(), reduction=lambda size: 2)[0].size
        (35, 25)
    """
    if isinstance(source, LoadedImage):
        return Image.fromarray(source.pixels), source.orientation
    with _explained_errors(source):
        image = _open_image(source, max_bytes)  # pyright: ignore[reportArgumentType] (no tensor)
        return _decode_upright(image, max_pixels, reduction)


def read_label_image(source: PathLike | bytes) -> UInt8[np.ndarray, "y x"]:
    """Return the class numbers of an image file, upright: its gray values or palette indices.

    Args:
        source: A file with one channel, such as a PNG, or the bytes of one.

    Raises:
        ImageError: If the image cannot be read, has several channels, or numbers above 255.

    Example:
        >>> file = io.BytesIO()
        >>> Image.fromarray(np.array([[0, 7, 255]], np.uint8)).save(file, "PNG")
        >>> read_label_image(file.getvalue())
        array([[  0,   7, 255]], dtype=uint8)
    """
    with _explained_errors(source):
        image = _open_image(source, _MAX_BYTES)
        _check_size(*image.size, _MAX_PIXELS)
        image.load()
        if image.mode not in _LABEL_MODES:
            raise ImageError(
                f"a mask of class numbers has one channel, got {image.mode}: save it as a gray or "
                "palette PNG"
            )
        numbers = np.array(_upright(image, _exif_orientation(image)))
        if numbers.max() > 255 or numbers.min() < 0:
            raise ImageError(
                f"class numbers must be 0 to 255, got {numbers.min()} to {numbers.max()}"
            )
        return numbers.astype(np.uint8)


def read_size(source: PathLike | Location | bytes) -> tuple[tuple[int, int], int]:
    """Return height and width of the upright image and its EXIF orientation, from the header.

    Raises:
        ImageError: If the header cannot be read. The pixels may still be damaged.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (7, 5)).save(file, "png")
        >>> read_size(file.getvalue())
        ((5, 7), 1)
    """
    with _explained_errors(source):
        return _upright_size(_open_image(source, _MAX_BYTES))


def _open_file(source: PathLike | Location) -> IO[bytes]:
    if isinstance(source, Location):
        return io.BytesIO(source.read_bytes(_MAX_BYTES))
    return open_regular_file(source)


def find_images(
    paths: PathLike | Iterable[PathLike],
    *,
    omit: PathLike | None = None,
    skip: Callable[[Path], bool] | None = None,
    onerror: Callable[[OSError], object] | None = None,
    report: Callable[[str], object] | None = None,
) -> list[Path]:
    """Return the image files among files and folders.

    A file is returned as it is. A folder is searched recursively for image suffixes, in
    alphabetical order, as `visattn.io.safe_paths.walk_files` does; hidden files and folders are
    skipped, and links to folders are not followed. Unreadable files, such as broken links, are
    included: `read_image` reports the reason.

    Args:
        paths: One path or several.
        omit: A folder that is not searched, because results are written there.
        skip: Called with each other folder below; returns whether it is not searched.
        onerror: Called with the error of each folder that cannot be listed; raised by default.
        report: Called with a sentence about images of formats that are not read, if folders hold
            any; by default it is a warning.

    Raises:
        FileNotFoundError: If a path does not exist, or if there is no image at all.
        OSError: If a folder cannot be listed, and there is no `onerror` or no other image.

    Example:
        >>> find_images("no_such_folder")
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not exist; give image files or folders
    """
    roots = [Path(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    images: list[Path] = []
    others: list[Path] = []
    unlisted: list[OSError] = []
    for path in roots:
        if not path_exists(path):
            raise FileNotFoundError(f"{path} does not exist; give image files or folders")
        if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises without permission)
            # Kept until the end: without any image, the folder that cannot be listed is the reason.
            append = unlisted.append if onerror else None
            files = walk_files(path, exclude=omit, skip=skip, onerror=append)
            for file in files:
                if file.suffix.lower() in image_suffixes():
                    images.append(file)
                elif is_other_image(file):
                    others.append(file)
        else:
            images.append(path)
    if not images:
        places = ", ".join(map(str, roots)) or "an empty list"
        text = f"no image in {places}; looked for {' '.join(image_suffixes())}"
        text += f"; {skipped}" if (skipped := describe_skipped(others)) else ""
        raise unlisted[0] if unlisted else FileNotFoundError(text)
    if others:
        (report or partial(warnings.warn, stacklevel=2))(describe_skipped(others))
    if onerror is not None:
        for error in unlisted:
            onerror(error)
    return list(dict.fromkeys(images))


def make_thumbnail(image: LoadedImage) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image at up to 640 pixels, for notebooks.

    Example:
        >>> make_thumbnail(LoadedImage(np.zeros((900, 1300, 3), np.uint8))).shape
        (300, 434, 3)
    """
    factor = -(-max(image.size) // _THUMBNAIL)
    return np.asarray(Image.fromarray(image.pixels).reduce(factor))


def path_exists(path: Path) -> bool:
    """Return whether the path exists; a broken link counts."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # the reader reports why it cannot be read
        return True
    return True


def _source_name(source: object) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, Location):
        return source.address
    if isinstance(source, Image.Image):
        return str(getattr(source, "filename", "")) or "image"
    if isinstance(source, (bytes, np.ndarray)):
        return "image"
    if isinstance(source, Tensor):
        raise TypeError(
            "a tensor is the input of a model, as visattn.explain, Explainer, overlay and figure "
            "take it; the source of an image must be a path, bytes, a PIL image, an array or a "
            "LoadedImage, got Tensor"
        )
    raise TypeError(
        "the source of an image must be a path, bytes, a PIL image, an array or a LoadedImage, "
        f"got {type(source).__name__}"
    )


def _open_image(
    source: PathLike | Location | bytes | Image.Image | np.ndarray, max_bytes: int
) -> Image.Image:
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, np.ndarray):
        return from_array(source)
    if isinstance(source, Location):
        content = source.read_bytes(max_bytes)
    elif _is_npy(source):
        return from_array(read_array(Path(source)))  # pyright: ignore[reportArgumentType]
    else:
        content = source if isinstance(source, bytes) else _read_bytes(source, max_bytes)
    if not content:
        raise ImageError("the file is empty")
    if len(content) > max_bytes:
        raise ImageError(f"longer than max_bytes, {max_bytes:,} bytes")
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mostly about large images: max_pixels is stricter
        try:
            image = Image.open(io.BytesIO(content), formats=image_formats())
        except UnidentifiedImageError as error:
            if is_heif(content) and not has_heif():
                raise ImageError(
                    f"a HEIF image: to read it, {HEIF_ADVICE}, or convert it to JPEG"
                ) from error
            if content[:4] in _TIFF:
                raise ImageError(
                    "a TIFF that Pillow does not decode, as those of many channels: save its array "
                    "as a .npy file, numpy.save('bands.npy', tifffile.imread('bands.tif'))"
                ) from error
            raise
    if image.format in ("JPEG", "MPO") and count_jpeg_scans(content) > MAX_SCANS:
        raise ImageError(f"a JPEG with more than {MAX_SCANS} scans")
    return image


def _upright_size(image: Image.Image) -> tuple[tuple[int, int], int]:
    """Return height and width of the upright image, and the EXIF orientation of the stored one."""
    orientation = _exif_orientation(image)
    width, height = image.size
    # Pillow reports the size of a TIFF upright already.
    transposed = orientation >= 5 and image.format != "TIFF"
    return (width, height) if transposed else (height, width), orientation


def _read_bytes(path: PathLike, max_bytes: int) -> bytes:
    try:
        file = open_regular_file(path)
    except ValueError as error:
        raise ImageError(str(error).removeprefix(f"{Path(path)} is ")) from error
    with file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise ImageError(f"longer than max_bytes, {max_bytes:,} bytes")
        # The file may have grown since; one byte too many lets `_open_image` see it.
        return file.read(max_bytes + 1)


def _decode_upright(
    image: Image.Image, max_pixels: int, reduction: Callable[[tuple[int, int]], int] | None
) -> tuple[Image.Image, int]:
    """Return the upright RGB image and the EXIF orientation of the stored image."""
    _check_size(*image.size, max_pixels)
    if reduction is not None and image.format in ("JPEG", "MPO"):
        # The reduction takes the upright size, `draft` the stored one. It decodes at 1, 1/2, 1/4 or
        # 1/8 of the size: the smallest that is at least as large as its argument.
        rows, columns = image.size[::-1] if _exif_orientation(image) < 5 else image.size
        factor = reduction((rows, columns))
        image.draft(None, (max(1, image.width // factor), max(1, image.height // factor)))
    # Pillow itself makes a TIFF upright while loading it, pillow-heif a HEIF while opening it.
    applied = _exif_orientation(image) if image.format == "TIFF" else 1
    applied = image.info.get("original_orientation") or applied
    file = getattr(image, "fp", None) if image.format == "PNG" else None  # released by load()
    image.load()  # now, so that a damaged file raises here
    if isinstance(file, io.BytesIO):
        _check_png_rows(image, file)
    orientation = _exif_orientation(image)
    upright = _upright(to_rgb(image), orientation)
    return upright, max(applied, orientation)  # at least one of the two is 1


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image if orientation == 1 else image.transpose(_EXIF_TRANSPOSE[orientation])


def _check_png_rows(image: Image.Image, file: io.BytesIO) -> None:
    """Refuse a truncated PNG: Pillow leaves missing rows black without an error."""
    # Counting rows decompresses the file a second time. A last row that is not black was decoded,
    # unless the file is interlaced: its last pass fills every second row only.
    last = image.crop((0, image.height - 1, image.width, image.height))
    if (image.info.get("interlace") or not np.asarray(last).any()) and png_rows_missing(
        file.getvalue()
    ):
        raise ImageError("the image is truncated: it lacks its last rows")


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if min(width, height) < 1:
        raise ImageError(f"{width} x {height} pixels: the image is empty")
    if width * height > max_pixels:
        raise ImageError(f"{width} x {height} pixels are more than max_pixels, {max_pixels:,}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"{width} x {height} pixels: the aspect ratio exceeds {MAX_ASPECT}")


def _exif_orientation(image: Image.Image) -> int:
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about damaged tags that are not used here
        xmp = {key: image.info.pop(key) for key in _XMP if key in image.info}
        try:
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        except SyntaxError:  # the block is not EXIF; read the file as one without it
            orientation = 1
        finally:
            image.info.update(xmp)
    return orientation if orientation in _EXIF_TRANSPOSE else 1


@contextmanager
def _explained_errors(source: object) -> Iterator[None]:
    """Raise any error of a decoder as one that names the image and the reason."""
    name = printable_name(_source_name(source))
    try:
        yield
    except Exception as error:  # struct.error, zlib.error, SyntaxError, KeyError ...
        raise ImageError(f"{name}: {printable_name(_error_reason(error))}") from error


def _error_reason(error: Exception) -> str:
    if isinstance(error, ImageError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return f"not an image of a known format ({', '.join(image_formats())})"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, (OSError, ValueError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def is_result_folder(folder: Path) -> bool:
    """Return whether a folder has an index page of visattn: the images in it are results.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> tag = '<meta name="generator" content="visattn">'
        >>> _ = (folder / "index.html").write_text(tag)
        >>> is_result_folder(folder), is_result_folder(folder.parent)
        (True, False)
    """
    try:
        with open_regular_file(folder / "index.html") as page:
            return _GENERATOR in page.read(_HEAD_OF_PAGE)
    except (OSError, ValueError):
        return False
