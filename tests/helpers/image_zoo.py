"""Image files of every kind, and files that are not images, all generated here."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from visattn.images.formats import image_formats

COLORS = np.random.default_rng(5).integers(0, 256, (13, 19, 3), dtype=np.uint8)  # [y x 3]
PHOTO = Image.fromarray(COLORS)
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # EXIF code -> how an upright image comes to lie in the file


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of these chunks with valid checksums."""
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (*chunks, (b"IEND", b""))
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def header(width: int, height: int, *, depth: int = 8, kind: int = 0) -> tuple[bytes, bytes]:
    return b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)


def frames(form: str) -> bytes:
    first, second = Image.new("RGB", (7, 5), (255, 0, 0)), Image.new("RGB", (7, 5), (0, 0, 255))
    options = {"lossless": True} if form == "WEBP" else {}
    return saved(first, form, save_all=True, append_images=[second], **options)


def transparent_palette() -> bytes:
    image = Image.new("P", (2, 1))
    image.putpalette([200, 10, 10, 0, 0, 0])
    image.putpixel((1, 0), 1)
    return saved(image, "PNG", transparency=0)


def interlaced() -> bytes:
    """A PNG of a single gray pixel in the first of seven passes."""
    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 1)
    return png((b"IHDR", head), (b"IDAT", zlib.compress(b"\0\x6b")))


def flat_bmp(width: int, height: int) -> bytes:
    """A BMP with this size in its header and no pixels."""
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, *[0] * 6)


def many_scans(count: int, width: int = 64, height: int = 64) -> bytes:
    """A progressive JPEG that repeats its last, empty refinement scan."""
    whole = saved(Image.new("L", (width, height), 90), "JPEG", progressive=True)
    last, end = whole.rindex(b"\xff\xda"), whole.rindex(b"\xff\xd9")
    return whole[:last] + whole[last:end] * count + b"\xff\xd9"


ZOO: dict[str, bytes] = {
    "jpeg": saved(PHOTO, "JPEG"),
    "progressive jpeg": saved(PHOTO, "JPEG", progressive=True),
    "cmyk jpeg": saved(PHOTO.convert("CMYK"), "JPEG"),
    "gray jpeg": saved(PHOTO.convert("L"), "JPEG"),
    "mpo": saved(PHOTO, "MPO", save_all=True, append_images=[PHOTO]),
    "turned jpeg": saved(
        PHOTO,
        "JPEG",
        exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
    ),
    "png": saved(PHOTO, "PNG"),
    "palette png": saved(PHOTO.quantize(16), "PNG"),
    "transparent palette png": transparent_palette(),
    "rgba png": saved(PHOTO.convert("RGBA"), "PNG"),
    "la png": saved(PHOTO.convert("LA"), "PNG"),
    "1-bit png": saved(PHOTO.convert("1"), "PNG"),
    "16-bit png": saved(Image.fromarray(np.full((5, 7), 777, np.uint16)), "PNG"),
    "interlaced png": interlaced(),
    "animated png": frames("PNG"),
    "webp": saved(PHOTO, "WEBP"),
    "lossless webp": saved(PHOTO, "WEBP", lossless=True),
    "animated webp": frames("WEBP"),
    "gif": saved(PHOTO, "GIF"),
    "animated gif": frames("GIF"),
    "bmp": saved(PHOTO, "BMP"),
    "tiff": saved(PHOTO, "TIFF"),
    "lzw tiff": saved(PHOTO, "TIFF", compression="tiff_lzw"),
    "cmyk tiff": saved(PHOTO.convert("CMYK"), "TIFF"),
    "lab tiff": saved(Image.new("LAB", (7, 5), (128, 128, 128)), "TIFF"),
    "16-bit tiff": saved(Image.fromarray(np.full((5, 7), 777, np.uint16)), "TIFF"),
    "float tiff": saved(Image.fromarray(np.eye(7, dtype=np.float32)), "TIFF"),
    "animated tiff": frames("TIFF"),
    "ppm": saved(PHOTO, "PPM"),
    "16-bit ppm": b"P5 2 1 65535\n\x00\x00\xff\xff",
    "plain ppm": b"P3 2 1 255\n1 2 3 4 5 6\n",
    "avif": saved(PHOTO, "AVIF"),
    "animated avif": frames("AVIF"),
}
if "HEIF" in image_formats():  # the extra `heif`
    ZOO["heic"] = saved(PHOTO, "HEIF", quality=80)


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not an image of a known format"),
    "html": (b"<!doctype html><title>404</title>", "not an image of a known format"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image of a known format"),
    "heic": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIF|heif|[Ii]nvalid|known"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "known format"),
    "pickle": (b"\x80\x04\x95\x1e\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system", "known format"),
    "truncated jpeg": (ZOO["jpeg"][:-200], "truncated"),
    "truncated header": (ZOO["jpeg"][:300], "Truncated File Read"),
    "truncated png": (ZOO["png"][:-200], "image: "),
    "wrong checksum": (ZOO["png"][:29] + b"\0\0\0\0" + ZOO["png"][33:], "image: "),
    "one flipped bit": (
        ZOO["png"][:45] + bytes([ZOO["png"][45] ^ 4]) + ZOO["png"][46:],
        "image: ",
    ),
    "no width": (png(header(0, 10)), "image: "),
    "no height": (b"P5 7 0 255\n", "image: "),
    "truncated webp": (ZOO["webp"][:40], "image: "),
    "truncated gif": (ZOO["gif"][:40], "image: "),
    "truncated tiff": (ZOO["lzw tiff"][:60], "image: "),
    "truncated bmp": (ZOO["bmp"][:60], "truncated"),
    "truncated ppm": (ZOO["ppm"][:60], "truncated|not enough"),
    "truncated avif": (ZOO["avif"][:-60], "image: "),
    "20000 x 20000": (png(header(20000, 20000)), "exceeds limit|pixels are more than"),
    "13000 x 13000": (png(header(13000, 13000)), "13000 x 13000 pixels are more than"),
    "8001 x 8000": (png(header(8001, 8000)), "more than 64,000,000"),
    "a wide bmp": (flat_bmp(2**30, 2**20), "exceeds limit|pixels are more than"),
    "a large ppm": (b"P6 99999 99999 255\n", "exceeds limit|pixels are more than"),
    "a strip": (png(header(101, 1)), "the aspect ratio of 101 x 1 pixels exceeds 100"),
    "text bomb": (
        png(header(1, 1), (b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8), 1))),
        "Decompressed data too large",
    ),
    "a thousand scans": (many_scans(1000), "a JPEG must have at most 100 scans"),
}
