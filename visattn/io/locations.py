"""Files that are not in a folder: in an archive, in a table, on the web, in a store."""

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

Named = TypeVar("Named")


class Location(ABC):
    """A file beside those of folders, which are a `Path`.

    Args:
        address: Where it is, for messages and records: `photos.zip/dogs/a.jpg`.
        source: Where it lies, from the folders of the disk on: `("data", "photos.zip")`.
        relative: Its path in the source, from which results get their names.

    Example:
        >>> class Text(Location):
        ...     def fetch(self, max_bytes):
        ...         return b"a dog"
        >>> text = Text("texts:1", ("texts",), PurePosixPath("dog.txt"))
        >>> text.suffix, text.sha256()[:6], text.read_bytes(9)
        ('.txt', '7dbdf6', b'a dog')
    """

    def __init__(self, address: str, source: Iterable[str], relative: PurePosixPath) -> None:
        self.address = address
        self.source = tuple(source)
        self.relative = relative
        self._content: bytes | None = None
        self._sha256 = ""
        self._lock = threading.Lock()

    is_remote = False
    """Whether reading it waits for another machine."""

    @abstractmethod
    def fetch(self, max_bytes: int) -> bytes:
        """Return the content.

        Args:
            max_bytes: Largest size that is read.

        Raises:
            OSError: If it cannot be reached.
            ValueError: If it is longer, or no plain file.
        """

    @property
    def size(self) -> int:
        """Number of bytes; 0 if that is known only by reading them."""
        return 0

    @property
    def identity(self) -> str:
        """What changes whenever the file is replaced; "" if that is known only by reading it."""
        return ""

    @property
    def name(self) -> str:
        """Its file name."""
        return self.relative.name

    @property
    def suffix(self) -> str:
        """End of the name, with its dot."""
        return self.relative.suffix

    def sha256(self, max_bytes: int = 2**28) -> str:
        """Return the digest of the content, which is kept until it is read or released.

        Raises:
            OSError: If it cannot be reached.
            ValueError: If it is too long, or no plain file.
        """
        if self._sha256:
            return self._sha256
        content = self.fetch(max_bytes)
        with self._lock:
            self._content = content
        return hashlib.sha256(content).hexdigest()

    def recall(self, sha256: str) -> None:
        """Set the digest, or the start of it, which an earlier run computed.

        Args:
            sha256: The digest of this version of the file.
        """
        self._sha256 = sha256

    def read_bytes(self, max_bytes: int) -> bytes:
        """Return the content, which is not kept.

        Raises:
            OSError: If it cannot be reached.
            ValueError: If it is longer, or no plain file.
        """
        kept = self.release()
        return self.fetch(max_bytes) if kept is None else kept

    def release(self) -> bytes | None:
        """Forget the content, and return it if it was kept."""
        with self._lock:
            kept, self._content = self._content, None
        return kept

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs, which has a lock of its own."""
        return {**vars(self), "_content": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the file."""
        vars(self).update(state)
        self._lock = threading.Lock()

    def __str__(self) -> str:
        """Return the address."""
        return self.address

    def __repr__(self) -> str:
        """Return class and address in one line."""
        return f"{type(self).__name__}({self.address!r})"

    def __eq__(self, other: object) -> bool:
        """Whether both are the same file."""
        return isinstance(other, Location) and self.address == other.address

    def __hash__(self) -> int:
        """Return the hash of the address."""
        return hash(self.address)


Source = Path | Location
"""A file: of a folder, or elsewhere."""


class Unreadable(Location):
    """A file that a source names, but that is not read.

    Args:
        address: Where it is.
        source: Folders of its name.
        relative: Its path in the source.
        reason: Why it is not read.
    """

    def __init__(
        self, address: str, source: Iterable[str], relative: PurePosixPath, reason: str
    ) -> None:
        super().__init__(address, source, relative)
        self.reason = reason

    def fetch(self, max_bytes: int) -> bytes:
        """Refuse to read.

        Raises:
            ValueError: With the reason.
        """
        del max_bytes
        raise ValueError(self.reason)


def folder_order(relative: PurePosixPath) -> tuple[tuple[bool, str], ...]:
    """Return a key by which the files of a folder come before those of its subfolders.

    Example:
        >>> sorted(map(PurePosixPath, ["a/b.jpg", "z.jpg", "c/d.jpg"]), key=folder_order)[0].name
        'z.jpg'
    """
    *folders, name = relative.parts
    return (*((True, folder) for folder in folders), (False, name))


def check_length(size: int, max_bytes: int) -> None:
    """Refuse a file that is too long.

    Raises:
        ValueError: With both numbers.

    Example:
        >>> check_length(9, 9)
    """
    if size > max_bytes:
        raise ValueError(f"{size:,} bytes are more than max_bytes, {max_bytes:,}")
