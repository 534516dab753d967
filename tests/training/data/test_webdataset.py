"""Tars at an address train, each process on its own share, and nothing that they hold runs."""

import functools
import http.server
import importlib.util
import os
import pickle
import shutil
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from class_miniatures import write_photo_folders
from miniatures import CaptionPaths, write_caption_data
from shard_miniatures import write_caption_shards, write_class_shards

from visattn.data.shards.webdataset import check_address, secure_webdataset, streamed_sample
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import SmallEncoder
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.training.data.webdataset import (
    WebDatasetCaptionDataModule,
    WebDatasetClassificationDataModule,
)
from visattn.training.tasks.captioning import CaptioningTask
from visattn.training.tasks.classification import ClassificationTask

MISSING = [
    name
    for name, found in {
        "webdataset": importlib.util.find_spec("webdataset"), "curl": shutil.which("curl"),
    }.items()
    if found is None
]  # fmt: skip
streams = pytest.mark.skipif(
    bool(MISSING), reason=f"no {', '.join(MISSING)}: pip install 'visattn[webdataset]'"
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> CaptionPaths:
    return write_caption_data(tmp_path_factory.mktemp("mini"), photos=23)


@pytest.fixture(scope="module")
def store(paths: CaptionPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards of captions and of classes, the training tars apart."""
    folder = tmp_path_factory.mktemp("store")
    write_photo_folders(folder / "photos", train=5)
    write_caption_shards(folder / "told", paths)
    write_class_shards(folder / "classed", folder / "photos", tar=3)
    for kind in ("told", "classed"):
        (folder / "far" / kind).mkdir(parents=True)
        for path in [*(folder / kind).glob("train-*.tar"), folder / kind / "train.index.npy"]:
            path.rename(folder / "far" / kind / path.name)
    return folder


@pytest.fixture
def address(store: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(store / "far"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def set_up(data: Any, *, rank: int = 0, world: int = 1, epoch: int = 0) -> Any:
    info = data.data_info
    if "words" in info:
        task: Any = CaptioningTask(
            lambda words: ShowAttendTell(
                words, SmallEncoder(size=(24, 24), channels=8), word_width=7, hidden=11, attention=5
            ),
            info,
        )
    else:
        task = ClassificationTask(
            lambda classes: AttentionResNet(classes, depth=8, width=4, size=(24, 24)), info
        )
    data.trainer = SimpleNamespace(
        lightning_module=task,
        global_rank=rank,
        world_size=world,
        current_epoch=epoch,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    data.setup("fit")
    return data


def told(store: Path, address: str, **options: Any) -> WebDatasetCaptionDataModule:
    options = {"min_count": 1, "batch": 3, "workers": 0, **options}
    return WebDatasetCaptionDataModule(f"{address}/told/", str(store / "told"), **options)


def names(data: WebDatasetCaptionDataModule) -> list[str]:
    return [sample.id for batch in data.train_dataloader() for sample in batch.samples]


@streams
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_has_as_many_batches_as_were_promised(
    store: Path, address: str, paths: CaptionPaths, workers: int
) -> None:
    data = set_up(told(store, address, workers=workers, mirror=True))
    loader = data.train_dataloader()
    assert len(loader) == 19 // 3
    batches = list(loader)
    assert [len(batch.samples) for batch in batches] == [3] * 6
    assert batches[0].images.shape == (3, 3, 24, 24)
    seen = {sample.id for batch in batches for sample in batch.samples}
    assert seen <= set(paths.train.read_text().split())
    assert len(seen) > 18 - 6
    (batch,) = data.val_dataloader()
    assert [sample.id for sample in batch.samples] == paths.validation.read_text().split()


@streams
def test_one_process_without_workers_sees_each_photo_once_at_most(
    store: Path, address: str
) -> None:
    epochs = [names(set_up(told(store, address), epoch=epoch)) for epoch in (0, 1, 0)]
    assert all(len(set(epoch)) == 18 for epoch in epochs)
    assert epochs[0] == epochs[2] != epochs[1]


@streams
def test_processes_take_tars_of_their_own_and_as_many_steps(store: Path, address: str) -> None:
    both = [names(set_up(told(store, address), rank=rank, world=2)) for rank in (0, 1)]
    assert [len(one) for one in both] == [9, 9]
    assert not set(both[0]) & set(both[1])


@streams
def test_images_with_classes_stream_too(store: Path, address: str) -> None:
    data = set_up(
        WebDatasetClassificationDataModule(
            f"{address}/classed",
            str(store / "classed"),
            augment=["RandomHorizontalFlip"],
            batch=4,
            workers=0,
        )
    )
    batches = list(data.train_dataloader())
    assert [tuple(batch.images.shape) for batch in batches] == [(4, 3, 24, 24)] * 3
    counted = Counter(int(label) for batch in batches for label in batch.labels)
    assert set(counted) == {0, 1, 2}


@streams
def test_a_store_that_does_not_answer_is_an_error(store: Path, address: str) -> None:
    data = set_up(told(store, address))
    data.stream = f"{address}/nowhere"
    with pytest.raises(OSError, match=r"nowhere/train-00000\d\.tar"):
        list(data.train_dataloader())


@streams
def test_too_few_tars_for_so_many_readers_are_refused(store: Path, address: str) -> None:
    data = set_up(told(store, address, workers=8))
    with pytest.raises(ValueError, match=r"1 processes with 8 workers .* need 8 tars"):
        data.train_dataloader()


class Marks:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@streams
def test_what_tars_hold_is_not_run(store: Path, address: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    bad = store / "far" / "hostile"
    bad.mkdir()
    for source in (store / "far" / "told").glob("*.tar"):
        shutil.copy(source, bad / source.name)
        with tarfile.open(bad / source.name, "a") as tar:
            (tmp_path / "payload").write_bytes(pickle.dumps(Marks(mark)))
            for ending in ("pyd", "pickle", "pth"):
                tar.add(tmp_path / "payload", f"{source.stem}-x.{ending}")
    data = set_up(told(store, address, batch=19))
    data.stream = f"{address}/hostile"
    with pytest.raises(ValueError, match=r"hostile/train-.*, key train-.*-x: no JSON of what is"):
        list(data.train_dataloader())
    assert not mark.exists()


@streams
def test_commands_in_addresses_are_not_run(tmp_path: Path) -> None:
    gopen = importlib.import_module("webdataset.gopen")
    secure_webdataset()
    with pytest.raises(ValueError, match="cannot open pipe URLs"):
        gopen.gopen(f"pipe:touch {tmp_path}/ran")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "address",
    [
        "pipe:cat a",
        "/data/a",
        "file:///data",
        "a",
        "",
        "https://",
        "s3://a",
        "HTTP://a",
        "-o x://a",
    ],
)
def test_what_is_no_store_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a stream must begin with https://.*, got "):
        check_address(address)
    for kind in (WebDatasetCaptionDataModule, WebDatasetClassificationDataModule):
        with pytest.raises(ValueError, match="a stream must begin with"):
            kind(address, str(tmp_path))


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webdataset", None)
    with pytest.raises(ImportError, match=r"pip install 'visattn\[webdataset\]'"):
        secure_webdataset()


def test_a_library_that_is_not_secure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webdataset", SimpleNamespace())  # pyright: ignore[reportArgumentType]
    loose = SimpleNamespace(enforce_security=False)
    monkeypatch.setitem(sys.modules, "webdataset.utils", loose)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="imported without its secure mode"):
        secure_webdataset()
    assert os.environ["WDS_SECURE"] == "1"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"jpg": b"x"}, r"key 7: no JSON of what is told, or no class: KeyError\('json'\)"),
        ({"jpg": b"x", "json": b"{"}, "key 7: no JSON"),
        ({"jpg": b"x", "json": b"{}", "cls": b"rose"}, "key 7: no JSON of what is told, or no cla"),
        ({"json": b"{}"}, "key 7: expected an image and a JSON object, got json"),
        (
            {"jpg": b"x", "json": b"[]"},
            "key 7: expected an image and a JSON object, got jpg, json",
        ),
    ],
)
def test_members_that_make_no_sample_are_named(members: dict[str, bytes], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        streamed_sample({"__url__": "https://a/b.tar", "__key__": "7", **members})
