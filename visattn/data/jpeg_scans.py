"""How often a JPEG goes over its picture: a few kilobytes can ask for that thousands of times."""

import re

_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]", re.DOTALL)
_ALONE = {0x01, 0xD8}  # markers without content
_SCAN, _END = 0xDA, 0xD9


def scan_count(content: bytes) -> int:
    """Return the number of scans of the first picture in the content of a JPEG.

    Previews inside the head are not counted, nor is what follows the end of the picture: other
    pictures, or a film.

    Args:
        content: From the first byte on; it may be damaged.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (7, 5)).save(file, "jpeg")
        >>> scan_count(file.getvalue())
        1

    Source:
        ITU-T T.81, annex B.
    """
    scans, at = 0, 2
    while found := _MARKER.search(content, at):
        kind, at = content[found.end() - 1], found.end()
        if kind == _END:
            break
        scans += kind == _SCAN
        if kind not in _ALONE:
            at += max(2, int.from_bytes(content[at : at + 2], "big"))
    return scans
