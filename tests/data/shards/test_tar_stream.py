"""Streamed tars: samples, and limits on what their headers announce."""

import gzip
import io
import tarfile
from collections.abc import Callable

import pytest

from visattn.data.shards import streams as tar_stream
from visattn.data.shards.streams import parse_streamed_sample, read_tar_samples


def tar(*members: tuple[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def samples(content: bytes) -> list[dict[str, object]]:
    return list(read_tar_samples(io.BytesIO(content), "a.tar"))


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A member that announces a size; nothing follows."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def sparse_header(real_size: int) -> bytes:
    """A sparse file without data that is as large as it says when it is read."""
    block = bytearray(header("7.jpg", 0, tarfile.GNUTYPE_SPARSE))
    block[483:495] = f"{real_size:011o}".encode() + b"\0"
    block[148:156] = b"        "
    block[148:156] = f"{sum(block):06o}".encode() + b"\0 "
    return bytes(block)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_neighbors_with_one_key_are_a_sample(compress: Callable[[bytes], bytes]) -> None:
    content = tar(("a/7.JPG", b"x"), ("a/7.json", b"{}"), ("__about__", b"?"), ("a/8.cls", b"3"))
    first, second = samples(compress(content))
    assert first == {"__key__": "a/7", "__url__": "a.tar", "jpg": b"x", "json": b"{}"}
    assert second["cls"] == b"3"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (header("7.jpg", 5 * 2**30), r"a.tar, key 7.jpg: a file of 5,368,709,120 bytes"),
        (sparse_header(6 * 2**30), r"a.tar, key 7.jpg: a sparse file of 6,442,450,944 bytes"),
        (sparse_header(11), r"a.tar, key 7.jpg: a sparse file of 11 bytes"),
        (
            gzip.compress(header("x", 2**31, tarfile.XHDTYPE), mtime=0),
            "a header of 2,147,483,648 bytes",
        ),
        (header("x", 2**31, tarfile.GNUTYPE_LONGNAME), "a header of 2,147,483,648 bytes"),
        (tar(("7.jpg", b""), ("7.JPG", b"")), "a.tar, key 7: two members 7.JPG"),
        (tar(*[(f"7.{number}", b"") for number in range(101)]), "in 100 files"),
        (tar(("\x1b[2J.jpg", b""), ("\x1b[2J.jpg", b"")), r"key '\\x1b\[2J': two members"),
    ],
)
def test_large_members_are_refused_before_they_are_read(content: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        samples(content)
    assert str(caught.value).isprintable()


def test_samples_are_bounded_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_stream, "MAX_SAMPLE_BYTES", 10)
    with pytest.raises(ValueError, match="a sample must have at most 10 bytes"):
        samples(tar(("7.a", b"x" * 7), ("7.b", b"x" * 5)))
    assert len(samples(tar(("7.a", b"x" * 7), ("8.b", b"x" * 5)))) == 2


@pytest.mark.parametrize("content", [b"", b"<html>" * 200, tar(("7.jpg", b"x" * 999))[:700]])
def test_parts_of_a_tar_are_reported(content: bytes) -> None:
    with pytest.raises(OSError, match="a.tar is not a complete tar"):
        samples(content)


def test_deep_records_are_refused() -> None:
    members = {"jpg": b"x", "json": b"[" * 100_000, "__url__": "a.tar", "__key__": "\x1b[2J"}
    with pytest.raises(ValueError, match=r"key '\\x1b\[2J': invalid JSON .*nested too deeply"):
        parse_streamed_sample(members)
