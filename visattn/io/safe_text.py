"""Untrusted files: regular files only, bounded size, strict UTF-8, JSON without duplicate keys.

Names of files, configs, classes and words may contain control sequences that move the cursor,
change the window title or hide text. Everything that visattn prints goes through `terminal_text`.
"""

import gc
import gzip
import json
import os
import re
import reprlib
import stat
import sys
import warnings
import xml.etree.ElementTree as ET
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, TextIO

MAX_BYTES = 2**30
CONTROL_CHARACTERS = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff]")  # and surrogates
_SHORTENER = reprlib.Repr()
_SHORTENER.maxlevel = 3
_SHORTENER.maxstring = 60
_SHORTENER.maxother = 60
_SHORTENER.maxlong = 40


def open_regular_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading bytes; used for all user data except weights.

    Anything else raises at once: opening a pipe would wait for a writer, and a device may never
    end.

    Raises:
        ValueError: If it is a pipe, a socket, a device or a directory.
        OSError: If the file does not exist or cannot be opened.

    Example:
        >>> open_regular_file(os.devnull)
        Traceback (most recent call last):
        ValueError: /dev/null is not a regular file
    """
    file = Path(path)
    if stat.S_ISREG(file.stat().st_mode):
        # The file may have been replaced since; O_NONBLOCK keeps a pipe from blocking.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    raise ValueError(f"{file} is not a regular file")


def read_bytes_bounded(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file of limited size.

    Raises:
        ValueError: If it is not a regular file, or is too long; nothing is read then.
        OSError: If the file cannot be opened.

    Example:
        >>> file = getfixture("tmp_path") / "a.txt"
        >>> _ = file.write_text("a dog")
        >>> read_bytes_bounded(file)
        b'a dog'
    """
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(max_bytes + 1) if size <= max_bytes else b""
    if max(size, len(content)) > max_bytes:
        raise ValueError(f"{path} is longer than {max_bytes:,} bytes, it has {size:,}")
    return content


def decompress_gzip(content: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """Decompress gzip members up to a limited size.

    Raises:
        ValueError: If the content is damaged, truncated or too long; decompression stops there.

    Example:
        >>> decompress_gzip(gzip.compress(b"a dog"))
        b'a dog'
    """
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            output = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"damaged gzip ({error})") from error
    if len(output) > max_bytes:
        raise ValueError(f"more than {max_bytes:,} bytes after decompression")
    return output


def decode_utf8(content: bytes) -> str:
    r"""Decode UTF-8 text, without a byte order mark.

    Raises:
        ValueError: If the content is not UTF-8 or holds a NUL byte; the message names the line.

    Example:
        >>> decode_utf8(b"\xef\xbb\xbfcaf\xc3\xa9")
        'café'
        >>> decode_utf8("a dog".encode("utf-16"))
        Traceback (most recent call last):
        ValueError: line 1: not UTF-8, byte 0xff at offset 0; save the file as UTF-8
    """
    try:
        text = content.decode("utf-8-sig")
        offset = content.find(b"\0")
    except UnicodeDecodeError as error:
        text, offset = "", error.start
    if offset < 0:
        return text
    line = content.count(b"\n", 0, offset) + 1
    raise ValueError(
        f"line {line}: not UTF-8, byte {content[offset]:#04x} at offset {offset}; save the file as "
        "UTF-8"
    )


def parse_json(text: str, line: int = 1) -> Any:
    """Parse a JSON document strictly.

    Args:
        text: The document.
        line: The line of the file on which it begins.

    Raises:
        ValueError: If the text is not valid JSON, an object has a duplicate key, a number has
            thousands of digits, or the nesting is too deep. The message names line and column
            if they are known.

    Example:
        >>> parse_json('{"a": [1, 2]}')
        {'a': [1, 2]}
        >>> parse_json('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: line 1: invalid JSON (duplicate key 'a' in one object)
    """
    try:
        with paused_garbage_collection():
            return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" starting at")
        where = f"line {line + error.lineno - 1}, column {error.colno}"
    except ValueError as error:
        where = f"line {line}"
        reason = str(error)
    except RecursionError:
        where = f"line {line}"
        reason = "nested too deeply"
    raise ValueError(f"{where}: invalid JSON ({reason})")


