"""Data modules of tar shards: the same batches, in the same order, as those of loose files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from caption_data import CaptionPaths, write_caption_data
from classification_data import write_digits, write_photo_folders
from module_batches import check_modules, count_equal_batches, set_up
from shard_data import write_caption_shards, write_class_shards

from visattn.cli import main
from visattn.data.captions.files import read_captions
from visattn.data.shards.sources import caption_plan
from visattn.data.shards.writer import write_shards
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.training.captioning.data import CaptionDataModule, ShardCaptionDataModule
from visattn.training.classification.data import (
    FolderDataModule,
    ShardClassificationDataModule,
    TorchvisionDataModule,
)

AUGMENT: list[Any] = ["RandomHorizontalFlip", {"RandomResizedCrop": {"size": 24}}]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> CaptionPaths:
    return write_caption_data(tmp_path_factory.mktemp("mini"), photos=17)


@pytest.fixture(scope="module")
def caption_shards(paths: CaptionPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_caption_shards(tmp_path_factory.mktemp("captions") / "shards", paths)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photo_folders(folder, train=5)
    return folder


@pytest.fixture(scope="module")
def class_shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_class_shards(tmp_path_factory.mktemp("classes") / "shards", photos)


def caption_data(paths: CaptionPaths, **options: Any) -> CaptionDataModule:
    splits = {
        "train": str(paths.train),
        "val": str(paths.validation),
        "test": str(paths.test),
    }
    options = {"min_word_freq": 2, "batch_size": 3, **options}
    return CaptionDataModule(str(paths.captions), str(paths.photos), **splits, **options)


@pytest.mark.parametrize(
    "options", [{}, {"hflip": True, "max_words": 5, "seed": 3, "resize_mode": "pad"}]
)
def test_caption_batches_equal_those_of_loose_files(
    paths: CaptionPaths, caption_shards: Path, options: dict[str, Any]
) -> None:
    options = {**options, "phrases": str(paths.phrases)}

    def shard_data() -> ShardCaptionDataModule:
        return ShardCaptionDataModule(str(caption_shards), min_word_freq=2, batch_size=3, **options)

    check_modules(shard_data, lambda: caption_data(paths, **options))


def test_vocabulary_equals_that_of_loose_files(paths: CaptionPaths, caption_shards: Path) -> None:
    for count in (1, 5, 9, 20):
        shards = ShardCaptionDataModule(str(caption_shards), min_word_freq=count)
        files = caption_data(paths, min_word_freq=count)
        assert shards.vocabulary.hash == files.vocabulary.hash
        assert shards.unknown_word_fraction() == files.unknown_word_fraction()
    assert shards.unknown_word_fraction() > 0


def test_shards_use_the_cached_features_of_loose_files(
    paths: CaptionPaths, caption_shards: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"feature_cache_dir": str(tmp_path / "cache"), "hflip": True}
    encoder = TimmEncoder("test_resnet", img_size=(64, 64))
    files = set_up(caption_data(paths, **options), encoder)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    shards = set_up(
        ShardCaptionDataModule(str(caption_shards), min_word_freq=2, batch_size=3, **options),
        encoder,
    )
    assert count_equal_batches(shards.train_dataloader(), files.train_dataloader()) > 1
    assert count_equal_batches(shards.val_dataloader(), files.val_dataloader())
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == before


@pytest.mark.parametrize(
    "options", [{}, {"train_transforms": AUGMENT, "seed": 3, "resize_mode": "squash"}]
)
def test_photo_batches_equal_those_of_folders(
    photos: Path, class_shards: Path, options: dict[str, Any]
) -> None:
    check_modules(
        lambda: ShardClassificationDataModule(str(class_shards), batch_size=4, **options),
        lambda: FolderDataModule(str(photos), batch_size=4, **options),
    )


def test_digit_batches_equal_those_of_mnist_files(tmp_path: Path) -> None:
    write_digits(tmp_path)
    arguments = ["--dataset", "MNIST", "--root", str(tmp_path), "--num-val", "5"]
    assert main(["data", "shards", "--out", str(tmp_path / "shards"), *arguments]) == 0
    augment: list[Any] = [{"RandomTranslate": {"pixels": 2}}, "RandomHorizontalFlip"]

    def shard_data() -> ShardClassificationDataModule:
        return ShardClassificationDataModule(
            str(tmp_path / "shards"), train_transforms=augment, batch_size=6
        )

    def file_data() -> TorchvisionDataModule:
        return TorchvisionDataModule(
            "MNIST", root=str(tmp_path), val=5, train_transforms=augment, batch_size=6
        )

    check_modules(shard_data, file_data)
    assert shard_data().examples(2)[0].shape == (28, 28, 3)


def test_workers_return_the_same_batches(caption_shards: Path, class_shards: Path) -> None:
    reference = set_up(ShardCaptionDataModule(str(caption_shards), min_word_freq=2, batch_size=3))
    with_workers = set_up(
        ShardCaptionDataModule(str(caption_shards), min_word_freq=2, batch_size=3, num_workers=2)
    )
    assert count_equal_batches(with_workers.train_dataloader(), reference.train_dataloader()) == 4


def test_two_processes_read_each_sample_once(
    paths: CaptionPaths, class_shards: Path, tmp_path: Path
) -> None:
    entries = read_captions(paths.captions)
    splits = {"train": entries[:7], "validation": entries[7:]}
    write_shards(tmp_path, caption_plan(splits, paths.photos), per_shard=3)
    for make, names in (
        (
            lambda: ShardCaptionDataModule(str(tmp_path), batch_size=2),
            lambda b: [s.id for s in b[0]],
        ),
        (
            lambda: ShardClassificationDataModule(str(class_shards), batch_size=2),
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


def test_shards_with_other_annotations_are_refused(
    caption_shards: Path, class_shards: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="holds images with captions; use ShardCaptionDataModule"):
        ShardClassificationDataModule(str(caption_shards))
    with pytest.raises(
        ValueError, match="holds images with classes; use ShardClassificationDataModule"
    ):
        ShardCaptionDataModule(str(class_shards))
    with pytest.raises(FileNotFoundError, match="holds no shards; visattn data shards --out"):
        ShardClassificationDataModule(str(tmp_path))


def test_shards_without_a_test_split_use_validation_for_the_test(
    paths: CaptionPaths, tmp_path: Path
) -> None:
    folder = write_caption_shards(tmp_path / "shards", paths, "train", "validation")
    data = set_up(ShardCaptionDataModule(str(folder), min_word_freq=1, batch_size=3), stage="test")
    ids = [sample.id for batch in data.test_dataloader()[0] for sample in batch.samples]
    assert ids == paths.validation.read_text().split()
    without = write_caption_shards(tmp_path / "other", paths, "train")
    with pytest.raises(ValueError, match="has no split validation; it has train"):
        ShardCaptionDataModule(str(without))


@pytest.mark.parametrize("text", ["{", "[]", '{"train": {}}', '{"train": 1, "validation": {}}'])
def test_damaged_word_counts_are_refused(paths: CaptionPaths, tmp_path: Path, text: str) -> None:
    folder = write_caption_shards(tmp_path / "shards", paths)
    (folder / "words.json").write_text(text)
    with pytest.raises(ValueError, match=r"words\.json is missing or damaged \(\w+: "):
        ShardCaptionDataModule(str(folder))


@pytest.mark.slow
def test_training_on_shards_gives_the_weights_of_training_on_files(
    photos: Path, class_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    classifier = {"class_path": "AttentionResNet", "init_args": {"depth": 8, "stem_width": 4}}
    classifier["init_args"]["img_size"] = [24, 24]  # pyright: ignore[reportArgumentType,reportIndexIssue]
    trainer = {"accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": False}
    quiet = {"enable_model_summary": False, "num_sanity_val_steps": 0, "log_every_n_steps": 1}
    scores, weights = [], []
    for name, source in (
        ("FolderDataModule", {"root": str(photos)}),
        ("ShardClassificationDataModule", {"shards": str(class_shards)}),
    ):
        config = {
            "trainer": {**trainer, **quiet},
            "model": {"class_path": "ClassificationTask", "init_args": {"classifier": classifier}},
            "data": {
                "class_path": name,
                "init_args": {**source, "batch_size": 4, "train_transforms": AUGMENT},
            },
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
        arguments = ["--config", str(tmp_path / f"{name}.yaml"), "--run", str(tmp_path / name)]
        assert main(["fit", *arguments]) == 0
        last = tmp_path / name / "checkpoints" / "last.ckpt"
        assert main(["test", *arguments, "--ckpt_path", str(last)]) == 0
        weights.append(torch.load(last)["state_dict"])
        scores.append(json.loads((tmp_path / name / "test.json").read_text()))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert scores[0] == scores[1]
