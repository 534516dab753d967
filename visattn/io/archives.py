"""Files in zip and tar archives, read where they are; nothing is unpacked into a folder."""

import bz2
import gzip
import lzma
import os
import stat
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from visattn.io.locations import Location, Unreadable, check_length, folder_order
from visattn.io.safe_paths import check_relative_path
from visattn.io.safe_text import open_regular_file, printable_name

ARCHIVE_SUFFIXES = (
    ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz",
)  # fmt: skip
DECOMPRESSION_ERRORS = (zlib.error, lzma.LZMAError, EOFError)
_OPENERS = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
_MAX_HEADER_BYTES = 2**20  # of a long name, or of other entries before a member
_MIN_UNPACKED = 2**30  # photos are compressed already: a tar of them hardly shrinks
_MAX_RATIO = 100  # a larger archive of zeros would fill the disk
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class BoundedMember(tarfile.TarInfo):
    """Member whose long name and other extra headers are short; tarfile reads any length."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {self.size:,} bytes, more than {_MAX_HEADER_BYTES:,}")
        plain: Any = super()
        return plain._proc_member(archive)  # noqa: SLF001 (tarfile has no public hook)


def is_archive(path: Path) -> bool:
    """Return whether a file is named like an archive.

    Example:
        >>> is_archive(Path("photos.tar.gz")), is_archive(Path("photos.7z"))
        (True, False)
    """
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def archive_files(path: Path) -> list[Location]:
    """Return the files in an archive, in the order in which a folder of them is searched.

    Hidden files are left out. Entries whose names lead out of the archive, links and devices are
    `Unreadable`. Of two entries of one name the last counts, as when an archive is unpacked.

    Args:
        path: A zip or tar file, which may be compressed.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it is no such archive, or would be unreasonably large when unpacked.

    Example:
        >>> file = getfixture("tmp_path") / "photos.zip"
        >>> with zipfile.ZipFile(file, "w") as archive:
        ...     for name in ("dogs/a.jpg", "b.jpg", "../c.jpg"):
        ...         archive.writestr(name, b"content")
        >>> [entry.relative.as_posix() for entry in archive_files(file)]
        ['b.jpg', 'entry-3.jpg', 'dogs/a.jpg']
    """
    files: dict[str, Location] = {}
    try:
        members = _zip_members if path.name.lower().endswith(".zip") else _tar_members
        for member in members(path):
            files[member.address] = member
    except (zipfile.BadZipFile, tarfile.TarError, NotImplementedError) as error:
        raise ValueError(f"{path} is not a readable archive: {error}") from error
    except DECOMPRESSION_ERRORS as error:
        raise ValueError(f"{path} is not a complete archive: {error}") from error
    return sorted(files.values(), key=lambda file: folder_order(file.relative))


def source_parts(path: Path) -> tuple[str, ...]:
    """Return the folders of an archive or table and its name.

    Example:
        >>> source_parts(Path("/data/photos.tar.gz"))
        ('data', 'photos.tar.gz')
    """
    return path.absolute().parts[1:]


def _is_hidden(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(part.startswith(".") and part != ".." for part in parts) or "__MACOSX" in parts


def _unreadable(path: Path, number: int, name: str, reason: str) -> Unreadable:
    """Return an entry that is reported in place of a photo, under a harmless name."""
    relative = PurePosixPath(f"entry-{number}{PurePosixPath(name).suffix}")
    return Unreadable(f"{path}/{printable_name(name)}", source_parts(path), relative, reason)


def _name_error(name: str) -> str:
    try:
        check_relative_path(name)
    except ValueError as error:
        return str(error)
    return ""


class _ZipFile(Location):
    def __init__(self, path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        relative = PurePosixPath(info.filename)
        super().__init__(f"{path}/{relative}", source_parts(path), relative)
        self._archive = archive
        self._info = info

    @property
    def size(self) -> int:
        return self._info.file_size

    def fetch(self, max_bytes: int) -> bytes:
        check_length(self.size, max_bytes)
        if self._info.flag_bits & 1:
            raise ValueError("it is encrypted: unpack the archive")
        try:
            with self._archive.open(self._info) as file:  # the archive locks its file
                content = file.read(max_bytes + 1)
        except (zipfile.BadZipFile, NotImplementedError, *DECOMPRESSION_ERRORS) as error:
            raise ValueError(str(error)) from error
        check_length(len(content), max_bytes)
        return content


def _zip_members(path: Path) -> Iterator[Location]:
    with open_regular_file(path):
        pass  # a pipe is refused
    archive = zipfile.ZipFile(path)  # stays open as long as its members exist
    for number, info in enumerate(archive.infolist(), start=1):
        if info.is_dir() or _is_hidden(info.filename):
            continue
        mode = info.external_attr >> 16
        if reason := _name_error(info.filename):
            yield _unreadable(path, number, info.filename, reason)
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            yield _unreadable(path, number, info.filename, "a link or device in an archive")
        else:
            yield _ZipFile(path, archive, info)


class _OpenTar:
    """An open tar, which is closed with the last of its members."""

    def __init__(self, file: IO[bytes]) -> None:
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)  # without a position of the file


class _TarFile(Location):
    def __init__(self, path: Path, tar: _OpenTar, member: tarfile.TarInfo) -> None:
        relative = PurePosixPath(member.name)
        super().__init__(f"{path}/{relative}", source_parts(path), relative)
        self._tar = tar
        self._span = member.offset_data, member.size

    @property
    def size(self) -> int:
        return self._span[1]

    def fetch(self, max_bytes: int) -> bytes:
        offset, size = self._span
        check_length(size, max_bytes)
        content = self._tar.read(offset, size)
        if len(content) < size:
            raise ValueError(f"the archive is truncated: {len(content):,} of {size:,} bytes")
        return content


def _tar_members(path: Path) -> Iterator[Location]:
    number = 0
    with (
        _unpacked(path) as file,
        tarfile.open(fileobj=file, mode="r:", tarinfo=BoundedMember) as archive,
    ):
        tar = _OpenTar(file)
        try:
            for number, member in enumerate(archive, start=1):
                if member.isdir() or _is_hidden(member.name):
                    continue
                if reason := _name_error(member.name):
                    yield _unreadable(path, number, member.name, reason)
                elif not member.isreg() or member.issparse():
                    reason = "a link, device or sparse file in an archive"
                    yield _unreadable(path, number, member.name, reason)
                else:
                    yield _TarFile(path, tar, member)
        except (tarfile.TarError, OSError) as error:  # those before it are complete
            yield _unreadable(path, number + 1, "the rest", f"the archive is damaged: {error}")


def _unpacked(path: Path) -> IO[bytes]:
    """Return a tar to read in any order: itself, or unpacked, a temporary file without a name.

    Raises:
        ValueError: If it is unreasonably large.
    """
    file = open_regular_file(path)
    opener = _OPENERS.get(file.peek(2)[:2])
    if opener is None:
        return file
    limit = max(_MIN_UNPACKED, _MAX_RATIO * os.fstat(file.fileno()).st_size)
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 (its members read from it)
    size = 0
    with file, opener(file) as stream:
        while content := stream.read(2**20):
            size += len(content)
            if size > limit:
                unpacked.close()
                raise ValueError(
                    f"{path} is larger than {limit:,} bytes when it is unpacked, {_MAX_RATIO} "
                    "times its size: unpack it into a folder if that is right"
                )
            unpacked.write(content)
    unpacked.seek(0)
    return unpacked