def read_json(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Return the content of a JSON file, as `parse_json` reads it.

    Raises:
        ValueError: If the file is too long, not UTF-8 or not valid JSON; the message names it.
        OSError: If the file cannot be opened.

    Example:
        >>> file = getfixture("tmp_path") / "a.json"
        >>> _ = file.write_text('{"a": [1, 2]}')
        >>> read_json(file)
        {'a': [1, 2]}
    """
    with reading(path):
        return parse_json(decode_utf8(read_bytes_bounded(path, max_bytes)))


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collection while many objects are created.

    It would scan all live objects again and again: reading a large JSON file takes four times as
    long, and analyzing a small network triggers a scan of all of torch, 0.2 s.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def parse_xml(content: bytes) -> ET.Element:
    """Parse an XML document without entity definitions, which could expand without bound.

    Raises:
        ValueError: If it defines entities, or is not XML.

    Example:
        >>> parse_xml(b"<a><b>7</b></a>").findtext("b")
        '7'
    """
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise ValueError("XML must not define entities (DOCTYPE, ENTITY); remove the definitions")
    try:
        return ET.fromstring(content)
    except ET.ParseError as error:
        raise ValueError(f"invalid XML: {error}") from None


@contextmanager
def reading(path: object, entry: str = "") -> Iterator[None]:
    """Add the file and the entry to errors that Python raises while a file is read.

    Args:
        path: The file.
        entry: The entry in it, such as `annotations[3]`.

    Raises:
        ValueError: For invalid values, missing keys and wrong types.

    Example:
        >>> with reading("boxes.json", "annotations[3]"):
        ...     {"id": 7}["bbox"]
        Traceback (most recent call last):
        ValueError: boxes.json, annotations[3]: no 'bbox'
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError,
            RecursionError) as error:  # fmt: skip
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        where = f"{path}, {entry}" if entry else str(path)
        if reason.startswith(str(path)):  # already has the location
            raise
        reason = terminal_text(reason or type(error).__name__)[:1000]
        raise ValueError(f"{where}: {reason}") from error


def short_repr(value: object) -> str:
    r"""Return a short one-line repr of a value for messages, without control characters.

    Example:
        >>> short_repr(list(range(100)))
        '[0, 1, 2, 3, 4, 5, ...]'
    """
    text = CONTROL_CHARACTERS.sub(" ", _SHORTENER.repr(value))
    return text if len(text) <= 100 else text[:97] + "..."


def printable_name(name: str) -> str:
    r"""Return a name for messages: unchanged if it is printable, else its repr.

    Example:
        >>> printable_name("a.jpg"), printable_name("a\x1b[2J.jpg")
        ('a.jpg', "'a\\x1b[2J.jpg'")
    """
    short = name if len(name) <= 300 else name[:297] + "..."
    return short if short.isprintable() else repr(short)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"duplicate key {short_repr(key)} in one object")
    return result


# Control characters, surrogates, line separators and bidirectional controls.
_UNSAFE = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def terminal_text(text: str, *, keep: str = "") -> str:
    r"""Return untrusted text on one line, with control characters escaped.

    Control characters in `keep`, such as line breaks, are kept.

    Example:
        >>> terminal_text("a\tred\x1b[2J dog")
        'a\\tred\\x1b[2J dog'
    """
    return _UNSAFE.sub(
        lambda match: match[0] if match[0] in keep else match[0].encode("unicode_escape").decode(),
        text,
    )


def print_message(text: str) -> None:
    """Print a message on stderr, or nothing if stderr is closed."""
    if sys.stderr is None:  # print would write to stdout
        return
    try:
        line = f"visattn: {terminal_text(text, keep=chr(10))}"
        print(line, file=sys.stderr, flush=True)  # noqa: T201
    except (OSError, ValueError):  # closed, or without a reader
        silence(sys.stderr)


def print_text(text: str) -> None:
    """Print lines on stdout, with control characters escaped."""
    print(terminal_text(text, keep="\n"))  # noqa: T201


@contextmanager
def escaped_warnings() -> Iterator[None]:
    """Escape control characters in warnings that are printed inside the block."""
    plain = warnings.formatwarning

    def escaped(*args: object, **options: object) -> str:
        return terminal_text(plain(*args, **options), keep="\n")  # type: ignore[arg-type]

    warnings.formatwarning = escaped
    try:
        yield
    finally:
        warnings.formatwarning = plain


def silence(stream: TextIO | None) -> None:
    """Redirect a stream to the null device, so that closing it raises no second error."""
    if stream is None:
        return
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):  # a stream without a descriptor, as in a notebook
        return
