"""Streamed tar shards: batches, processes and security."""

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
from caption_data import CaptionPaths, write_caption_data
from classification_data import write_photo_folders
from shard_data import write_caption_shards, write_class_shards

from visattn.data.shards.streams import check_url, import_webdataset, parse_streamed_sample
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.resnet import AttentionResNet
from visattn.training.captioning.task import CaptioningTask
from visattn.training.classification.task import ClassificationTask
from visattn.training.streams import WebDatasetCaptionDataModule, WebDatasetClassificationDataModule

MISSING = [
    name
    for name, requirement in {
        "webdataset": importlib.util.find_spec("webdataset"), "curl": shutil.which("curl"),
    }.items()
    if requirement is None
]  # fmt: skip
streams = pytest.mark.skipif(
    bool(MISSING), reason=f"no {', '.join(MISSING)}: pip install 'visattn[webdataset]'"
)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Do not log requests."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> CaptionPaths:
    return write_caption_data(tmp_path_factory.mktemp("mini"), photos=23)


@pytest.fixture(scope="module")
def store(paths: CaptionPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards of captions and of classes; the training tars are under `remote`."""
    folder = tmp_path_factory.mktemp("store")
    write_photo_folders(folder / "photos", train=5)
    write_caption_shards(folder / "captions", paths)
    write_class_shards(folder / "classes", folder / "photos", tar=3)
    for kind in ("captions", "classes"):
        (folder / "remote" / kind).mkdir(parents=True)
        for path in [*(folder / kind).glob("train-*.tar"), folder / kind / "train.index.npy"]:
            path.rename(folder / "remote" / kind / path.name)
    return folder


@pytest.fixture
def address(store: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(store / "remote"))
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
                words,
                SmallEncoder(img_size=(24, 24), channels=8),
                embed_dim=7,
                hidden_size=11,
                attention_dim=5,
            ),
            info,
        )
    else:
        task = ClassificationTask(
            lambda classes: AttentionResNet(classes, depth=8, stem_width=4, img_size=(24, 24)), info
        )
    data.input_spec = task.input_spec
    data.trainer = SimpleNamespace(
        global_rank=rank,
        world_size=world,
        current_epoch=epoch,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    data.setup("fit")
    return data


def caption_data(store: Path, address: str, **options: Any) -> WebDatasetCaptionDataModule:
    options = {"min_word_freq": 1, "batch_size": 3, "num_workers": 0, **options}
    return WebDatasetCaptionDataModule(f"{address}/captions/", str(store / "captions"), **options)


def names(data: WebDatasetCaptionDataModule) -> list[str]:
    return [sample.id for batch in data.train_dataloader() for sample in batch.samples]


@streams
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_has_as_many_batches_as_its_length(
    store: Path, address: str, paths: CaptionPaths, num_workers: int
) -> None:
    data = set_up(caption_data(store, address, num_workers=num_workers, hflip=True))
    loader = data.train_dataloader()
    assert len(loader) == 19 // 3
    batches = list(loader)
    assert [len(batch.samples) for batch in batches] == [3] * 6
    assert batches[0].images.shape == (3, 3, 24, 24)
    ids = {sample.id for batch in batches for sample in batch.samples}
    assert ids <= set(paths.train.read_text().split())
    assert len(ids) > 18 - 6
    (batch,) = data.val_dataloader()
    assert [sample.id for sample in batch.samples] == paths.validation.read_text().split()


@streams
def test_one_process_without_workers_reads_each_photo_at_most_once(
    store: Path, address: str
) -> None:
    epochs = [names(set_up(caption_data(store, address), epoch=epoch)) for epoch in (0, 1, 0)]
    assert all(len(set(epoch)) == 18 for epoch in epochs)
    assert epochs[0] == epochs[2] != epochs[1]


@streams
def test_processes_read_different_tars_and_the_same_number_of_batches(
    store: Path, address: str
) -> None:
    both = [names(set_up(caption_data(store, address), rank=rank, world=2)) for rank in (0, 1)]
    assert [len(samples) for samples in both] == [9, 9]
    assert not set(both[0]) & set(both[1])


@streams
def test_images_with_classes_are_streamed(store: Path, address: str) -> None:
    data = set_up(
        WebDatasetClassificationDataModule(
            f"{address}/classes",
            str(store / "classes"),
            train_transforms=["RandomHorizontalFlip"],
            batch_size=4,
            num_workers=0,
        )
    )
    batches = list(data.train_dataloader())
    assert [tuple(batch.images.shape) for batch in batches] == [(4, 3, 24, 24)] * 3
    counts = Counter(int(label) for batch in batches for label in batch.labels)
    assert set(counts) == {0, 1, 2}


@streams
def test_missing_tars_are_an_error(store: Path, address: str) -> None:
    data = set_up(caption_data(store, address))
    data.train_url = f"{address}/nowhere"
    with pytest.raises(OSError, match=r"nowhere/train-00000\d\.tar"):
        list(data.train_dataloader())


@streams
def test_fewer_tars_than_workers_are_refused(store: Path, address: str) -> None:
    data = set_up(caption_data(store, address, num_workers=8))
    with pytest.raises(ValueError, match=r"1 processes with 8 workers .* need 8 tars"):
        data.train_dataloader()


class CreatesFolder:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@streams
def test_pickles_in_tars_are_not_loaded(store: Path, address: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    bad = store / "remote" / "hostile"
    bad.mkdir()
    for source in (store / "remote" / "captions").glob("*.tar"):
        shutil.copy(source, bad / source.name)
        with tarfile.open(bad / source.name, "a") as tar:
            (tmp_path / "payload").write_bytes(pickle.dumps(CreatesFolder(mark)))
            for ending in ("pyd", "pickle", "pth"):
                tar.add(tmp_path / "payload", f"{source.stem}-x.{ending}")
    data = set_up(caption_data(store, address, batch_size=19))
    data.train_url = f"{address}/hostile"
    with pytest.raises(
        ValueError, match=r"hostile/train-.*, key train-.*-x: invalid JSON record or class"
    ):
        list(data.train_dataloader())
    assert not mark.exists()


@streams
def test_commands_in_urls_are_not_run(tmp_path: Path) -> None:
    gopen = importlib.import_module("webdataset.gopen")
    import_webdataset()
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
def test_other_urls_are_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"URL of a stream must start with https://.*, got "):
        check_url(address)
    for kind in (WebDatasetCaptionDataModule, WebDatasetClassificationDataModule):
        with pytest.raises(ValueError, match="URL of a stream must start with"):
            kind(address, str(tmp_path))


def test_missing_webdataset_is_reported_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "webdataset", None)
    with pytest.raises(ImportError, match=r"pip install 'visattn\[webdataset\]'"):
        import_webdataset()


def test_webdataset_without_its_secure_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webdataset", SimpleNamespace())  # pyright: ignore[reportArgumentType]
    insecure = SimpleNamespace(enforce_security=False)
    monkeypatch.setitem(sys.modules, "webdataset.utils", insecure)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="imported without its secure mode"):
        import_webdataset()
    assert os.environ["WDS_SECURE"] == "1"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"jpg": b"x"}, r"key 7: invalid JSON record or class: KeyError\('json'\)"),
        ({"jpg": b"x", "json": b"{"}, "key 7: invalid JSON record"),
        ({"jpg": b"x", "json": b"{}", "cls": b"rose"}, "key 7: invalid JSON record or class: Val"),
        ({"json": b"{}"}, "key 7: expected an image and a JSON object, got json"),
        (
            {"jpg": b"x", "json": b"[]"},
            "key 7: expected an image and a JSON object, got jpg, json",
        ),
    ],
)
def test_members_without_a_sample_are_refused(members: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_streamed_sample({"__url__": "https://a/b.tar", "__key__": "7", **members})
