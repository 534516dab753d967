"""Mutated files, and a loop that reads them, for crash tests."""

import os
import resource
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

_EDITS = 16  # at most in one case
_MAGIC = [
    *(bytes([byte]) * count for byte in (0, 1, 0x7F, 0x80, 0xFF) for count in (1, 2, 4, 8)),
    *(struct.pack(order + "I", number) for order in "<>" for number in (1, 2**16, 2**31)),
    b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"IDAT", b"IEND", b"II*\0", b"MM\0*", b"GIF89a",
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u0000", b"\\ud800", b"\n", b"\r", b"\t",
    b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"true", b"{}", b"[]", b"../", b"\xef\xbb\xbf",
    b"9" * 40,
]  # fmt: skip


def mutated(seeds: Sequence[bytes], number: int) -> bytes:
    """Return a seed with 1 to 16 edits that are determined by the number."""
    random = Random(number)
    content = bytearray(random.choice(seeds))
    for _ in range(random.choice((1, 1, 2, 3, 5, _EDITS))):
        _edit(content, seeds, random)
    is_png = content.startswith(b"\x89PNG")
    return (
        with_valid_checksums(bytes(content)) if is_png and random.random() < 0.5 else bytes(content)
    )


def _edit(content: bytearray, seeds: Sequence[bytes], random: Random) -> None:
    at, length = random.randint(0, len(content)), random.choice((1, 2, 4, 9, 33))
    action = random.randrange(8)
    if action == 0:
        content[at : at + length] = random.randbytes(length)
    elif action == 1:
        del content[at : at + length * random.choice((1, 1, 10, 100))]
    elif action == 2:
        content[at:at] = random.randbytes(length)
    elif action == 3:
        piece = random.choice(_MAGIC)
        content[at : at + len(piece)] = piece
    elif action == 4:
        content[at:at] = random.choice(_MAGIC)
    elif action == 5:
        other = random.choice(seeds)
        start = random.randint(0, len(other))
        content[at : at + length] = other[start : start + length * 5]
    elif action == 6:
        del content[at:]
    elif at < len(content):
        content[at] ^= 1 << random.randrange(8)


def with_valid_checksums(content: bytes) -> bytes:
    """Return a PNG with valid chunk checksums, so that the reader goes beyond them."""
    parts, at = [content[:8]], 8
    while at + 12 <= len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        end = at + 8 + length
        if end + 4 > len(content):
            break
        body = content[at + 4 : end]
        parts += [content[at : at + 4], body, struct.pack(">I", zlib.crc32(body))]
        at = end + 4
    return b"".join(parts) + content[at:]


def run_cases(
    reading: Callable[[bytes], object],
    seeds: Sequence[bytes],
    numbers: range,
    refusals: tuple[type[Exception], ...],
    progress: Path,
    seconds: float,
) -> dict[str, Any]:
    """Read cases one after the other; return the outcomes as plain values.

    Args:
        reading: The reader under test.
        seeds: Valid files that are mutated.
        numbers: Numbers of the cases.
        refusals: Errors that a reader may raise.
        progress: File with the number of the current case, in case the process dies.
        seconds: Time after which no further case is read.
    """
    counts: dict[str, Any] = {"cases": 0, "read": 0, "refused": 0, "escaped": [], "slow": []}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end = time.monotonic() + seconds
    with progress.open("wb", buffering=0) as file:
        for number in numbers:
            if time.monotonic() > end:
                break
            os.pwrite(file.fileno(), b"%20d" % number, 0)
            content = mutated(seeds, number)
            start = time.thread_time()
            try:
                reading(content)
                counts["read"] += 1
            except refusals as error:
                counts["refused"] += 1
                if not str(error).isprintable():
                    counts["escaped"].append((number, f"unprintable: {error!r}"))
            except Exception as error:  # noqa: BLE001 (which is what is looked for)
                counts["escaped"].append((number, repr(error)[:300]))
            took = time.thread_time() - start
            if took > 1:
                counts["slow"].append((number, round(took, 2)))
            counts["cases"] += 1
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return counts | {"megabytes": (after - before) // 1024}
