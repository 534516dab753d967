"""Files that are not in a folder: in an archive, on the web, in a store, in a table."""

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
"""Suffixes of archives, with what fsspec calls them."""
_MAX_BYTES = 2**28


class Location(ABC):
    """A file beside those of folders, which are a `Path`.

    Args:
        address: Where it is, for messages and records.
        relative: Its path below what was named, from which results get their names.
    """

    def __init__(self, address: str, relative: PurePosixPath) -> None:
        self.address = address
        self.relative = relative

    def read_bytes(self, max_bytes: int) -> bytes:
        """Return the content, of which no more than the largest size is read.

        Args:
            max_bytes: Largest size that is read.

        Raises:
            OSError: If it cannot be reached.
            ValueError: If it is longer.
        """
        content = self._read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError(f"longer than max_bytes, {max_bytes:,} bytes")
        return content

    @abstractmethod
    def _read(self, max_bytes: int) -> bytes:
        """Return the first bytes of the content."""

    def digest(self) -> str:
        """Return what changes with the content."""
        return hashlib.sha256(self.read_bytes(_MAX_BYTES)).hexdigest()

    @property
    def name(self) -> str:
        """Its file name."""
        return self.relative.name

    @property
    def suffix(self) -> str:
        """End of the name, with its dot."""
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
"""A file: of a folder, or elsewhere."""


class RemoteFile(Location):
    """A file that fsspec reads.

    Args:
        address: Its URL.
        relative: Its path below what was named.
        files: The file system of fsspec.
        path: Its path there.
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
        """Return the version that a store names, else the digest of the content."""
        if hasattr(self._files, "fo") or _is_web(self._path):
            return super().digest()
        with _errors(self.address):
            return self._files.ukey(self._path)


def remote_files(url: str) -> list[Location]:
    """Return the files of a URL: that file, or all below a folder, in an archive or of a pattern.

    Hidden files are left out. Nothing is unpacked into a folder.

    Args:
        url: `https://HOST/a.jpg`, `s3://BUCKET/photos/`, `zip://*.jpg::photos.zip`,
            `tar://::photos.tgz`; or the path of an archive.

    Raises:
        FileNotFoundError: If there is no such file.
        ImportError: If a package is missing that reads the store.
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
        if hasattr(files, "fo"):  # an archive, whose members share a position
            lock = threading.Lock()
        roots = files.glob(path) if glob.has_magic(path) else [path]
        found = sorted({file for root in roots for file in files.find(root)})
    if not found:
        raise FileNotFoundError(f"{url} does not exist; give image files or folders")
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
    """Return the parts of a path that do not lead out of its folder."""
    return [part for part in path.split("/") if part not in ("", ".", "..")]


def _is_web(path: str) -> bool:
    return path.startswith(("http://", "https://"))


def _unpacked(archive: str) -> Any:
    """Return a compressed tar as a plain one in a temporary file, whose members are read anywhere.

    Raises:
        ValueError: If it fills more than half of the disk.
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
                raise ValueError(f"{archive} fills the disk when it is unpacked")
    file.seek(0)
    plain: Any = TarFileSystem
    return plain(fo=file)


@contextmanager
def _errors(address: str) -> Iterator[None]:
    """Raise the errors of a store or archive, each of which has some of its own, as `OSError`."""
    try:
        yield
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"{address} cannot be read: {type(error).__name__}: {error}") from error
