"""The one reader of images: whatever comes in, upright RGB or a single clear error comes out."""

import io
import os
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import ExifTags, Image, UnidentifiedImageError

from visattn.data.images.integrity import rows_missing, scan_count
from visattn.data.images.rgb import from_array, to_rgb
from visattn.io.regular_files import open_regular
from visattn.io.safe_paths import walk_files
from visattn.io.safe_text import named

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib",
    ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".avif",
)  # fmt: skip
MAX_SCANS = 100  # of a JPEG; files from cameras and programs have up to about twelve
MAX_ASPECT = 100  # a longer strip would explode when its short side is resized to a network's input

_TURNS = {  # EXIF code -> what makes the stored pixels upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_QUIET = threading.Lock()  # warning filters belong to the whole process: one thread at a time

PathLike = str | os.PathLike[str]


class ImageError(ValueError):
    """An image cannot be read; the message names the image and the reason."""


@dataclass(frozen=True, eq=False, repr=False)
class LoadedImage:
    """An upright image.

    Args:
        pixels: RGB, 0 to 255.
        orientation: EXIF code, 1 to 8: how the pixels lie in the file.
        name: The file as it was named, or `image`.

    Example:
        >>> LoadedImage(np.zeros((2, 3, 3), dtype=np.uint8)).size
        (2, 3)
    """

    pixels: UInt8[np.ndarray, "y x 3"]
    orientation: int = 1
    name: str = "image"

    def __repr__(self) -> str:
        """Return name and size in one line."""
        return f"Image({self.name!r}, {self.size[0]} x {self.size[1]})"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, upright, in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]


def read_image(
    source: PathLike | bytes | Image.Image | np.ndarray | LoadedImage,
    *,
    max_bytes: int = 256 * 2**20,
    max_pixels: int = 64_000_000,
) -> LoadedImage:
    """Return an image upright, in RGB, with 8 bits, whatever it was before.

    An animation gives its first frame. Transparent pixels show white. 16-bit values are scaled by
    255/65535; wider integers and floats in a file by their own range, with NaN as black. Color
    profiles are not applied.

    Args:
        source: A file (JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, AVIF), the bytes of one, an image of
            Pillow, an array as `visattn.data.images.rgb.from_array` takes it, or a `LoadedImage`,
            which comes back as it is.
        max_bytes: The longest file that is opened.
        max_pixels: The largest image that is decoded. Pillow has a limit of its own, twice
            `PIL.Image.MAX_IMAGE_PIXELS`.

    Raises:
        ImageError: If the image cannot be read, for whatever reason; the cause is chained.
        TypeError: If `source` is of another kind.

    Example:
        >>> read_image(np.array([[0, 257, 65535]], dtype=np.uint16)).pixels[0, :, 0]
        array([  0,   1, 255], dtype=uint8)
        >>> read_image(b"no image")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        visattn.data.images.reader.ImageError: image: not an image of a known format (JPEG, ...
    """
    if isinstance(source, LoadedImage):
        return source
    name = _name(source)
    try:
        return LoadedImage(*_upright(_opened(source, max_bytes), max_pixels), name)
    except Exception as error:  # decoders leak struct.error, zlib.error, SyntaxError, KeyError ...
        raise ImageError(f"{named(name)}: {named(_reason(error))}") from error


def read_size(
    source: PathLike | bytes, *, max_bytes: int = 256 * 2**20
) -> tuple[tuple[int, int], int]:
    """Return height and width of the upright image, and its EXIF code, from the file's head.

    Args:
        source: A file, or the bytes of one, as `read_image` takes it.
        max_bytes: The longest file that is opened.

    Raises:
        ImageError: If the head cannot be read. What follows it may still be damaged.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (7, 5)).save(file, "png")
        >>> read_size(file.getvalue())
        ((5, 7), 1)
    """
    try:
        image = _opened(source, max_bytes)
        code = _orientation(image)
    except Exception as error:
        raise ImageError(f"{named(_name(source))}: {named(_reason(error))}") from error
    width, height = image.size
    lies = code >= 5 and image.format != "TIFF"  # on its side; of a TIFF, Pillow says it upright
    return (width, height) if lies else (height, width), code


