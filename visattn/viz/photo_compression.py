"""Photos in PDF and SVG as JPEG, which matplotlib writes as PNG of many times the size."""

import base64
import io
import re
import struct
import zlib

from PIL import Image

_QUALITY = 95  # without chroma subsampling: edges of cells and hatching stay sharp
_WORTH = 0.6  # share of the size below which a photo becomes JPEG; flat colors are small as PNG
_SVG_IMAGE = re.compile(rb"data:image/png;base64,([A-Za-z0-9+/=\s]+)")
_PDF_OBJECT = re.compile(rb"\n(\d+) 0 obj\n")
_PDF_IMAGE = re.compile(
    rb"<< /Type /XObject /Subtype /Image /Width (\d+) /Height (\d+)\n/ColorSpace /DeviceRGB "
    rb"/BitsPerComponent 8 /Filter /FlateDecode\n/DecodeParms << [^>]* >> "
    rb"/Length (\d+) 0 R >>\nstream\n"
)


def with_jpeg_photos(document: bytes, kind: str) -> bytes:
    """Return a PDF or SVG file of matplotlib whose photos are JPEG; whatever is smaller stays PNG.

    Args:
        document: The file.
        kind: `pdf` or `svg`.

    Example:
        >>> with_jpeg_photos(b"<svg/>", "svg")
        b'<svg/>'
    """
    if kind == "pdf":
        return _pdf(document)
    return _SVG_IMAGE.sub(lambda match: _svg_image(match[0], match[1]), document)


def _svg_image(whole: bytes, coded: bytes) -> bytes:
    jpeg = _jpeg(base64.b64decode(coded))
    return whole if jpeg is None else b"data:image/jpeg;base64," + base64.b64encode(jpeg)


def _jpeg(png: bytes) -> bytes | None:
    """Return an image as JPEG if that is much smaller, and it has no transparency."""
    with Image.open(io.BytesIO(png)) as image:
        if image.mode not in ("RGB", "RGBA") or image.getextrema()[3:] not in ((), ((255, 255),)):
            return None
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "jpeg", quality=_QUALITY, subsampling=0)
    jpeg = buffer.getvalue()
    return jpeg if len(jpeg) < _WORTH * len(png) else None


def _pdf(document: bytes) -> bytes:
    """Return the file with its images exchanged, and the table of places of its objects anew."""
    end = document.rindex(b"\nxref\n")
    starts = [match.start() + 1 for match in _PDF_OBJECT.finditer(document, 0, end)]
    objects = _objects(document, starts, end)
    for number, content in list(objects.items()):
        header = _PDF_IMAGE.match(content)
        if header is None:
            continue
        width, height, length = map(int, header.groups())
        size = int(objects[length].split()[0])
        jpeg = _jpeg(_png(width, height, content[header.end() : header.end() + size]))
        if jpeg is not None:
            first = f"<< /Type /XObject /Subtype /Image /Width {width} /Height {height}\n"
            kept = "/ColorSpace /DeviceRGB /BitsPerComponent 8 /Filter /DCTDecode "
            head = f"{first}{kept}/Length {length} 0 R >>\nstream\n".encode()
            objects[number] = head + jpeg + b"\nendstream\nendobj\n"
            objects[length] = b"%d\nendobj\n" % len(jpeg)
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


def _png(width: int, height: int, stream: bytes) -> bytes:
    """Return rows of RGB, compressed with the filters of PNG as in PDF, as a PNG file."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", stream), (b"IEND", b""))
    coded = (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(coded)
