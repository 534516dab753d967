"""Places of results: a folder of the disk, or a store of objects.

Both show the same files to whoever reads them. They differ in how files come to be there: a folder
is locked and its files are renamed into place, an object of a store appears by one upload.
"""

import fnmatch
import hashlib
import itertools
import json
import os
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any

from visattn.commands.files import create_folder, folder_lock
from visattn.commands.model_option import DIGEST_LENGTH, file_digest
from visattn.io.atomic import atomic_write, explained_disk_errors, flush, temporary_folder
from visattn.io.messages import format_names
from visattn.io.safe_text import (
    MAX_BYTES,
    decode_utf8,
    open_regular_file,
    parse_json,
    read_bytes_bounded,
    read_json,
)
from visattn.io.stores import Store, check_writable_url, object_identity
from visattn.io.written_files import RECORD, WrittenFiles, encode_sets, parse_sets, replace_files

INDEX = "index.html"
_READERS = 64  # an answer of a store takes 20 to 100 ms, whatever the cores do
_KEPT_BYTES = 2**28  # of records that were read, which are needed twice
_CLAIM = ".visattn-run-"

Staged = Path | bytes
"""Content on its way: a temporary file of a folder, or the bytes of an upload."""


class Output(AbstractContextManager["Output"], ABC):
    """A place of results; files can be written within its context.

    Names of files are paths with slashes.
    """

    readers: int | None = None
    """Threads that read many files; None: one per core."""
    renames = True
    """Whether files that are there are replaced by renaming, under a lock."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file, or anything else of this name."""

    @abstractmethod
    def holds(self, name: str, digest: str) -> bool:
        """Whether a file has this digest; in a store, where that is not known, if it is there."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            OSError: If it cannot be read.
            ValueError: If it is too long, or no regular file.
        """

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file.

        Raises:
            OSError: If it cannot be read.
            ValueError: If it is no JSON.
        """
        return parse_json(decode_utf8(self.read(name)))

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file of any length for reading.

        Raises:
            OSError: If it cannot be read.
        """

    @abstractmethod
    def find(self, pattern: str) -> list[str]:
        """Return the files of a pattern, without those of subfolders, by their names."""

    @abstractmethod
    def records(self) -> dict[str, object]:
        """Return the JSON files, each with a state that changes whenever it is replaced.

        Those of subfolders that have an index of their own are left out.
        """

    @abstractmethod
    def state(self, name: str) -> object:
        """Return what changes whenever a file is replaced."""

    @abstractmethod
    def stage(self, content: bytes | Path) -> Staged:
        """Prepare a file, so that little can go wrong when it gets its place."""

    @abstractmethod
    def place(self, staged: Staged, name: str) -> None:
        """Put a prepared file into its place."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write a file, which appears complete or not at all."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file."""

    @abstractmethod
    def check_shared(self, names: Collection[str]) -> None:
        """Refuse to replace files of all images together that visattn did not write.

        Raises:
            FileExistsError: If there are such files.
        """

    @abstractmethod
    def write_shared(self, name: str, content: bytes, *, key: str, overwrite: bool) -> None:
        """Write a file of all images together; `key` names it whatever its format is.

        Raises:
            FileExistsError: If a file of the user would be replaced.
            OSError: If it cannot be written.
        """

    @abstractmethod
    def where(self, name: str) -> str:
        """Return the path or URL of a file, for messages."""

    def lock(self) -> AbstractContextManager[object]:
        """Lock the place while files that several processes share are read and rewritten."""
        return nullcontext()

    def claim(self, purpose: Mapping[str, str]) -> AbstractContextManager[object]:
        """Refuse to write beside a run with another purpose, as long as the context is open."""
        del purpose
        return nullcontext()

    def flush(self, names: Iterable[str]) -> None:
        """Make sure that new names of files outlive a crash."""
        del names

    def refresh(self) -> None:
        """Look for what others have written."""

    def errors(self) -> AbstractContextManager[object]:
        """Explain errors of writing."""
        return nullcontext()