def find_images(
    paths: PathLike | Iterable[PathLike],
    *,
    omit: PathLike | None = None,
    onerror: Callable[[OSError], object] | None = None,
) -> list[Path]:
    """Return the images among files and folders.

    A file is taken as it is given. A folder is searched with all it holds for names that end as
    images do, in alphabetical order, as `visattn.io.safe_paths.walk_files` does; hidden files and
    folders are left out, and links to folders are not followed. What cannot be read, such as a
    link that leads nowhere, is among them: `read_image` says why.

    Args:
        paths: One path or several.
        omit: A folder below those that is not searched, as results are written there.
        onerror: Takes the error of each folder that cannot be listed; by default it is raised.

    Raises:
        FileNotFoundError: If a path does not exist, or if there is no image at all.
        OSError: If a folder cannot be listed, and there is no `onerror` or no image elsewhere.

    Example:
        >>> find_images("no_such_folder")
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not exist; give image files or folders
    """
    given = [Path(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    found: list[Path] = []
    unlisted: list[OSError] = []
    for path in given:
        if not _is_there(path):
            raise FileNotFoundError(f"{path} does not exist; give image files or folders")
        if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises where it may not look)
            files = walk_files(path, omit=omit, onerror=unlisted.append if onerror else None)
            found += [file for file in files if file.suffix.lower() in SUFFIXES]
        else:
            found.append(path)
    if not found:
        places = ", ".join(map(str, given)) or "an empty list"
        missing = FileNotFoundError(f"no image in {places}; looked for {' '.join(SUFFIXES)}")
        raise unlisted[0] if unlisted else missing
    if onerror is not None:
        for error in unlisted:
            onerror(error)
    return list(dict.fromkeys(found))


def _is_there(path: Path) -> bool:
    """Whether there is something of this name, be it a link that leads nowhere."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # whoever reads it says why it cannot be read
        return True
    return True


def _name(source: object) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, Image.Image):
        return str(getattr(source, "filename", "")) or "image"
    if isinstance(source, (bytes, np.ndarray)):
        return "image"
    raise TypeError(
        "an image must be a path, bytes, an image of Pillow, an array or a Image, "
        f"got {type(source).__name__}"
    )


def _opened(source: PathLike | bytes | Image.Image | np.ndarray, max_bytes: int) -> Image.Image:
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, np.ndarray):
        return from_array(source)
    content = source if isinstance(source, bytes) else _content(source, max_bytes)
    if not content:
        raise ImageError("the file is empty")
    if len(content) > max_bytes:
        raise ImageError(f"longer than max_bytes, {max_bytes:,} bytes")
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large images above all: ours is the stricter limit
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    if image.format in ("JPEG", "MPO") and scan_count(content) > MAX_SCANS:
        raise ImageError(f"a JPEG that goes more than {MAX_SCANS} times over its image")
    return image


def _content(path: PathLike, max_bytes: int) -> bytes:
    try:
        file = open_regular(path)
    except ValueError as error:
        raise ImageError(str(error).removeprefix(f"{Path(path)} is ")) from error
    with file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise ImageError(f"longer than max_bytes, {max_bytes:,} bytes")
        return file.read(max_bytes + 1)


def _upright(image: Image.Image, max_pixels: int) -> tuple[UInt8[np.ndarray, "y x 3"], int]:
    """Return upright RGB pixels and the EXIF code they had."""
    _check_size(*image.size, max_pixels)
    turned = _orientation(image) if image.format == "TIFF" else 1  # by Pillow, while it is loaded
    file = getattr(image, "fp", None) if image.format == "PNG" else None  # loading lets it go
    image.load()  # at once, so that a damaged file is found here and not later
    if isinstance(file, io.BytesIO):
        _check_rows(image, file)
    left = _orientation(image)
    rgb = to_rgb(image)
    upright = rgb if left == 1 else rgb.transpose(_TURNS[left])
    return np.array(upright), max(turned, left)  # at least one of the two is 1


def _check_rows(image: Image.Image, file: io.BytesIO) -> None:
    """Refuse a PNG without its last rows: Pillow leaves these black and says nothing."""
    last = image.crop((0, image.height - 1, image.width, image.height))
    if (image.info.get("interlace") or not np.asarray(last).any()) and rows_missing(
        file.getvalue()
    ):
        raise ImageError("the image is truncated: it lacks its last rows")


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if min(width, height) < 1:
        raise ImageError(f"{width} x {height} pixels: nothing to see")
    if width * height > max_pixels:
        raise ImageError(f"{width} x {height} pixels are more than max_pixels, {max_pixels:,}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(
            f"{width} x {height} pixels: longer than {MAX_ASPECT} times its short side"
        )


def _orientation(image: Image.Image) -> int:
    with _QUIET, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about damage in tags that are of no interest here
        try:
            code = image.getexif().get(ExifTags.Base.Orientation, 1)
        except SyntaxError:  # the block is no EXIF; the pixels are as good as in a file without one
            code = 1
    return code if code in _TURNS else 1


def _reason(error: Exception) -> str:
    if isinstance(error, ImageError):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return f"not an image of a known format ({', '.join(FORMATS)})"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, (OSError, ValueError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")
