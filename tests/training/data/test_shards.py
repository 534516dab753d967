"""Shards train as the loose files do: the same batches, in the same order, counted once."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from class_miniatures import write_digits, write_photo_folders
from miniatures import CaptionPaths, write_caption_data
from shard_miniatures import write_caption_shards, write_class_shards
from torch import Tensor

from visattn.cli import main
from visattn.data.captions.batch import CaptionBatch
from visattn.data.captions.files import read_captions
from visattn.data.shards.sources import caption_plan
from visattn.data.shards.writer import write_shards
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.encoder import ImageEncoder, SmallEncoder
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.training.base import DataModule
from visattn.training.data.captions import CaptionDataModule
from visattn.training.data.folder import FolderDataModule
from visattn.training.data.shards import ShardCaptionDataModule, ShardClassificationDataModule
from visattn.training.data.torchvision import TorchvisionDataModule
from visattn.training.tasks.captioning import CaptioningTask
from visattn.training.tasks.classification import ClassificationTask

AUGMENT: list[Any] = ["RandomHorizontalFlip", {"RandomResizedCrop": {"size": 24}}]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> CaptionPaths:
    return write_caption_data(tmp_path_factory.mktemp("mini"), photos=17)


@pytest.fixture(scope="module")
def told(paths: CaptionPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_caption_shards(tmp_path_factory.mktemp("told") / "shards", paths)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photo_folders(folder, train=5)
    return folder


@pytest.fixture(scope="module")
def classed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_class_shards(tmp_path_factory.mktemp("classed") / "shards", photos)


def set_up(
    data: DataModule, encoder: ImageEncoder | None = None, *, rank: int = 0, world: int = 1,
    stage: str = "fit",
) -> Any:  # fmt: skip
    """Let data belong to a task of its kind, on one of so many processes."""
    looks = encoder or SmallEncoder(size=(24, 24), channels=8)
    info = data.data_info
    if "words" in info:
        task: Any = CaptioningTask(
            lambda words: ShowAttendTell(words, looks, word_width=7, hidden=11, attention=5),
            info,
        )
    else:
        task = ClassificationTask(
            lambda classes: AttentionResNet(classes, depth=8, width=4, size=(24, 24)), info
        )
    data.trainer = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        lightning_module=task,
        global_rank=rank,
        world_size=world,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    data.setup(stage)
    return data


def parts(batch: Any) -> list[Any]:
    """Return all that a batch holds, the samples' names too."""
    held = [part for part in batch if isinstance(part, Tensor)]
    if isinstance(batch, CaptionBatch):
        held += [*batch.grids, batch.numbers]
        held += [(sample.id, sample.captions, sample.phrases) for sample in batch.samples]
    return held


def check_alike(ours: Any, theirs: Any) -> int:
    """Refuse loaders that differ in a number; return how many batches there were."""
    count = 0
    for one, other in zip(ours, theirs, strict=True):
        for part, same in zip(parts(one), parts(other), strict=True):
            assert torch.equal(part, same) if isinstance(part, Tensor) else part == same
        count += 1
    return count


def check_modules(ours: Callable[[], DataModule], theirs: Callable[[], DataModule]) -> None:
    """Refuse data modules whose batches differ in two epochs of training, or in evaluation."""
    one, other = set_up(ours()), set_up(theirs())
    assert one.data_info == other.data_info
    train, loose = one.train_dataloader(), other.train_dataloader()
    for epoch in range(2):
        for loader in (train, loose):
            loader.order.set_epoch(epoch)
        assert check_alike(train, loose) > 1
    assert check_alike(one.val_dataloader(), other.val_dataloader())
    one, other = set_up(ours(), stage="test"), set_up(theirs(), stage="test")
    assert check_alike(one.test_dataloader(), other.test_dataloader())


def caption_data(paths: CaptionPaths, **options: Any) -> CaptionDataModule:
    listed = {name: str(getattr(paths, name)) for name in ("train", "validation", "test")}
    options = {"min_count": 2, "batch": 3, **options}
    return CaptionDataModule(str(paths.captions), str(paths.photos), **listed, **options)


@pytest.mark.parametrize("options", [{}, {"mirror": True, "max_words": 5, "seed": 3, "fit": "pad"}])
def test_captions_come_batch_for_batch_as_from_loose_files(
    paths: CaptionPaths, told: Path, options: dict[str, Any]
) -> None:
    options = {**options, "phrases": str(paths.phrases)}

    def ours() -> ShardCaptionDataModule:
        return ShardCaptionDataModule(str(told), min_count=2, batch=3, **options)

    check_modules(ours, lambda: caption_data(paths, **options))


def test_words_are_counted_as_from_loose_files(paths: CaptionPaths, told: Path) -> None:
    for count in (1, 5, 9, 20):
        ours = ShardCaptionDataModule(str(told), min_count=count)
        theirs = caption_data(paths, min_count=count)
        assert ours.vocabulary.hash == theirs.vocabulary.hash
        assert ours.unknown_share() == theirs.unknown_share()
    assert ours.unknown_share() > 0


def test_features_that_were_kept_of_loose_files_serve_shards(
    paths: CaptionPaths, told: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"cache": str(tmp_path / "kept"), "mirror": True}
    encoder = TimmEncoder("test_resnet", size=(64, 64))
    theirs = set_up(caption_data(paths, **options), encoder)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()}
    ours = set_up(ShardCaptionDataModule(str(told), min_count=2, batch=3, **options), encoder)
    assert check_alike(ours.train_dataloader(), theirs.train_dataloader()) > 1
    assert check_alike(ours.val_dataloader(), theirs.val_dataloader())
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").iterdir()} == kept