class FolderOutput(Output):
    """A folder of the disk.

    Args:
        path: The folder.

    Example:
        >>> with FolderOutput(getfixture("tmp_path")) as out:
        ...     out.place(out.stage(b"a dog"), "dog.txt")
        >>> out.exists("dog.txt"), out.read("dog.txt"), out.find("*.txt")
        (True, b'a dog', ['dog.txt'])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digests: dict[tuple[object, ...], str] = {}
        self._context = ExitStack()
        self._numbers = itertools.count()
        self._temporary: Path | None = None

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)

    def __enter__(self) -> "FolderOutput":
        """Create the folder.

        Raises:
            OSError: If it cannot be written.
        """
        create_folder(self.path)
        self._temporary = self._context.enter_context(temporary_folder(self.path / "visattn"))
        return self

    def __exit__(self, *_exception: object) -> None:
        """Remove temporary files."""
        self._context.close()

    def exists(self, name: str) -> bool:
        """Whether there is a file, a folder or a link."""
        return os.path.lexists(self.path / name)

    def holds(self, name: str, digest: str) -> bool:
        """Whether a regular file has this digest; it is read once, until it changes."""
        path = self.path / name
        try:
            status = path.lstat()
            key = (name, status.st_ino, status.st_size, status.st_mtime_ns)
            if key not in self._digests:
                self._digests[key] = file_digest(path)
        except (OSError, ValueError):
            return False
        return self._digests[key] == digest

    def read(self, name: str) -> bytes:
        """Return the content of a regular file."""
        return read_bytes_bounded(self.path / name)

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file."""
        return read_json(self.path / name)

    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a regular file."""
        return open_regular_file(self.path / name)

    def find(self, pattern: str) -> list[str]:
        """Return the files of a pattern."""
        return sorted(path.name for path in self.path.glob(pattern))

    def records(self) -> dict[str, object]:
        """Return the JSON files, with inode and time of writing."""
        return {
            path.relative_to(self.path).as_posix(): _file_state(path)
            for path in record_files(self.path)
        }

    def state(self, name: str) -> tuple[int, int]:
        """Return inode and time of writing."""
        return _file_state(self.path / name)

    def stage(self, content: bytes | Path) -> Path:
        """Write a temporary file, or take one that was written, to the disk."""
        if self._temporary is None:
            raise ValueError("results are written within the context of their folder")
        if isinstance(content, Path):
            path = content
        else:
            path = self._temporary / str(next(self._numbers))
            path.write_bytes(content)
        flush(path)
        return path

    def place(self, staged: Staged, name: str) -> None:
        """Rename a temporary file."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Path(os.fsdecode(staged)).replace(path)

    def write(self, name: str, content: bytes) -> None:
        """Write a file by a rename."""
        atomic_write(self.path / name, content)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self.path / name).unlink(missing_ok=True)

    def check_shared(self, names: Collection[str]) -> None:
        """Refuse to replace files that visattn did not write, or that changed since."""
        WrittenFiles.read(self.path).check(names)

    def write_shared(self, name: str, content: bytes, *, key: str, overwrite: bool) -> None:
        """Write a file with its digest in the record of the folder."""
        path = self.path / name
        if path.is_file() and path.read_bytes() == content:
            return
        with replace_files(self.path, key, overwrite=overwrite) as part:
            (part / name).write_bytes(content)

    def where(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.path / name)

    def lock(self) -> AbstractContextManager[object]:
        """Lock the folder."""
        return folder_lock(self.path)

    def flush(self, names: Iterable[str]) -> None:
        """Flush the folders of files."""
        for folder in dict.fromkeys((self.path / name).parent for name in names):
            flush(folder)

    def errors(self) -> AbstractContextManager[object]:
        """Explain a full or read-only disk."""
        return explained_disk_errors(self.path)


