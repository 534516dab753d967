"""Samples of a tar that arrives as a stream, with limits on what is kept in memory.

Sizes of members are what their headers say: a few kilobytes of a sparse or compressed tar may
announce gigabytes. They are compared with the limits before they are read.
"""

import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

from visattn.data.shards.format import MAX_IMAGE_BYTES, MAX_RECORD_BYTES
from visattn.io.safe_text import printable_name

MAX_SAMPLE_BYTES = MAX_IMAGE_BYTES + MAX_RECORD_BYTES
_MAX_MEMBERS = 100  # of one sample
_MAX_HEADER_BYTES = 2**20  # of a long name, or of other entries before a member
_KEY_AND_SUFFIX = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_DECOMPRESSION_ERRORS = (zlib.error, lzma.LZMAError)


class _BoundedMember(tarfile.TarInfo):
    """Member whose long name and other extra headers are short; tarfile reads any length."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {self.size:,} bytes, more than {_MAX_HEADER_BYTES:,}")
        plain: Any = super()
        return plain._proc_member(archive)  # noqa: SLF001 (tarfile has no public hook)


def read_tar_samples(stream: IO[bytes], url: str) -> Iterator[dict[str, Any]]:
    r"""Yield the samples of a tar, plain or compressed: neighboring files with one key.

    Args:
        stream: The tar.
        url: Its address, for messages.

    Yields:
        Content by suffix, with `__key__` and `__url__`.

    Raises:
        OSError: If it is not a tar, or only a part of one.
        ValueError: If a member, a sample or a header is larger than the limits, or two members have
            one name; the message names tar and key.

    Example:
        >>> import io
        >>> content, member = io.BytesIO(), tarfile.TarInfo("7.json")
        >>> member.size = 2
        >>> with tarfile.open(fileobj=content, mode="w") as tar:
        ...     tar.addfile(member, io.BytesIO(b"{}"))
        >>> list(read_tar_samples(io.BytesIO(content.getvalue()), "a.tar"))
        [{'__key__': '7', '__url__': 'a.tar', 'json': b'{}'}]
    """
    sample: dict[str, Any] = {}
    for name, content in _members(stream, url):
        match = _KEY_AND_SUFFIX.fullmatch(name)
        if match is None:
            continue
        key, suffix = match[1], match[2].lower()
        if key != sample.get("__key__"):
            if sample:
                yield sample
            sample = {"__key__": key, "__url__": url}
        if suffix in sample:
            raise ValueError(f"{tar_location(url, key)}: two members {printable_name(name)}")
        sample[suffix] = content
        size = sum(len(value) for value in sample.values() if isinstance(value, bytes))
        if size > MAX_SAMPLE_BYTES or len(sample) > _MAX_MEMBERS:
            raise ValueError(
                f"{tar_location(url, key)}: a sample must have at most {MAX_SAMPLE_BYTES:,} bytes "
                f"in {_MAX_MEMBERS} files; write each sample under its own key"
            )
    if sample:
        yield sample


def tar_location(url: object, key: object) -> str:
    """Return where a sample is, for messages; keys are a stranger's text.

    Args:
        url: Address of the tar.
        key: Key of the sample.
    """
    return f"{url}, key {printable_name(str(key))}"


def _members(stream: IO[bytes], url: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the regular files of a tar."""
    try:
        with tarfile.open(fileobj=stream, mode="r|*", tarinfo=_BoundedMember) as tar:
            for member in tar:
                if not member.isreg() or member.name.startswith("__"):
                    continue  # folders, links, and entries about the tar itself
                if member.issparse() or member.size > MAX_IMAGE_BYTES:
                    kind = "a sparse file" if member.issparse() else "a file"
                    raise ValueError(
                        f"{tar_location(url, member.name)}: {kind} of {member.size:,} bytes; "
                        f"members must be plain files of at most {MAX_IMAGE_BYTES:,}"
                    )
                file = tar.extractfile(member)
                yield member.name, file.read() if file is not None else b""
                cast("Any", tar).members = []  # else it remembers all
    except ValueError as error:
        if str(error).startswith(f"{url}, "):
            raise
        raise ValueError(f"{url}: {error}") from error
    # TypeError: of the header of a gzip file that ends in it
    except (tarfile.TarError, EOFError, OSError, TypeError, *_DECOMPRESSION_ERRORS) as error:
        raise OSError(
            f"{url} is not a complete tar ({error}); check the URL and the connection"
        ) from error
