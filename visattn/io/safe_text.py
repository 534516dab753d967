"""Files of text that somebody else wrote: no longer than is sensible, UTF-8, JSON without traps."""

import json
import os
import re
import reprlib
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from visattn.io.regular_files import open_regular

LARGEST = 2**30  # bytes
CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")  # and halves of a character
_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 60, 60, 40


def bounded_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Return the content of a file.

    Args:
        path: Of a regular file.
        most: The longest file that is read, in bytes.

    Raises:
        ValueError: If it is no regular file, or longer; nothing has been read then.
        OSError: If it cannot be opened.

    Example:
        >>> file = getfixture("tmp_path") / "a.txt"
        >>> _ = file.write_text("a dog")
        >>> bounded_bytes(file)
        b'a dog'
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise ValueError(f"{path} is longer than {most:,} bytes, it has {size:,}")
    return content


def unpacked_gzip(content: bytes, most: int = LARGEST) -> bytes:
    """Return what gzip packed, if that is not too long.

    Args:
        content: One or several members, as the program gzip writes them.
        most: The longest content that is unpacked, in bytes.

    Raises:
        ValueError: If it is damaged, cut off, or longer; no more than `most` was unpacked.

    Example:
        >>> import gzip
        >>> unpacked_gzip(gzip.compress(b"a dog"))
        b'a dog'
    """
    found = bytearray()
    while content:
        member = zlib.decompressobj(wbits=31)
        try:
            found += member.decompress(content, most + 1 - len(found))
        except zlib.error as error:
            raise ValueError(f"damaged gzip ({error})") from error
        if len(found) > most:
            raise ValueError(f"more than {most:,} bytes when it is unpacked")
        if not member.eof:
            raise ValueError("damaged gzip (cut off)")
        content = member.unused_data.lstrip(b"\0")
    return bytes(found)


def plain_text(content: bytes) -> str:
    r"""Return a text, without the mark that some programs put before it.

    Raises:
        ValueError: If it is not UTF-8, or holds a NUL, which no text does; with the line.

    Example:
        >>> plain_text(b"\xef\xbb\xbfcaf\xc3\xa9")
        'café'
        >>> plain_text("a dog".encode("utf-16"))
        Traceback (most recent call last):
        ValueError: line 1: not UTF-8, byte 0xff at offset 0 (it begins as UTF-16 does); ...
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at, fault = error.start, f"not UTF-8, byte {content[error.start]:#04x} at offset"
    else:
        if "\0" not in text:
            return text
        at, fault = content.index(b"\0"), "a NUL, which no text holds, at offset"
    line = content.count(b"\n", 0, at) + 1
    kind = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
    guess = f" (it begins as {kind} does)" if kind else ""
    raise ValueError(f"line {line}: {fault} {at}{guess}; write the file as UTF-8")


def parsed_json(text: str, line: int = 1) -> Any:
    """Return what a text in JSON says.

    Args:
        text: The whole of it.
        line: On which line of its file it begins.

    Raises:
        ValueError: If it is no JSON, a key stands twice in one object, a number has thousands of
            digits, or lists lie in lists without end; with line and column where they are known.

    Example:
        >>> parsed_json('{"a": [1, 2]}')
        {'a': [1, 2]}
        >>> parsed_json('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: line 1: no JSON (the key 'a' stands twice in one object)
    """
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" starting at")
        where = f"line {line + error.lineno - 1}, column {error.colno}"
    except ValueError as error:
        where, reason = f"line {line}", str(error)
    except RecursionError:
        where, reason = f"line {line}", "lists within lists without end"
    raise ValueError(f"{where}: no JSON ({reason})")


def shown(value: object) -> str:
    r"""Return a value as a message shows it: short, on one line, without control characters.

    Example:
        >>> shown(list(range(100)))
        '[0, 1, 2, 3, 4, 5, ...]'
    """
    text = _SHORT.repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def named(name: str) -> str:
    r"""Return a name as a message shows it: as it is, unless that would spoil the line.

    Example:
        >>> named("a.jpg"), named("a\x1b[2J.jpg")
        ('a.jpg', "'a\\x1b[2J.jpg'")
    """
    short = name if len(name) <= 300 else name[:297] + "..."
    return short if short.isprintable() else repr(short)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {shown(twice)} stands twice in one object")
    return held