class StoreOutput(Output):
    """Objects of a store below a URL.

    It is listed when it is first needed, when a run begins, and by `refresh`; what this process
    writes is added. Objects that others replace meanwhile are not noticed.

    Args:
        url: Its URL.

    Raises:
        ImportError: If a package is missing.
        ValueError: If files do not appear there by one upload each.

    Example:
        >>> with StoreOutput("memory://results/dogs/") as out:
        ...     out.place(out.stage(b"a dog"), "a/dog.txt")
        >>> str(out), out.exists("a/dog.txt"), out.read("a/dog.txt"), out.find("*.txt")
        ('memory://results/dogs', True, b'a dog', [])
    """

    readers = _READERS
    renames = False

    def __init__(self, url: str) -> None:
        check_writable_url(url)
        self.url = url.rstrip("/")
        self.store = Store(self.url)
        self._listed: dict[str, str] | None = None
        self._records: dict[str, bytes] = {}
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def __str__(self) -> str:
        """Return the URL."""
        return self.url

    def __exit__(self, *_exception: object) -> None:
        """Do nothing: an upload leaves no temporary files."""

    @property
    def _objects(self) -> dict[str, str]:
        """Identity of each object, by its name."""
        with self._lock:
            if self._listed is None:
                start = self.store.path.rstrip("/") + "/"
                objects = self.store.find()
                if self.store.path in objects:
                    raise ValueError(f"--out {self.url} is an object: choose another name")
                self._listed = {
                    path.removeprefix(start): object_identity(info)
                    for path, info in objects.items()
                    if path.startswith(start)
                }
            return self._listed

    def refresh(self) -> None:
        """List the store again."""
        before, self._listed = self._listed or {}, None
        for name, identity in self._objects.items():
            if not identity or before.get(name) != identity:
                self._forget(name)

    def exists(self, name: str) -> bool:
        """Whether there is an object."""
        return name in self._objects

    def holds(self, name: str, digest: str) -> bool:
        """Whether there is an object: its content is not read."""
        del digest
        return name in self._objects

    def read(self, name: str) -> bytes:
        """Return the content of an object; a record is kept, since it is needed again."""
        if (kept := self._records.get(name)) is not None:
            return kept
        if name not in self._objects:
            raise FileNotFoundError(f"{self.where(name)} does not exist")
        content = self.store.read(self._path(name), MAX_BYTES)
        with self._lock:
            if name.endswith(".json"):
                self._keep(name, content)
        return content

    def _keep(self, name: str, content: bytes) -> None:
        if self._kept_bytes + len(content) <= _KEPT_BYTES:
            self._records[name] = content
            self._kept_bytes += len(content)

    def _forget(self, name: str) -> None:
        self._kept_bytes -= len(self._records.pop(name, b""))

    def open(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open an object."""
        return self.store.client.open(self._path(name))

    def find(self, pattern: str) -> list[str]:
        """Return the objects of a pattern."""
        names = (name for name in self._objects if "/" not in name)
        return sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))

    def records(self) -> dict[str, object]:
        """Return the JSON objects, with their identities."""
        own = {str(PurePosixPath(name).parent) for name in self._objects if _is_index(name)}
        return {
            name: identity
            for name, identity in self._objects.items()
            if name.endswith(".json")
            and not any(part.startswith(".") for part in name.split("/"))
            and not own.intersection(map(str, [*PurePosixPath(name).parents][:-1]))
        }

    def state(self, name: str) -> str:
        """Return the identity of an object; "" if there is none."""
        return self._objects.get(name, "")

    def stage(self, content: bytes | Path) -> bytes:
        """Return the bytes of the upload."""
        return content if isinstance(content, bytes) else content.read_bytes()

    def place(self, staged: Staged, name: str) -> None:
        """Upload a file."""
        self.write(name, self.stage(staged))

    def write(self, name: str, content: bytes) -> None:
        """Upload a file."""
        objects = self._objects
        self._forget(name)
        self.store.write(self._path(name), content)
        objects[name] = hashlib.sha256(content).hexdigest()

    def remove(self, name: str) -> None:
        """Remove an object."""
        self.store.remove(self._path(name))
        self._objects.pop(name, None)

    def check_shared(self, names: Collection[str]) -> None:
        """Refuse to replace objects that visattn did not write.

        Shards write the same files, without a lock: an object is known by its name, not by its
        digest, which another shard may have changed.
        """
        present = [name for name in names if name in self._objects]
        own = {name for files in self._sets().values() for name in files} if present else set()
        if foreign := [name for name in present if name not in own]:
            raise FileExistsError(
                f"--out {self.url} holds {format_names(foreign)}, which this command did not "
                "write: choose another --out, or replace with --overwrite"
            )

    def write_shared(self, name: str, content: bytes, *, key: str, overwrite: bool) -> None:
        """Upload a file, and before it the record that owns it."""
        if not overwrite:
            self.check_shared([name])
        sets = self._sets()
        before = sets.get(key, {})
        new = {name: [hashlib.sha256(content).hexdigest()]}
        if before == new and name in self._objects:
            return
        self.write(RECORD, encode_sets({**sets, key: new}))
        self.write(name, content)
        for old in (each for each in before if each != name and each in self._objects):
            self.remove(old)

    def _sets(self) -> dict[str, dict[str, list[str]]]:
        return parse_sets(self.read(RECORD)) if RECORD in self._objects else {}

    def where(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{name}"

    def _path(self, name: str) -> str:
        return f"{self.store.path.rstrip('/')}/{name}"

    @contextmanager
    def claim(self, purpose: Mapping[str, str]) -> Iterator[None]:
        """Refuse to write beside a run with another purpose, as long as the context is open.

        Two runs would mix their files, and a store has no locks. So each writes what it is about
        and then looks for others: of two that begin at once, one sees the other.

        Raises:
            OSError: If the store cannot be written.
            ValueError: If there is another run.
        """
        name = f"{_CLAIM}{secrets.token_hex(4)}.json"
        own = {**purpose, "host": socket.gethostname(), "pid": os.getpid()}
        since = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            self.write(name, json.dumps({**own, "since": since}).encode() + b"\n")
        except OSError as error:
            raise OSError(
                f"--out {self.url} cannot be written: {error}; check the name and your "
                "permissions, or choose another --out"
            ) from error
        try:
            self.refresh()
            for other in self.find(f"{_CLAIM}*.json"):
                if other != name:
                    self._check_claim(other, own)
            yield
        finally:
            with suppress(OSError):
                self.remove(name)

    def _check_claim(self, name: str, own: Mapping[str, Any]) -> None:
        """Refuse another run, unless its purpose is the same; remove that of a killed one."""
        try:
            other = self.read_json(name)
            same_host = other["host"] == own["host"]
            text = f"visattn {other['command']} on {other['host']} since {other['since']}"
            pid = int(other["pid"])
        except (OSError, ValueError, LookupError, TypeError):
            return  # it has just ended
        if same_host and not _is_running(pid):
            self.remove(name)
        elif any(other.get(key) != own[key] for key in own if key not in ("host", "pid")):
            raise ValueError(
                f"--out {self.url} is written by {text}, of other photos or with other settings: "
                f"wait until it ends, or if it was killed remove {self.where(name)}"
            )


def open_output(out: Path | str) -> Output:
    """Return the place of results.

    Args:
        out: A folder, or the URL of a store.

    Raises:
        ImportError: If a package is missing.
        ValueError: If files do not appear there by one upload each.

    Example:
        >>> print(open_output(Path("maps")), open_output("memory://results/maps"))
        maps memory://results/maps
    """
    return StoreOutput(out) if isinstance(out, str) else FolderOutput(out)


def content_digest(staged: Staged) -> str:
    """Return the digest of a prepared file, as `file_digest` does.

    Example:
        >>> content_digest(b"abc")
        'ba7816bf8f01cfea'
    """
    if isinstance(staged, Path):
        return file_digest(staged)
    return hashlib.sha256(staged).hexdigest()[:DIGEST_LENGTH]


def record_files(folder: Path) -> Iterator[Path]:
    """Yield the JSON files of a folder, and of those below that have no index of their own.

    Example:
        >>> list(record_files(Path("no_such_folder")))
        []
    """
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not Path(parent, name, INDEX).exists()
        ]
        for name in files:
            if name.endswith(".json") and not name.startswith("."):
                yield Path(parent, name)


def _file_state(path: Path) -> tuple[int, int]:
    """Return what changes whenever a file is replaced: its inode, and the time of its writing."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _is_index(name: str) -> bool:
    return name.endswith(f"/{INDEX}")


def _is_running(pid: int) -> bool:
    """Return whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
