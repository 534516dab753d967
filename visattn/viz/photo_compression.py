"""Photos in PDF and SVG as JPEG; matplotlib would write them as PNG, slowly and much larger.

It is handed a strip of one row in the place of each photo, whose width is the number of the photo;
the strips of the file are exchanged for JPEG afterwards.
"""

import base64
import io
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

_QUALITY = 95  # without chroma subsampling: edges of cells and hatching stay sharp
_FEW_COLORS = 256  # that a palette holds: matplotlib keeps these exactly, and small
_FIRST = 50_000  # width of the first strip: no image of one row is as wide
_SVG_IMAGE = re.compile(rb"<image [^>]*>")
_SVG_WIDTH = re.compile(rb' width="(\d+)"')
_SVG_LINK = re.compile(rb' xlink:href="[^"]*"')
_PDF_OBJECT = re.compile(rb"\n(\d+) 0 obj\n")
_PDF_IMAGE = re.compile(rb"<< /Type /XObject /Subtype /Image /Width (\d+) /Height 1\n")
_PDF_LENGTH = re.compile(rb"/Length (\d+) 0 R >>\nstream\n")

Pixels = UInt8[np.ndarray, "_y _x _c"]


def is_photo(pixels: Pixels) -> bool:
    """Whether an image is opaque and has more colors than a palette.

    Args:
        pixels: RGB, or RGBA.

    Example:
        >>> noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
        >>> is_photo(noise), is_photo(np.zeros((30, 40, 3), np.uint8))
        (True, False)
    """
    if pixels.shape[2] == 4 and bool((pixels[..., 3] < 255).any()):
        return False
    return Image.fromarray(pixels[..., :3]).getcolors(_FEW_COLORS) is None


def strip_of(number: int) -> Pixels:
    """Return what stands for a photo until `with_photos`.

    Args:
        number: Number of the photo, from 0.

    Example:
        >>> strip_of(2).shape
        (1, 50002, 3)
    """
    return np.zeros((1, _FIRST + number, 3), np.uint8)


def with_photos(document: bytes, kind: str, photos: Sequence[Pixels]) -> bytes:
    """Return a PDF or SVG file of matplotlib with photos, as JPEG, in the places of strips.

    Args:
        document: The file.
        kind: `pdf` or `svg`.
        photos: The photos by number.

    Example:
        >>> with_photos(b"<svg/>", "svg", [])
        b'<svg/>'
    """
    if kind == "pdf":
        return _pdf(document, photos)

    def photo(match: re.Match[bytes]) -> bytes:
        width = _SVG_WIDTH.search(match[0])
        if width is None or int(width[1]) < _FIRST:
            return match[0]
        # Viewers would keep the proportions of the photo inside of those of the strip.
        attributes = b' preserveAspectRatio="none" xlink:href="data:image/jpeg;base64,%s"'
        coded = base64.b64encode(_jpeg(photos[int(width[1]) - _FIRST]))
        return _SVG_LINK.sub(attributes % coded, match[0])

    return _SVG_IMAGE.sub(photo, document)


def _jpeg(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(pixels[..., :3]))
    image.save(buffer, "jpeg", quality=_QUALITY, subsampling=0)
    return buffer.getvalue()


def _pdf(document: bytes, photos: Sequence[Pixels]) -> bytes:
    """Return the file with its photos, and the table of places of its objects anew."""
    end = document.rindex(b"\nxref\n")
    starts = [match.start() + 1 for match in _PDF_OBJECT.finditer(document, 0, end)]
    objects = _objects(document, starts, end)
    for number, content in list(objects.items()):
        header, length = _PDF_IMAGE.match(content), _PDF_LENGTH.search(content)
        if header is None or length is None or int(header[1]) < _FIRST:
            continue
        photo = photos[int(header[1]) - _FIRST][::-1]  # from the bottom to the top
        height, width = photo.shape[:2]
        jpeg = _jpeg(photo)
        first = f"<< /Type /XObject /Subtype /Image /Width {width} /Height {height}\n"
        kept = "/ColorSpace /DeviceRGB /BitsPerComponent 8 /Filter /DCTDecode "
        head = f"{first}{kept}/Length {int(length[1])} 0 R >>\nstream\n".encode()
        objects[number] = head + jpeg + b"\nendstream\nendobj\n"
        objects[int(length[1])] = b"%d\nendobj\n" % len(jpeg)
    return _joined(document[: starts[0]], objects, document[document.rindex(b"trailer\n") :])


def _objects(document: bytes, starts: list[int], end: int) -> dict[int, bytes]:
    """Return the content of each object; in a stream nothing that looks like one begins another."""
    places = _table(document)
    true = [start for start in starts if start in places]
    pairs = zip(true, [*true[1:], end + 1], strict=True)
    return {
        places[start]: document[document.index(b"\n", start) + 1 : after] for start, after in pairs
    }


def _table(document: bytes) -> dict[int, int]:
    """Return the number of the object at each place, as the table of the file has it."""
    lines = document[document.rindex(b"\nxref\n") + 6 :].splitlines()
    count = int(lines[0].split()[1])
    return {int(line.split()[0]): number for number, line in enumerate(lines[1 : count + 1])
            if line.split()[2] == b"n"}  # fmt: skip


def _joined(head: bytes, objects: dict[int, bytes], trailer: bytes) -> bytes:
    """Return a file of these objects."""
    parts, places, at = [head], {}, len(head)
    for number, content in objects.items():
        places[number] = at
        parts.append(b"%d 0 obj\n" % number + content)
        at += len(parts[-1])
    rows = [f"{places[number]:010d} 00000 n \n" for number in range(1, len(objects) + 1)]
    table = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{''.join(rows)}"
    trailer = re.sub(rb"startxref\n\d+", b"startxref\n%d" % at, trailer)
    return b"".join([*parts, table.encode(), trailer])
