"""Files outside local folders: in archives, on the web, in object stores, in tables."""

import glob
import hashlib
import itertools
import shutil
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

ARCHIVES = {".zip": "zip", **dict.fromkeys((".tar", ".tgz", ".gz", ".bz2", ".xz"), "tar")}
"""Suffixes of archives, with their fsspec protocol."""
_MAX_BYTES = 2**28


class Location(ABC):
    """A file outside local folders; files in local folders are a `Path`.

    Args:
        address: Its address, for messages and records.
        relative: Its path below the source that the user named; results are named after it.
    """

    def __init__(self, address: str, relative: PurePosixPath) -> None:
        self.address = address
        self.relative = relative

    def read_bytes(self, max_bytes: int) -> bytes:
        """Return the content, up to a maximum size.

        Args:
            max_bytes: Maximum size.

        Raises:
            OSError: If it cannot be reached.
            ValueError: If it is longer.
        """
        content = self._read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError(f"longer than the limit of {max_bytes:,} bytes")
        return content

    @abstractmethod
    def _read(self, max_bytes: int) -> bytes:
        """Return the first bytes of the content."""

    def digest(self) -> str:
        """Return a string that changes with the content."""
        return hashlib.sha256(self.read_bytes(_MAX_BYTES)).hexdigest()

    @property
    def name(self) -> str:
        """Its file name."""
        return self.relative.name

    @property
    def suffix(self) -> str:
        """Suffix of the name, with its dot."""
        return self.relative.suffix

    def __str__(self) -> str:
        """Return the address."""
        return self.address

    def __eq__(self, other: object) -> bool:
        """Whether both are the same file."""
        return isinstance(other, Location) and self.address == other.address

    def __hash__(self) -> int:
        """Return the hash of the address."""
        return hash(self.address)


Source = Path | Location
"""A file in a local folder or elsewhere."""


class RemoteFile(Location):
    """A file read by fsspec.

    Args:
        address: Its URL.
        relative: Its path below the source that the user named.
        files: Its fsspec file system.
        path: Its path in that file system.
        lock: Held while it is read.
    """

    def __init__(
        self,
        address: str,
        relative: PurePosixPath,
        files: Any,
        path: str,
        lock: AbstractContextManager[object],
    ) -> None:
        super().__init__(address, relative)
        self._files = files
        self._path = path
        self._lock = lock

    def _read(self, max_bytes: int) -> bytes:
        with _errors(self.address), self._lock, self._files.open(self._path) as file:
            return file.read(max_bytes)

    def digest(self) -> str:
        """Return the version that the store reports, or else the digest of the content."""
        if hasattr(self._files, "fo") or _is_web(self._path):
            return super().digest()
        with _errors(self.address):
            return self._files.ukey(self._path)


def remote_files(url: str) -> list[Location]:
    """Return the file at a URL, or all files in a folder or archive, or matching a pattern.

    Hidden files are skipped. Nothing is unpacked into a folder.

    Args:
        url: `https://HOST/a.jpg`, `s3://BUCKET/photos/`, `zip://*.jpg::photos.zip`,
            `tar://::photos.tgz`; or the path of an archive.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If the package that reads the store is missing.
        OSError: If it cannot be reached.
        ValueError: If the scheme is unknown.

    Example:
        >>> [file] = remote_files("https://example.org/dogs/a.jpg")
        >>> file.name
        'a.jpg'
    """
    import fsspec

    if not is_url(url):
        url = f"{ARCHIVES[Path(url).suffix.lower()]}://::{url}"
    lock: AbstractContextManager[object] = nullcontext()
    scheme, _, inside = url.partition("://")
    inside, _, archive = inside.partition("::")
    with _errors(url):
        if scheme == "tar" and not archive.lower().endswith(".tar"):
            files, path = _unpacked(archive), inside
        else:
            files, path = fsspec.core.url_to_fs(url)
        if _is_web(path):
            name = PurePosixPath(unquote(urlsplit(path).path)).name
            return [RemoteFile(url, PurePosixPath(name or "photo"), files, path, lock)]
        if hasattr(files, "fo"):  # an archive, whose members share a file position
            lock = threading.Lock()
        roots = files.glob(path) if glob.has_magic(path) else [path]
        found = sorted({file for root in roots for file in files.find(root)})
    if not found:
        raise FileNotFoundError(f"{url} does not exist; pass image files or folders")
    plain = itertools.takewhile(lambda part: not glob.has_magic(part), _parts(path))
    depth = len([*plain]) - (found == [path])
    located: list[Location] = []
    for file in found:
        if not any(part.startswith(".") for part in _parts(file)):
            address = f"{scheme}://{file}::{archive}" if archive else files.unstrip_protocol(file)
            relative = PurePosixPath(*_parts(file)[depth:])
            located.append(RemoteFile(address, relative, files, file, lock))
    return located


def is_url(text: str) -> bool:
    """Return whether a source is a URL.

    Example:
        >>> is_url("https://example.org/a.jpg"), is_url("photos/a.jpg")
        (True, False)
    """
    return "://" in text


def _parts(path: str) -> list[str]:
    """Return the parts of a path, without those that could leave its folder."""
    return [part for part in path.split("/") if part not in ("", ".", "..")]


def _is_web(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def _unpacked(archive: str) -> Any:
    """Decompress a tar archive into a temporary file, for random access to its members.

    Raises:
        ValueError: If it needs more than half of the free disk space.
    """
    import fsspec
    from fsspec.implementations.tar import TarFileSystem

    file = tempfile.NamedTemporaryFile(suffix=".tar")  # noqa: SIM115 (its members read from it)
    room = shutil.disk_usage(file.name).free // 2
    compression = "gzip" if archive.lower().endswith(".tgz") else "infer"
    opened: Any = fsspec.open(archive, compression=compression)
    with opened as stream:
        while content := stream.read(2**20):
            file.write(content)
            if (room := room - len(content)) < 0:
                raise ValueError(f"{archive} needs over half of the free disk; unpack it first")
    file.seek(0)
    plain: Any = TarFileSystem
    return plain(fo=file)


@contextmanager
def _errors(address: str) -> Iterator[None]:
    """Raise errors specific to a store or archive library as `OSError`."""
    try:
        yield
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"{address} cannot be read: {type(error).__name__}: {error}") from error
