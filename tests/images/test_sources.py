"""Photos in archives, tables, lists, on the web and in stores."""

import io
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import visattn as va
from visattn.images.reader import ImageError, read_image
from visattn.images.sources import find_sources, list_photos, read_images, read_list
from visattn.io import archives, web
from visattn.io.locations import Source
from visattn.models.resnet import AttentionResNet


def png(level: int, size: tuple[int, int] = (7, 5)) -> bytes:
    file = io.BytesIO()
    Image.new("L", size, level).save(file, "png")
    return file.getvalue()


NAMES = ("b.png", "a/z.png", "a/c/1.png", "A/d.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four photos in a folder."""
    for level, name in enumerate(NAMES):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(png(level))
    (tmp_path / "in" / ".hidden.png").write_bytes(png(9))
    (tmp_path / "in" / "notes.txt").write_text("notes")
    return tmp_path / "in"


def packed(folder: Path, name: str) -> Path:
    """Return an archive of a folder, in an order of its own."""
    file = folder.parent / name
    entries = sorted((path for path in folder.rglob("*")), reverse=True)
    if name.endswith(".zip"):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in entries:
                archive.write(path, path.relative_to(folder).as_posix())
        return file
    mode: Any = f"w:{name.rpartition('.')[2]}".replace("w:tar", "w")
    with tarfile.open(file, mode) as tar:
        for path in entries:
            tar.add(path, f"./{path.relative_to(folder).as_posix()}", recursive=False)
    return file


def levels(sources: list[Source]) -> list[int]:
    return [int(read_image(source).pixels[0, 0, 0]) for source in sources]


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tar.bz2", "x.tar.xz"])
def test_an_archive_gives_the_photos_of_its_folder_in_their_order(folder: Path, name: str) -> None:
    archive = packed(folder, name)
    files: list[Any] = find_sources(folder)
    expected = [path.relative_to(folder).as_posix() for path in files]
    sources: list[Any] = find_sources(archive)
    assert [source.relative.as_posix() for source in sources] == expected
    assert levels(sources[::-1]) == levels(find_sources(folder)[::-1])
    assert str(sources[0]) == f"{archive}/{expected[0]}"
    assert len(find_sources([archive, folder, archive])) == 8
    assert [image.name for image in read_images(archive)] == list(map(str, sources))


def test_hostile_entries_are_reported_and_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(7))
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("../secret.png", str(secret), "C:\\a.png", "good.png"):
            archive.writestr(name, png(3))
        link = zipfile.ZipInfo("link.png")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, str(secret))
        archive.writestr("zeros.png", bytes(2**20))
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in ("../secret.png", str(secret), "good.png"):
            member = tarfile.TarInfo(name)
            member.size = len(png(3))
            tar.addfile(member, io.BytesIO(png(3)))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo(f"{kind!r}.png")
            member.type, member.linkname = kind, str(secret)
            tar.addfile(member)
    for name, count in (("x.zip", 6), ("x.tar", 6)):
        sources: list[Any] = find_sources(tmp_path / name)
        assert len(sources) == count
        assert all(".." not in source.relative.parts for source in sources)
        reasons = []
        for source in sources:
            if source.name == "good.png":
                assert levels([source]) == [3]
                continue
            with pytest.raises(ImageError) as error:
                read_image(source, max_bytes=2**16)
            reasons.append(str(error.value))
        assert sum("must be a path inside its directory" in reason for reason in reasons) >= 2
        assert sum("link" in reason for reason in reasons) == (3 if name == "x.tar" else 1)
        assert any("more than max_bytes" in reason for reason in reasons) == (name == "x.zip")


