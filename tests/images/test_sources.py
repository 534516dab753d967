"""Photos in archives, lists, on the web and in stores."""

import io
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from question_models import small_detector, small_mac

import visattn as va
from visattn.images import reader
from visattn.images.reader import ImageError, read_image
from visattn.images.sources import find_images, read_images, read_list
from visattn.io import sources as remote
from visattn.io.sources import Source
from visattn.models import (
    AttentionResNet,
    RecurrentAttentionModel,
    ShowAttendTell,
    SmallEncoder,
    UNet,
)
from visattn.pipelines import glimpses
from visattn.results.kinds import SPECIAL_TOKENS


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


def test_a_path_that_cannot_be_looked_up_is_left_to_the_reader() -> None:
    too_long = Path("x" * 300 + ".png")
    assert find_images(too_long) == [too_long]


FORMS = {"zip": "zip", "tar": "tar", "tar.gz": "gztar", "tar.bz2": "bztar", "tar.xz": "xztar"}


def packed(folder: Path, form: str) -> Path:
    """Return an archive of a folder."""
    return Path(shutil.make_archive(str(folder.parent / "x"), FORMS[form], folder))


def levels(sources: list[Source]) -> list[int]:
    return [int(read_image(source).pixels[0, 0, 0]) for source in sources]


@pytest.mark.parametrize("form", FORMS)
def test_an_archive_gives_the_photos_of_its_folder(folder: Path, form: str) -> None:
    archive = packed(folder, form)
    files: list[Any] = find_images(folder)
    expected = [path.relative_to(folder).as_posix() for path in files]
    sources: list[Any] = find_images(archive)
    assert [source.relative.as_posix() for source in sources] == sorted(expected)
    assert sorted(levels(sources[::-1])) == [0, 1, 2, 3]
    kind, inside = ("zip", "") if form == "zip" else ("tar", "./")
    assert str(sources[0]) == f"{kind}://{inside}A/d.png::{archive}"
    assert len(find_images([archive, folder, archive])) == 8
    if kind == "zip":
        assert levels(find_images(f"zip://a/*.png::{archive}")) == [1]
    assert sorted(levels(find_images(f"{kind}://{inside}a::{archive}"))) == [1, 2]
    assert [image.name for image in read_images(archive)] == list(map(str, sources))


def test_hostile_entries_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(7))
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("../secret.png", str(secret), "good.png"):
            archive.writestr(name, png(3))
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
    for name in ("x.zip", "x.tar"):
        sources: list[Any] = find_images(tmp_path / name)
        for source in sources:
            assert not source.relative.is_absolute()
            assert ".." not in source.relative.parts
            try:
                assert levels([source]) == [3]  # never the level of the secret
            except ImageError:
                assert source.name != "good.png"
        assert any(source.name == "good.png" for source in sources)
    [zeros] = [source for source in find_images(tmp_path / "x.zip") if source.name == "zeros.png"]
    monkeypatch.setattr(reader, "_MAX_BYTES", 2**16)
    with pytest.raises(ImageError, match="longer than"):
        read_image(zeros)


