"""Stores of objects, such as s3 and gs: objects are read, listed and written by their URLs.

A store has no folders, no locks and no renames: an object appears whole by one upload, or not at
all. That is what results need, so that only such stores take them.
"""

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from visattn.io.locations import Location, check_length, folder_order

_EXTRAS = {"s3": "pyarrow", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs",
           "abfs": "adlfs", "hf": "huggingface_hub", "sftp": "paramiko", "ssh": "paramiko",
           "smb": "smbprotocol"}  # fmt: skip
"""What reads the stores of fsspec that need a further package."""
_WRITABLE = ("memory", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_VERSIONS = ("ETag", "etag", "e_tag", "md5Hash", "content_md5", "blob_id", "CRC", "mtime",
             "LastModified", "last_modified", "updated", "created")  # fmt: skip
"""What stores say of an object that changes with its content, the surest first."""


def is_url(text: str) -> bool:
    """Return whether a source is a URL.

    Example:
        >>> is_url("https://example.org/a.jpg"), is_url("photos/a.jpg")
        (True, False)
    """
    return "://" in text


class Store:
    """A store below a URL, opened in each process anew.

    Clients hold connections and threads, which neither a forked process nor a pickle may share.

    Args:
        url: Of a store that fsspec reads; `s3://` is read by pyarrow where s3fs is missing.

    Raises:
        ImportError: If a package is missing.
        ValueError: If the scheme is unknown.

    Example:
        >>> store = Store("memory://results/maps")
        >>> store.write("/results/maps/a.txt", b"a dog")
        >>> [*store.find()], store.read("/results/maps/a.txt", 9)
        (['/results/maps/a.txt'], b'a dog')
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: tuple[int, Any] | None = None
        client, self.path = _open(url)
        self._opened = (os.getpid(), client)

    @property
    def client(self) -> Any:
        """The file system of fsspec of this process."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), _open(self.url)[0])
        return self._opened[1]

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs, which opens the store itself."""
        return {**vars(self), "_opened": None}

    def find(self) -> dict[str, Mapping[str, Any]]:
        """Return what the store says of each object below the URL, by its path: one listing.

        Raises:
            OSError: If it cannot be listed.
        """
        with _errors(f"{self.url} cannot be listed"):
            self.client.invalidate_cache()
            if hasattr(self.client, "fs"):  # of pyarrow, which lists folders within folders at once
                return _find_by_arrow(self.client.fs, self.path)
            return self.client.find(self.path, detail=True)

    def info(self, path: str) -> Mapping[str, Any]:
        """Return what the store says of an object.

        Raises:
            OSError: If there is none.
        """
        with _errors(f"{self.url} cannot be read"):
            return self.client.info(path)

    def read(self, path: str, max_bytes: int, *, size: int = 0) -> bytes:
        """Return the content of an object.

        Args:
            path: Its path.
            max_bytes: Largest size that is read.
            size: Its size, if it is known: one request fewer.

        Raises:
            OSError: If it cannot be read.
            ValueError: If it is longer.
        """
        check_length(size, max_bytes)
        with _errors(f"{self.url} cannot be read"):
            if size:
                content = self.client.cat_file(path)
            else:
                with self.client.open(path) as file:
                    content = file.read(max_bytes + 1)
        check_length(len(content), max_bytes)
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write an object in one upload: it is there complete, or not at all.

        Raises:
            OSError: If the store does not take it.
            ValueError: If it is no store in which objects appear so.
        """
        check_writable_url(self.url)
        with _errors(f"{self.url} cannot be written"):
            self.client.pipe_file(path, content)

    def remove(self, path: str) -> None:
        """Remove an object.

        Raises:
            OSError: If the store does not do it.
        """
        with _errors(f"{self.url} cannot be written"):
            self.client.rm_file(path)


class StoreFile(Location):
    """An object of a store.

    Args:
        address: Its URL.
        store: The store.
        path: Its path there.
        relative: Its path below what was listed.
        info: What the store says of it; None if that is to be looked up when it is needed.

    Example:
        >>> write_url("memory://listed/a.jpg", b"a dog")
        >>> [file] = store_files("memory://listed")
        >>> file.relative.name, file.size, file.identity[:2]
        ('a.jpg', 5, '5-')
    """

    is_remote = True

    def __init__(
        self,
        address: str,
        store: Store,
        path: str,
        relative: PurePosixPath,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        parts = PurePosixPath(path).parts
        source = parts[: len(parts) - len(relative.parts)]
        super().__init__(address, [part for part in source if part != "/"], relative)
        self._store = store
        self._path = path
        self._size = 0 if info is None else int(info.get("size") or 0)
        self._identity = None if info is None else object_identity(info)

    @property
    def size(self) -> int:
        """Number of bytes, if the object was listed."""
        return self._size

    @property
    def identity(self) -> str:
        """Size and version of the object; "" if the store does not say them."""
        if self._identity is None:
            try:
                self._identity = object_identity(self._store.info(self._path))
            except (OSError, ValueError):  # reading it says why
                return ""
        return self._identity

    def fetch(self, max_bytes: int) -> bytes:
        """Return the content.

        Raises:
            OSError: If the store does not answer.
            ValueError: If it is longer.
        """
        return self._store.read(self._path, max_bytes, size=self._size)


def object_identity(info: Mapping[str, Any]) -> str:
    """Return what changes whenever an object is replaced: its size and version.

    Args:
        info: What a store says of it.

    Example:
        >>> object_identity({"size": 9, "ETag": '"7b52"', "LastModified": 3})
        '9-7b52'
        >>> object_identity({"size": 9})
        ''
    """
    for key in _VERSIONS:
        if (value := info.get(key)) is not None:
            text = value.isoformat() if hasattr(value, "isoformat") else str(value)
            return f"{info.get('size')}-{text.strip(chr(34))}"
    return ""


def store_files(url: str) -> list[Location]:
    """Return the objects below a URL.

    Raises:
        FileNotFoundError: If there is none.
        ImportError: If a package is missing.
        ValueError: If the scheme is unknown.

    Example:
        >>> store_files("memory://nothing_here")
        Traceback (most recent call last):
        FileNotFoundError: memory://nothing_here does not exist; give image files or folders
    """
    store = Store(url)
    files = store.find()
    if not files:
        raise FileNotFoundError(f"{url} does not exist; give image files or folders")
    path = store.path
    single = [*files] == [path]
    listed: list[Location] = []
    for each, info in files.items():
        relative = PurePosixPath(PurePosixPath(each).name if single else each[len(path) :])
        relative = PurePosixPath(*[part for part in relative.parts if part not in ("/", "..")])
        address = str(store.client.unstrip_protocol(each))
        if not any(part.startswith(".") for part in relative.parts):
            listed.append(StoreFile(address, store, each, relative, info))
    return sorted(listed, key=lambda file: folder_order(file.relative))


def write_url(url: str, content: bytes) -> None:
    """Write an object in one upload: it is there complete, or not at all.

    Raises:
        ImportError: If a package is missing.
        OSError: If the store does not take it.
        ValueError: If the scheme is unknown, or no store in which objects appear so.

    Example:
        >>> write_url("memory://written/a.txt", b"a dog")
        >>> [file] = store_files("memory://written")
        >>> file.read_bytes(9)
        b'a dog'
    """
    store = Store(url)
    store.write(store.path, content)


def check_writable_url(url: str) -> None:
    """Refuse a URL below which files do not appear by one upload each.

    Raises:
        ValueError: With the reason, and what to do.

    Example:
        >>> check_writable_url("zip://maps.zip")
        Traceback (most recent call last):
        ValueError: zip://maps.zip is an archive, which is lost if its writer is killed: write ...
    """
    scheme = urlsplit(url).scheme.lower()
    advice = f"write into a folder or a store ({', '.join(_WRITABLE)}), and copy that"
    if scheme in ("http", "https"):
        raise ValueError(f"{url} is on the web, where nothing can be written: {advice}")
    if scheme in ("zip", "tar", "libarchive") or "::" in url:
        raise ValueError(f"{url} is an archive, which is lost if its writer is killed: {advice}")
    if scheme not in _WRITABLE:
        raise ValueError(
            f"{url} is no store in which files appear whole, by one upload each: {advice}"
        )
    if scheme != "memory" and not urlsplit(url).netloc:
        raise ValueError(f"{url} names no bucket: {scheme}://BUCKET/FOLDER")


@contextmanager
def _errors(problem: str) -> Iterator[None]:
    """Raise the errors of a store, each of which has some of its own, as those of files."""
    try:
        yield
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"{problem}: {type(error).__name__}: {error}") from error


def _open(url: str) -> tuple[Any, str]:
    """Return a file system of fsspec, and a path in it."""
    scheme = urlsplit(url).scheme.lower()
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(f"{url} is read by fsspec: pip install fsspec") from error
    if scheme in ("http", "https"):
        raise ValueError(f"{url} is on the web, where nothing can be written: name a store")
    if scheme not in fsspec.available_protocols() or scheme in ("file", "local"):
        raise ValueError(f"{url} is no URL that is read: http, https, s3, gs, hf, memory, ...")
    try:
        with _errors(f"{url} cannot be reached"):
            try:
                return fsspec.core.url_to_fs(url)
            except ImportError:
                if scheme != "s3":
                    raise
                parts = urlsplit(url)
                path = f"{parts.netloc}{parts.path}".rstrip("/")
                return _s3_by_arrow(parts.netloc, os.getpid()), path
    except ImportError as error:
        package = _EXTRAS.get(scheme, "what the message names")
        raise ImportError(f"{url} needs {package} ({error}): pip install {package}") from error


@functools.cache
def _s3_by_arrow(bucket: str, _pid: int) -> Any:
    """Return the client of pyarrow for s3, which takes what the environment says of AWS."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import S3FileSystem, resolve_s3_region

    options: dict[str, Any] = {}
    if endpoint := next(filter(None, map(os.environ.get, _ENDPOINTS)), ""):
        parts = urlsplit(endpoint)
        options = {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    elif not any(map(os.environ.get, _REGIONS)):
        options["region"] = resolve_s3_region(bucket)
    try:
        client = S3FileSystem(allow_delayed_open=True, **options)  # one request per small object
    except TypeError:  # of an older pyarrow: three requests
        client = S3FileSystem(**options)
    return ArrowFSWrapper(client)


def _find_by_arrow(files: Any, path: str) -> dict[str, Mapping[str, Any]]:
    from pyarrow.fs import FileSelector, FileType

    [own] = files.get_file_info([path])
    listed = [own]
    if own.type != FileType.File:
        listed = files.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    bucket = path.partition("/")[0]
    if not listed and files.get_file_info([bucket])[0].type == FileType.NotFound:
        raise FileNotFoundError(f"there is no bucket {bucket}, or you may not see it")
    return {
        each.path: {"size": each.size, "mtime": each.mtime_ns}
        for each in listed
        if each.type == FileType.File
    }