def test_damaged_archives_are_refused_or_read_as_far_as_they_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar, zipped = packed(folder, "x.tar"), packed(folder, "x.zip")
    content = tar.read_bytes()
    half = folder.parent / "half.tar"
    with tarfile.open(tar) as whole:
        fifth = [member for member in whole if member.isfile()][4]
    half.write_bytes(content[: fifth.offset_data - 200])
    *complete, rest = sorted(find_sources(half), key=lambda source: "the rest" in str(source))
    assert levels(complete) == [0, 1, 2]
    with pytest.raises(ImageError, match="the archive is damaged"):
        read_image(rest)
    for name, wrong in (("y.zip", zipped.read_bytes()[:90]), ("y.tar", b"x" * 3000)):
        (folder.parent / name).write_bytes(wrong)
        with pytest.raises(ValueError, match=rf"{name} is not a readable archive"):
            find_sources(folder.parent / name)
    packed(folder, "x.tar.gz")
    monkeypatch.setattr(archives, "_MIN_UNPACKED", 1000)
    monkeypatch.setattr(archives, "_MAX_RATIO", 1)
    with pytest.raises(ValueError, match="larger than 1,000 bytes when it is unpacked"):
        find_sources(folder.parent / "x.tar.gz")


def test_patterns_and_lists(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert levels(find_sources("**/*.png")) == [3, 2, 1, 0]
    assert levels(find_sources(["a/*.png", Path("b.png")])) == [1, 0]
    with pytest.raises(FileNotFoundError, match=r"no file matches \*\.jpg"):
        find_sources("*.jpg")
    (folder / "[1].png").write_bytes(png(8))
    assert levels(find_sources("[1].png")) == [8]
    listed = folder / "list"
    listed.write_bytes("\ufeffb.png\r\n\r\na\r\ngone.png\r\n".encode())
    names = read_list(listed)
    assert names == ["b.png", "a", "gone.png"]
    sources = find_sources(names, keep_missing=True)
    assert levels(sources[:-1]) == [0, 1, 2]
    with pytest.raises(ImageError, match="gone.png: no such file"):
        read_image(sources[-1])
    listed.write_bytes(b"b.png\0a/z.png\0")
    assert read_list(listed) == ["b.png", "a/z.png"]
    listed.write_bytes(b"\n\n")
    with pytest.raises(ValueError, match="lists no file"):
        read_list(listed)


class _Server(BaseHTTPRequestHandler):
    """Serves a photo, redirects, and answers that fail."""

    def do_GET(self) -> None:
        content = png(4)
        name = self.path.rpartition("/")[2]
        if name == "moved.png":
            self.send_response(302)
            self.send_header("Location", "/dogs/a%20dog.png")
            self.end_headers()
        elif name in ("file.png", "private.png"):
            self.send_response(302)
            address: Any = self.server.server_address
            private = f"http://127.0.0.1:{address[1]}/a.png"
            to = {"file.png": "file:///etc/passwd", "private.png": private}
            self.send_header("Location", to[name])
            self.end_headers()
        elif name == "gone.png":
            self.send_error(404)
        elif name == "slow.png":
            time.sleep(0.6)
        else:
            self.send_response(200)
            size = {"cut.png": len(content) + 9, "huge.png": 2**40}.get(name, len(content))
            self.send_header("Content-Length", str(size))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, name of the base class
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as running:
        running.daemon_threads = False  # are waited for
        thread = threading.Thread(target=partial(running.serve_forever, 0.02))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def test_photos_on_the_web(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_TIMEOUT", 0.2)
    [source] = find_sources(f"{server}/dogs/a%20dog.png?size=3")
    assert (source.name, levels([source])) == ("a dog.png", [4])
    assert levels(find_sources(f"{server}/moved.png")) == [4]
    for name, reason in (
        ("gone.png", "the server answers 404, Not Found"),
        ("cut.png", "the answer is incomplete"),
        ("huge.png", "more than max_bytes"),
        ("file.png", "Redirection to url"),
        ("slow.png", "nothing for 0.2 seconds|timed out"),
    ):
        with pytest.raises(ImageError, match=rf"{name}: .*({reason})"):
            read_image(find_sources(f"{server}/{name}")[0])
    public = {f"{server}/private.png"}
    monkeypatch.setattr(web, "_is_public", lambda url: url in public)
    with pytest.raises(ImageError, match="in a private network"):
        read_image(find_sources(f"{server}/private.png")[0])
    with pytest.raises(ValueError, match="holds a user name or password"):
        find_sources("https://me:secret@example.org/a.png")
    with pytest.raises(ValueError, match="download it, and pass the file"):
        find_sources("https://example.org/photos.zip")
    with pytest.raises(ValueError, match="is no URL that is read"):
        find_sources("gopher://example.org/a.png")


def test_a_store_is_read_by_fsspec(folder: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for name in NAMES:
        store.pipe_file(f"/bucket/photos/{name}", (folder / name).read_bytes())
    try:
        sources: list[Any] = find_sources("memory://bucket/photos")
        files: list[Any] = find_sources(folder)
        assert [source.relative.as_posix() for source in sources] == [
            path.relative_to(folder).as_posix() for path in files
        ]
        assert levels(sources) == levels(find_sources(folder))
        assert levels(find_sources("memory://bucket/photos/b.png")) == [0]
        with pytest.raises(FileNotFoundError, match="memory://bucket/none"):
            find_sources("memory://bucket/none")
    finally:
        store.rm("/bucket", recursive=True)


def test_photos_in_tables(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows: list[Any] = [{"bytes": png(level), "path": f"{level}.png"} for level in range(100)]
    rows[3] = {"bytes": None, "path": "/etc/passwd"}
    rows[5] = {"bytes": None, "path": "b.png"}
    rows[7] = None
    table = pa.table({"label": list(range(100)), "image": pa.array(rows, image)})
    file = folder / "train.parquet"
    parquet.write_table(table, file, row_group_size=33)
    sources = find_sources(file)
    assert [source.name for source in sources[2:8]] == [
        "2.png", "passwd", "4.png", "b.png", "6.png", "train-07",
    ]  # fmt: skip
    chosen = [source for index, source in enumerate(sources) if index not in (3, 7)]
    expected = [0 if index == 5 else index for index in range(100) if index not in (3, 7)]
    assert levels(chosen) == expected
    assert levels(chosen[::-9]) == expected[::-9]
    with pytest.raises(ImageError, match=r"train\.parquet:3: .*outside of the folder"):
        read_image(sources[3])
    with pytest.raises(ImageError, match=r"train\.parquet:7: the row holds no image"):
        read_image(sources[7])
    assert find_sources(f"{file}:image") == sources
    with pytest.raises(ValueError, match=r"no column 'label2'; there are label \(int64\)"):
        find_sources(f"{file}:label2")
    saved = folder.parent / "saved"  # as datasets.save_to_disk writes it
    saved.mkdir()
    for name in ("state.json", "dataset_info.json"):
        (saved / name).write_text("{}")
    arrow = str(saved / "data-00000-of-00001.arrow")
    with pa.OSFile(arrow, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.slice(90))
    assert levels(find_sources(saved)) == list(range(90, 100))
    plain = pa.table({"jpg": [png(1), png(2)], "thumbnail": [png(3), png(4)]})
    parquet.write_table(plain, folder / "plain.parquet")
    columns: list[Any] = find_sources(folder / "plain.parquet")
    assert [str(source.relative) for source in columns] == [
        "plain-0", "plain-1",
    ]  # fmt: skip
    assert levels(find_sources(f"{folder}/plain.parquet:thumbnail")) == [3, 4]
    parquet.write_table(pa.table({"a": [png(1)], "b": [png(2)]}), folder / "two.parquet")
    with pytest.raises(ValueError, match=r"several columns.*two\.parquet:COLUMN"):
        find_sources(folder / "two.parquet")


def test_the_library_takes_what_the_commands_take(folder: Path) -> None:
    model = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
    archive = packed(folder, "x.zip")
    maps = va.explain(model, archive, "gradcam")
    assert [each.info.image for each in maps] == [str(source) for source in find_sources(archive)]
    pixels = np.zeros((5, 7, 3), np.uint8)
    assert len(list_photos([pixels, str(folder)])) == 5
    assert list_photos(folder / "b.png") == [folder / "b.png"]
