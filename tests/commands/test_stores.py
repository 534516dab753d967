"""Results in stores: objects appear by one upload each, and a run resumes from one listing."""

import io
import json
import os
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from visattn.cli import main
from visattn.commands.outputs import StoreOutput
from visattn.commands.records import Origin, Part, ResultFolder
from visattn.io.stores import Store, write_url

fsspec = pytest.importorskip("fsspec")
Capsys = pytest.CaptureFixture[str]
OUT = "memory://bucket/maps"


class Requests:
    """Requests to the store: uploads by name, reads, listings; the n-th upload may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = fsspec.filesystem("memory")
        self.uploads: Counter[str] = Counter()
        self.reads: list[str] = []
        self.listings = 0
        self.fail_at = 0
        kind = type(self.store)
        pipe, cat, opened, find = kind.pipe_file, kind.cat_file, kind.open, kind.find

        def pipe_file(store: Any, path: str, value: bytes, **options: Any) -> None:
            if self.fail_at and sum(self.uploads.values()) + 1 == self.fail_at:
                raise RuntimeError("SlowDown")
            self.uploads[path] += 1
            pipe(store, path, value, **options)

        def cat_file(store: Any, path: str, *args: Any, **options: Any) -> bytes:
            self.reads.append(path)
            return cat(store, path, *args, **options)

        def open_file(store: Any, path: str, mode: str = "rb", **options: Any) -> Any:
            if mode == "rb":
                self.reads.append(path)
            return opened(store, path, mode, **options)

        def find_all(store: Any, path: str, **options: Any) -> Any:
            self.listings += 1
            return find(store, path, **options)

        for name, call in (
            ("pipe_file", pipe_file), ("cat_file", cat_file), ("open", open_file),
            ("find", find_all),
        ):  # fmt: skip
            monkeypatch.setattr(kind, name, call)

    def clear(self) -> None:
        self.uploads.clear()
        self.reads.clear()
        self.listings = 0

    def results(self, folder: str = "/bucket/maps/") -> dict[str, bytes]:
        """Return the objects of a folder, by their names."""
        paths = [path for path in self.store.store if path.startswith(folder)]
        return {path.removeprefix(folder): self.store.store[path].getvalue() for path in paths}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    requests = Requests(monkeypatch)
    yield requests
    requests.store.store.clear()


def png(seed: int, path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (29, 41, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path.read_bytes()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for seed, name in enumerate(("a", "b", "c", "sub/a")):
        png(seed, tmp_path / f"photos/{name}.png")
    return tmp_path / "photos"


def overlay(photos: object, cnn: str, out: object, *words: str) -> int:
    options = ("--model", cnn, "--method", "gradcam", "--save", "overlay", "--batch-size", "1")
    return main(["overlay", str(photos), *options, "--out", str(out), *words])


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_store_holds_what_a_folder_holds(
    photos: Path, cnn: str, tmp_path: Path, requests: Requests, capsys: Capsys
) -> None:
    assert overlay(photos, cnn, tmp_path / "out") == 0
    rows = capsys.readouterr().out
    assert overlay(photos, cnn, OUT, "--shard", "1/2") == 0
    assert overlay(photos, cnn, OUT, "--shard", "2/2") == 0
    output = capsys.readouterr()
    assert output.out == rows
    assert f"index and table of all results: visattn index {OUT}" in output.err
    assert "of the 2 images of other shards all have results" in output.err
    made = {name for name in requests.uploads if "visattn-run" not in name}
    assert {requests.uploads[name] for name in made} == {1}
    assert main(["index", OUT]) == 0
    assert requests.results() == contents(tmp_path / "out")
    before = dict(requests.uploads)
    assert main(["index", OUT]) == 0
    assert requests.uploads == before


def test_index_renews_pages_and_table_of_a_folder(
    photos: Path, cnn: str, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    overlay(photos, cnn, out)
    before = contents(out)
    for name in ("index.html", "overlay.csv"):
        (out / name).unlink()
    assert main(["index", str(out)]) == 0
    assert contents(out) == before
    (out / "overlay.csv").write_text("mine")
    assert main(["index", str(out)]) == 1
    assert "overlay.csv, which this command did not write" in capsys.readouterr().err
    assert main(["index", str(out), "--overwrite"]) == 0
    assert contents(out) == before
    assert main(["index", str(photos)]) == 1
    assert "holds no results of caption, overlay" in capsys.readouterr().err


@pytest.mark.parametrize("fail_at", [1, 3, 6])
def test_a_run_whose_upload_fails_is_resumed(
    fail_at: int, photos: Path, cnn: str, tmp_path: Path, requests: Requests, capsys: Capsys
) -> None:
    """The first upload says what the run is about; then come the record of a map and its files."""
    overlay(photos, cnn, tmp_path / "out")
    requests.fail_at = fail_at
    assert overlay(photos, cnn, OUT) == 1
    message = capsys.readouterr().err
    assert "SlowDown" in message
    assert ("check the name and your permissions" in message) == (fail_at == 1)
    requests.fail_at = 0
    assert overlay(photos, cnn, OUT) == 0
    made = {name for name in requests.uploads if "visattn-run" not in name}
    assert {requests.uploads[name] for name in made} == {1}
    main(["index", OUT])
    assert requests.results() == contents(tmp_path / "out")


def test_finished_photos_are_recognized_by_one_listing(
    photos: Path, cnn: str, requests: Requests, capsys: Capsys
) -> None:
    for name, content in contents(photos).items():
        requests.store.pipe_file(f"/bucket/photos/{name}", content)
    source = "memory://bucket/photos"
    assert overlay(source, cnn, OUT) == 0
    rows = capsys.readouterr().out
    first = requests.results()
    requests.clear()
    assert overlay(source, cnn, OUT) == 0
    assert capsys.readouterr().out == rows
    assert Counter(requests.reads) == {f"/bucket/maps/{n}": 1 for n in first if n.endswith("json")}
    assert requests.listings == 3  # photos, results, and results once this run is known to others
    assert len(requests.uploads) == 1
    # A copy has another identity and the same content; what was changed is computed again.
    requests.store.pipe_file("/bucket/photos/a.png", contents(photos)["a.png"])
    requests.store.pipe_file("/bucket/photos/b.png", png(9, photos / "b.png"))
    requests.clear()
    assert overlay(source, cnn, OUT) == 0
    read = {path for path in requests.reads if "photos" in path}
    assert read == {"/bucket/photos/a.png", "/bucket/photos/b.png"}
    second = requests.results()
    changed = {name for name in first if first[name] != second[name]}
    assert changed
    assert {name.split(".")[0] for name in changed} == {"b"}


def test_results_are_replaced_only_where_that_is_known_to_be_right(
    photos: Path, cnn: str, requests: Requests, capsys: Capsys
) -> None:
    requests.store.pipe_file("/bucket/maps/a.gradcam.npy", b"mine")
    assert overlay(photos, cnn, OUT) == 1
    assert "holds a.gradcam.npy, which would be replaced: no record" in capsys.readouterr().err
    assert overlay(photos, cnn, OUT, "--overwrite") == 0
    squashed = ("--resize-mode", "squash")
    assert overlay(photos, cnn, OUT, *squashed) == 0
    after = requests.results()
    requests.store.store.clear()
    overlay(photos, cnn, OUT, *squashed)
    assert requests.results() == after


def test_two_runs_of_other_settings_do_not_write_at_once(requests: Requests) -> None:
    first, second = StoreOutput(OUT), StoreOutput(OUT)
    purpose = {"command": "overlay", "purpose": "1"}
    with first.claim(purpose):
        with second.claim(purpose):  # another shard of the same work
            assert len(requests.results()) == 2
        with pytest.raises(ValueError, match=r"is written by visattn overlay on .*remove memory:"):
            second.claim({**purpose, "purpose": "2"}).__enter__()
    assert requests.results() == {}
    killed = os.fork()
    if not killed:
        os._exit(0)
    os.waitpid(killed, 0)
    claim = first.claim(purpose)
    claim.__enter__()
    [name] = requests.results()
    record = {**json.loads(requests.results()[name]), "pid": killed}
    requests.store.pipe_file(f"/bucket/maps/{name}", json.dumps(record).encode())
    with second.claim({**purpose, "purpose": "2"}):
        assert len(requests.results()) == 1


def test_a_resume_of_many_results_waits_for_few_answers(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """320 records, 20 ms each, in 32 threads: 0.2 s instead of 6.4."""
    count = 320
    origins = [Origin("mean", f"{n}.png", {"image_sha256": "0"}, {}) for n in range(count)]
    with ResultFolder(StoreOutput(OUT)) as folder:
        for number, origin in enumerate(origins):
            folder.write(Part(str(number), {"mean": number}), origin)
    kind = type(requests.store)
    cat = kind.cat_file
    monkeypatch.setattr(
        kind, "cat_file", lambda *args, **more: (time.sleep(0.02), cat(*args, **more))[1]
    )
    out = StoreOutput(OUT)
    folder = ResultFolder(out)
    start = time.perf_counter()
    done = outputs_in_threads(folder, origins)
    assert time.perf_counter() - start < 3
    assert done == [*range(count)]


def outputs_in_threads(folder: ResultFolder, origins: list[Origin]) -> list[Any]:
    from visattn.commands.files import map_in_threads

    def finished(number: int) -> Any:
        record = folder.finished(str(number), origins[number])
        return None if record is None else record["mean"]

    numbers = range(len(origins))
    return [get() for _, get in map_in_threads(finished, numbers, threads=folder.out.readers)]


def test_parts_of_a_table_lie_in_a_store(
    photos: Path, cnn: str, requests: Requests, capsys: Capsys
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    options = ("--model", cnn, "--method", "gradcam", "--save", "table", "--out", OUT)
    for number in (1, 2, 3):
        assert main(["overlay", str(photos), *options]) == 0
        assert capsys.readouterr().out == "part-000000.parquet\t4\t0\n"
        assert requests.uploads == {"/bucket/maps/part-000000.parquet": 1 + (number == 3)}
        if number == 2:
            png(9, photos / "b.png")
    table = parquet.read_table(io.BytesIO(requests.results()["part-000000.parquet"]))
    assert table["name"].to_pylist() == ["a", "b", "c", "sub/a"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--out", "zip://maps.zip"], "an archive, which is lost if its writer is killed"),
        (["--out", "s3:///maps"], "names no bucket"),
        (["--out", OUT, "--boxes", "memory://a.json"], "must be a path of this machine"),
        (["--out", "memory:///PHOTOS/"], "is searched for images"),
    ],
)
def test_what_a_store_cannot_take_is_refused(
    words: list[str], reason: str, requests: Requests, capsys: Capsys
) -> None:
    requests.store.pipe_file("/PHOTOS/a.png", b"")
    with suppress(SystemExit):
        assert main(["overlay", "memory://PHOTOS", "--model", "timm:resnet10t", *words]) > 0
    assert reason in capsys.readouterr().err


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket of a server on this machine."""
    server = os.environ.get("VISATTN_MOTO") or shutil.which("moto_server")
    if server is None:
        pytest.skip("needs the server of moto: VISATTN_MOTO=.../bin/moto_server")
    fs = pytest.importorskip("pyarrow.fs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    for name in names:
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with subprocess.Popen([server, "-p", str(port)], stderr=subprocess.DEVNULL) as process:
        try:
            options = {"scheme": "http", "endpoint_override": f"127.0.0.1:{port}"}
            client = fs.S3FileSystem(allow_bucket_creation=True, **options)
            for _ in range(120):
                with suppress(OSError):
                    client.create_dir("bucket")
                    break
                time.sleep(0.5)
            yield "s3://bucket"
        finally:
            process.terminate()


@pytest.mark.s3
def test_s3_by_pyarrow(bucket: str, photos: Path, cnn: str, tmp_path: Path, capsys: Capsys) -> None:
    for name, content in contents(photos).items():
        write_url(f"{bucket}/photos/{name}", content)
    source, out = f"{bucket}/photos", f"{bucket}/maps"
    assert overlay(photos, cnn, tmp_path / "out") == 0
    rows = capsys.readouterr().out
    for _ in range(2):
        assert overlay(source, cnn, out, "--shard", "1/2") == 0
        assert overlay(source, cnn, out, "--shard", "2/2") == 0
        assert capsys.readouterr().out == rows
    assert main(["index", out]) == 0
    store = Store(out)
    written = {path.removeprefix("bucket/maps/") for path in store.find()}
    assert {name for name in written if name} == {*contents(tmp_path / "out")}
    for name, content in contents(tmp_path / "out").items():
        if name.endswith((".npy", ".png")):
            assert store.read(f"bucket/maps/{name}", 2**20) == content
    assert overlay(source, cnn, f"{bucket}x/maps") == 1
    assert "there is no bucket bucketx" in capsys.readouterr().err