def test_damaged_archives_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zipped = packed(folder, "zip")
    for name, wrong in (("y.zip", zipped.read_bytes()[:90]), ("y.tar", b"x" * 3000)):
        (folder.parent / name).write_bytes(wrong)
        with pytest.raises(OSError, match=rf"{name} cannot be read"):
            find_images(folder.parent / name)
    packed(folder, "tar.gz")
    usage = remote.shutil._ntuple_diskusage(2000, 0, 2000)
    monkeypatch.setattr(remote.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(ValueError, match="needs over half of the free disk"):
        find_images(folder.parent / "x.tar.gz")


def test_folders_are_searched_and_files_are_kept(tmp_path: Path) -> None:
    for name in (
        "b.JPG",
        "a.png",
        "d.heic",
        ".hidden.png",
        "notes.txt",
        "sub/c.webp",
        ".git/e.png",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    paths = find_images([tmp_path])
    assert [path.name for path in paths] == ["a.png", "b.JPG", "d.heic", "c.webp"]
    assert find_images(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
    assert find_images([tmp_path / "b.JPG", str(tmp_path)])[0] == tmp_path / "b.JPG"
    assert len(find_images([tmp_path, tmp_path])) == 4
    (tmp_path / "empty").mkdir()
    for wrong, reason in (
        ([tmp_path / "empty"], r"no image in .*; looked for .*\.jpg"),
        ([], "no image in an empty list"),
        ([tmp_path, tmp_path / "gone"], "gone does not exist; pass image files"),
    ):
        with pytest.raises(FileNotFoundError, match=reason):
            find_images(wrong)


def test_patterns_and_lists(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert levels(find_images("**/*.png")) == [3, 2, 1, 0]
    assert levels(find_images(["a/*.png", Path("b.png")])) == [1, 0]
    with pytest.raises(FileNotFoundError, match=r"no file matches \*\.jpg"):
        find_images("*.jpg")
    (folder / "[1].png").write_bytes(png(8))
    assert levels(find_images("[1].png")) == [8]
    listed = folder / "list"
    listed.write_bytes("\ufeffb.png\r\n\r\na\r\ngone.png\r\n".encode())
    names = read_list(listed)
    assert names == ["b.png", "a", "gone.png"]
    sources = find_images(names, keep_missing=True)
    assert levels(sources[:-1]) == [0, 1, 2]
    with pytest.raises(ImageError, match="gone.png: no such file"):
        read_image(sources[-1])
    listed.write_bytes(b"b.png\0a/z.png\0")
    assert read_list(listed) == ["b.png", "a/z.png"]
    listed.write_bytes(b"\n\n")
    with pytest.raises(ValueError, match="lists no file"):
        read_list(listed)


ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "moved.png": (302, {"Location": "/dogs/a%20dog.png"}, b""),
    "file.png": (302, {"Location": "file:///etc/passwd"}, b""),
    "gone.png": (404, {}, b""),
    "cut.png": (200, {"Content-Length": "999"}, png(4)),
    "huge.png": (200, {}, png(4) * 200),
}


class _Server(BaseHTTPRequestHandler):
    """Serves a photo, redirects, and answers that fail."""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        code, headers, content = ANSWERS.get(name, (200, {}, png(4)))
        self.send_response(code)
        for header in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815, a name of the base class

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
    [source] = find_images(f"{server}/dogs/a%20dog.png?size=3")
    assert (source.name, levels([source])) == ("a dog.png", [4])
    assert levels(find_images(f"{server}/moved.png")) == [4]
    for name in ("gone.png", "cut.png", "file.png"):
        with pytest.raises(ImageError, match=name):
            read_image(find_images(f"{server}/{name}")[0])
    monkeypatch.setattr(reader, "_MAX_BYTES", 2**10)
    with pytest.raises(ImageError, match="longer than"):
        read_image(find_images(f"{server}/huge.png")[0])
    with pytest.raises(ValueError, match="Protocol not known: gopher"):
        find_images("gopher://example.org/a.png")


def test_a_store_is_read_by_fsspec(folder: Path) -> None:
    store = fsspec.filesystem("memory")
    for name in NAMES:
        store.pipe_file(f"/bucket/photos/{name}", (folder / name).read_bytes())
    try:
        sources: list[Any] = find_images("memory://bucket/photos")
        assert [source.relative.as_posix() for source in sources] == sorted(NAMES)
        assert levels(sources) == [3, 2, 1, 0]
        assert levels(find_images("memory://bucket/photos/b.png")) == [0]
        with pytest.raises(FileNotFoundError, match="memory://bucket/none"):
            find_images("memory://bucket/none")
    finally:
        store.rm("/bucket", recursive=True)


def results_of(photos: Callable[[], Any]) -> dict[str, list[Any]]:
    """Return what each function of the library gives for photos: image, and its size."""
    torch.manual_seed(0)
    encoder = SmallEncoder((24, 40), channels=8)
    captioner = ShowAttendTell((*SPECIAL_TOKENS, "red"), encoder, hidden_size=11)
    segmenter = UNet(("background", "cat"), encoder)
    glimpse = RecurrentAttentionModel(("cat", "dog"), (24, 40), (0.5,), (0.5,), glimpse_size=7)
    classifier = AttentionResNet(("cat", "dog"), depth=8, stem_width=4)
    made: dict[str, list[Any]] = {
        "explain": va.explain(classifier, photos(), "gradcam"),
        "caption": [each.maps for each in va.caption(captioner, photos(), max_length=2)],
        "ask": [each.maps for each in va.ask(small_mac(), photos(), "the ring")],
        "detect": [each.maps for each in va.detect(small_detector(), photos())],
        "glimpses": [each.maps for each in glimpses(glimpse, photos())],
    }
    found = {name: [(each.info.image, each.geometry.image_size) for each in maps]
             for name, maps in made.items()}  # fmt: skip
    found["segment"] = [(each.image, each.labels.shape) for each in va.segment(segmenter, photos())]
    return found


def test_every_function_takes_photos_in_every_form(folder: Path) -> None:
    file, turned = folder / "b.png", folder.parent / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("CMYK", (5, 7)).save(turned, exif=exif)

    def forms() -> list[Any]:
        return [
            io.BytesIO(file.read_bytes()), file, str(file), file.read_bytes(), Image.open(file),
            turned, Image.new("LA", (7, 5)), np.zeros((5, 7), np.uint16), np.ones((5, 7, 3)),
        ]  # fmt: skip

    names = ("image", file, file, "image", file, turned, "image", "image", "image")
    for function, made in results_of(forms).items():
        assert made == [(str(name), (5, 7)) for name in names], function
    archive = packed(folder, "zip")
    for name, made in results_of(lambda: archive).items():
        assert made == [(str(source), (5, 7)) for source in find_images(archive)], name


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("gone.png", "gone.png: no such file$"),
        ("http://127.0.0.1:9/a.png", "127.0.0.1:9/a.png: no such file, or no connection to it"),
        ("", "not a regular file"),
        (b"", "not an image of a known format"),
        ([], "at least one image, got none"),
    ],
)
def test_every_function_says_what_is_wrong_with_a_photo(image: Any, reason: str) -> None:
    functions = [
        lambda: va.explain(AttentionResNet(("cat",), depth=8, stem_width=4), image, "gradcam"),
        lambda: va.ask(small_mac(), image, "the ring"),
        lambda: va.detect(small_detector(), image),
    ]
    for function in functions:
        with pytest.raises(ValueError, match=reason):
            function()