@pytest.mark.parametrize("options", [{}, {"augment": AUGMENT, "seed": 3, "fit": "squash"}])
def test_photos_come_batch_for_batch_as_from_folders(
    photos: Path, classed: Path, options: dict[str, Any]
) -> None:
    check_modules(
        lambda: ShardClassificationDataModule(str(classed), batch=4, **options),
        lambda: FolderDataModule(str(photos), batch=4, **options),
    )


def test_digits_come_batch_for_batch_as_from_their_files(tmp_path: Path) -> None:
    write_digits(tmp_path)
    words = ["--source", "MNIST", "--root", str(tmp_path), "--held-out", "5"]
    assert main(["data", "shards", "--out", str(tmp_path / "shards"), *words]) == 0
    augment: list[Any] = [{"RandomTranslate": {"pixels": 2}}, "RandomHorizontalFlip"]

    def ours() -> ShardClassificationDataModule:
        return ShardClassificationDataModule(str(tmp_path / "shards"), augment=augment, batch=6)

    def theirs() -> TorchvisionDataModule:
        return TorchvisionDataModule(
            "MNIST", root=str(tmp_path), validation=5, augment=augment, batch=6
        )

    check_modules(ours, theirs)
    assert ours().examples(2)[0].shape == (28, 28, 3)


def test_workers_read_what_one_process_reads(told: Path, classed: Path) -> None:
    alone = set_up(ShardCaptionDataModule(str(told), min_count=2, batch=3))
    helped = set_up(ShardCaptionDataModule(str(told), min_count=2, batch=3, workers=2))
    assert check_alike(helped.train_dataloader(), alone.train_dataloader()) == 4


def test_several_processes_share_each_sample_out_once(
    paths: CaptionPaths, classed: Path, tmp_path: Path
) -> None:
    entries = read_captions(paths.captions)
    splits = {"train": entries[:7], "validation": entries[7:]}
    write_shards(tmp_path, caption_plan(splits, paths.photos), per_shard=3)
    for make, names in (
        (lambda: ShardCaptionDataModule(str(tmp_path), batch=2), lambda b: [s.id for s in b[0]]),
        (
            lambda: ShardClassificationDataModule(str(classed), batch=2),
            lambda b: [*map(repr, b.images)],
        ),
    ):
        both = [set_up(make(), rank=rank, world=2) for rank in (0, 1)]
        evaluated = [[name for b in data.val_dataloader() for name in names(b)] for data in both]
        whole = [name for b in set_up(make()).val_dataloader() for name in names(b)]
        assert sorted(evaluated[0] + evaluated[1]) == sorted(whole)
        trained = [[name for b in data.train_dataloader() for name in names(b)] for data in both]
        assert len(trained[0]) == len(trained[1])
        assert len(set(trained[0] + trained[1])) == 2 * len(trained[0])


def test_shards_of_the_other_kind_are_refused_with_the_right_name(
    told: Path, classed: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match="holds images with captions; ShardCaptionDataModule reads"
    ):
        ShardClassificationDataModule(str(told))
    with pytest.raises(
        ValueError, match="holds images with classes; ShardClassificationDataModule reads them"
    ):
        ShardCaptionDataModule(str(classed))
    with pytest.raises(FileNotFoundError, match="holds no shards; visattn data shards --out"):
        ShardClassificationDataModule(str(tmp_path))


def test_shards_without_a_test_split_are_tested_on_validation(
    paths: CaptionPaths, tmp_path: Path
) -> None:
    folder = write_caption_shards(tmp_path / "shards", paths, "train", "validation")
    data = set_up(ShardCaptionDataModule(str(folder), min_count=1, batch=3), stage="test")
    ids = [sample.id for batch in data.test_dataloader() for sample in batch.samples]
    assert ids == paths.validation.read_text().split()
    without = write_caption_shards(tmp_path / "other", paths, "train")
    with pytest.raises(ValueError, match="has no split validation; it has train"):
        ShardCaptionDataModule(str(without))


@pytest.mark.parametrize("text", ["{", "[]", '{"train": {}}', '{"train": 1, "validation": {}}'])
def test_damaged_words_are_named(paths: CaptionPaths, tmp_path: Path, text: str) -> None:
    folder = write_caption_shards(tmp_path / "shards", paths)
    (folder / "words.json").write_text(text)
    with pytest.raises(ValueError, match=r"words\.json is missing or damaged \(\w+: "):
        ShardCaptionDataModule(str(folder))


@pytest.mark.slow
def test_a_run_on_shards_ends_with_the_weights_of_one_on_loose_files(
    photos: Path, classed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    classifier = {"class_path": "AttentionResNet", "init_args": {"depth": 8, "width": 4}}
    classifier["init_args"]["size"] = [24, 24]  # pyright: ignore[reportArgumentType,reportIndexIssue]
    trainer = {"accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": False}
    quiet = {"enable_model_summary": False, "num_sanity_val_steps": 0, "log_every_n_steps": 1}
    scores, weights = [], []
    for name, given in (
        ("FolderDataModule", {"root": str(photos)}),
        ("ShardClassificationDataModule", {"shards": str(classed)}),
    ):
        config = {
            "trainer": {**trainer, **quiet},
            "model": {"class_path": "ClassificationTask", "init_args": {"classifier": classifier}},
            "data": {"class_path": name, "init_args": {**given, "batch": 4, "augment": AUGMENT}},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
        words = ["--config", str(tmp_path / f"{name}.yaml"), "--run", str(tmp_path / name)]
        assert main(["fit", *words]) == 0
        last = tmp_path / name / "checkpoints" / "last.ckpt"
        assert main(["test", *words, "--ckpt_path", str(last)]) == 0
        weights.append(torch.load(last)["state_dict"])
        scores.append(json.loads((tmp_path / name / "test.json").read_text()))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert scores[0] == scores[1]
