"""Data module of captioned photos: in Python, and in training runs with all caption formats."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from caption_data import CaptionPaths, write_caption_data

from visattn.cli import main
from visattn.data.captions.batch import CaptionBatch

ENCODER = {"class_path": "TimmEncoder", "init_args": {"name": "test_resnet", "img_size": [64, 64]}}
CAPTIONER = {
    "class_path": "ShowAttendTell",
    "init_args": {
        "encoder": ENCODER,
        "embed_dim": 7,
        "hidden_size": 11,
        "attention_dim": 5,
        "feature_proj_dim": 13,
    },
}
# Scores over so few photos come with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning")
QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> CaptionPaths:
    return write_caption_data(tmp_path_factory.mktemp("mini"), photos=11)


def data_config(paths: CaptionPaths, **changes: Any) -> dict[str, Any]:
    splits = {
        "train": str(paths.train),
        "val": str(paths.validation),
        "test": str(paths.test),
    }
    files = {"captions": str(paths.captions), "photos": str(paths.photos), **splits}
    files |= {name: changes.pop(name) for name in [*changes] if name in files}
    source = {"class_path": "CaptionFile", "init_args": files}
    return {"source": source, "min_word_freq": 1, "batch_size": 3, **changes}


def write_config(path: Path, data: dict[str, Any], **task: Any) -> Path:
    config = {
        "trainer": {**QUIET, "max_epochs": 2, "callbacks": [{"class_path": "CaptionPanels"}]},
        "model": {
            "class_path": "CaptioningTask",
            "init_args": {
                "captioner": CAPTIONER,
                "beam_size": 2,
                "optim": {"warmup_steps": 1},
                **task,
            },
        },
        "data": {"class_path": "CaptionData", "init_args": data},
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def run_folder(paths: CaptionPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with cached features and all losses, validated and tested; read only."""
    folder = tmp_path_factory.mktemp("run")
    data = data_config(
        paths, phrases=str(paths.phrases), hflip=True, feature_cache_dir=str(folder / "features")
    )
    config = write_config(
        folder / "c.yaml", data, attention_loss_weight=0.5, doubly_stochastic_weight=0.1
    )
    best = folder / "run" / "checkpoints" / "best.ckpt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["visattn"])
        assert main(["fit", "--config", str(config), "--run", str(folder / "run")]) == 0
        assert main(["validate", "--config", str(config), "--ckpt_path", str(best)]) == 0
        assert main(["test", "--config", str(config), "--ckpt_path", str(best)]) == 0
    return folder


def test_test_results_have_the_standard_caption_metrics(run_folder: Path) -> None:
    scores = json.loads((run_folder / "run" / "test.json").read_text())
    assert {"test/bleu-4", "test/rouge-l", "test/cider-d", "shuffled/cider-d"} <= set(scores)
    assert {
        "teacher_forced/lift",
        "teacher_forced/pointing_game",
        "shuffled_teacher_forced/lift",
        "untrained_teacher_forced/lift",
    } <= set(scores)
    assert scores["signature"].startswith("tok:")
    assert scores["teacher_forced/num_phrases"] == 10  # two photos with five captions of one phrase
    assert 0.1 < scores["teacher_forced/uniform_baseline"] < 0.4


def test_generated_captions_are_written_in_the_coco_results_format(run_folder: Path) -> None:
    results = json.loads((run_folder / "run" / "test_captions.json").read_text())
    assert sorted(result["image_id"] for result in results) == ["1333_09.jpg", "1370_0a.jpg"]
    assert all(set(result) == {"image_id", "caption"} for result in results)


def test_cached_features_are_reused(run_folder: Path, capsys: Any) -> None:
    assert (run_folder / "features").is_dir()
    files = list((run_folder / "features").rglob("*"))
    before = {path: path.stat().st_mtime_ns for path in files}
    run = ["validate", "--config", str(run_folder / "c.yaml")]
    best = run_folder / "run" / "checkpoints" / "best.ckpt"
    assert main([*run, "--ckpt_path", str(best), "--run", str(run_folder / "again")]) == 0
    assert {
        path: path.stat().st_mtime_ns for path in (run_folder / "features").rglob("*")
    } == before


def test_cached_features_give_the_same_scores_as_photos(run_folder: Path, tmp_path: Path) -> None:
    best = run_folder / "run" / "checkpoints" / "best.ckpt"
    arguments = ["validate", "--config", str(run_folder / "c.yaml"), "--ckpt_path", str(best)]
    assert main([*arguments, "--data.feature_cache_dir", "null", "--run", str(tmp_path)]) == 0
    fresh = json.loads((tmp_path / "validate.json").read_text())
    cached = json.loads((run_folder / "run" / "validate.json").read_text())
    assert fresh["val/loss"] == pytest.approx(cached["val/loss"], abs=2e-3)
    assert fresh["val_teacher_forced/correctness"] == pytest.approx(
        cached["val_teacher_forced/correctness"], abs=2e-3
    )


def test_a_batch_has_each_photo_once_with_all_its_captions(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[CaptionBatch] = []
    from visattn.training.captioning.task import CaptioningTask

    step = CaptioningTask.training_step
    monkeypatch.setattr(
        CaptioningTask,
        "training_step",
        lambda self, batch, batch_idx: (batches.append(batch), step(self, batch, batch_idx))[1],
    )
    arguments = ["fit", "--config", str(run_folder / "c.yaml"), "--trainer.limit_val_batches=0"]
    arguments += [
        "--trainer.callbacks=[]",
        "--trainer.max_steps=2",
        "--run",
        str(run_folder / "more"),
    ]
    assert main(arguments) == 0
    assert [len(batch.grids[0]) for batch in batches] == [3, 3]
    assert all(len(batch.captions) == 15 and batch.images is None for batch in batches)
    assert all(batch.image_indices.bincount().tolist() == [5, 5, 5] for batch in batches)


def test_attention_supervision_increases_the_lift(paths: CaptionPaths, tmp_path: Path) -> None:
    data = data_config(paths, phrases=str(paths.phrases))
    config = write_config(tmp_path / "c.yaml", data, attention_loss_weight=3.0)
    arguments = ["--config", str(config), "--run", str(tmp_path / "run")]
    optimizer = ["--model.optim.optimizer=torch.optim.AdamW", "--model.optim.optimizer.lr=0.04"]
    arguments += [*optimizer, "--trainer.callbacks=[]", "--seed_everything=3"]
    arguments += ["--trainer.check_val_every_n_epoch=12"]
    last = str(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert main(["fit", *arguments, "--trainer.max_epochs=12"]) == 0
    assert main(["validate", *arguments, "--ckpt_path", last]) == 0
    scores = json.loads((tmp_path / "run" / "validate.json").read_text())
    assert scores["val_teacher_forced/lift"] > 0.05  # about 0 without supervision


def test_missing_photos_are_reported(
    paths: CaptionPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "c.yaml", data_config(paths, photos=str(tmp_path)))
    assert main(["fit", "--config", str(config), "--run", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "are missing or empty" in error
    assert "Traceback" not in error


def test_environment_variables_in_paths_are_expanded(
    paths: CaptionPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    data = data_config(paths, photos="${VISATTN_TEST_PHOTOS}")
    config = write_config(tmp_path / "c.yaml", data)
    arguments = ["fit", "--config", str(config), "--trainer.fast_dev_run=1"]
    monkeypatch.delenv("VISATTN_TEST_PHOTOS", raising=False)
    assert main(arguments) == 1
    assert "VISATTN_TEST_PHOTOS" in capsys.readouterr().err
    monkeypatch.setenv("VISATTN_TEST_PHOTOS", str(paths.photos))
    assert main(arguments) == 0


def test_coco_with_files_per_split_is_trained_tested_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of captions and a folder of photos per split; then the training split only."""
    monkeypatch.setattr("sys.argv", ["visattn"])
    paths = write_caption_data(tmp_path, photos=11, format="coco")
    whole = json.loads(paths.captions.read_text())
    for split, split_file in (("train", paths.train), ("validation", paths.validation)):
        (tmp_path / split).mkdir()
        names = split_file.read_text().split()
        for name in names:
            (paths.photos / name).rename(tmp_path / split / name)
        images = [image for image in whole["images"] if image["file_name"] in names]
        ids = {image["id"] for image in images}
        annotations = [row for row in whole["annotations"] if row["image_id"] in ids]
        text = json.dumps({"images": images, "annotations": annotations})
        (tmp_path / f"{split}.json").write_text(text)
    parts = {"train": "train", "val": "validation"}
    files = {split: str(tmp_path / f"{part}.json") for split, part in parts.items()}
    folders = {split: str(tmp_path / part) for split, part in parts.items()}
    source = {"class_path": "CaptionFile", "init_args": {"captions": files, "photos": folders}}
    data = {"source": source, "min_word_freq": 1, "batch_size": 3}
    config = write_config(
        tmp_path / "c.yaml", {**data, "feature_cache_dir": str(tmp_path / "features")}
    )
    arguments, runs = (
        ["fit", "--config", str(config), "--trainer.max_epochs", "1"],
        tmp_path / "runs",
    )
    assert main([*arguments, "--run", str(runs / "both")]) == 0
    assert "best checkpoint (val/cider-d" in capsys.readouterr().out
    assert main(["test", "--run", str(runs / "both")]) == 0
    scores = json.loads((runs / "both" / "test.json").read_text())
    assert {"test/cider-d", "shuffled/cider-d"} <= set(scores)
    train_only = [
        "--data.source.captions",
        f"{{train: {files['train']}}}",
        "--run",
        str(runs / "alone"),
    ]
    assert main([*arguments, *train_only, "--data.feature_cache_dir", "null"]) == 0
    last = runs / "alone" / "checkpoints" / "last.ckpt"
    assert f"run: {runs / 'alone'}" in capsys.readouterr().out
    assert main(["test", "--run", str(runs / "alone")]) == 1
    assert "the data have no test samples" in capsys.readouterr().err
    assert main(["export", str(last), "--out", str(tmp_path / "m.safetensors")]) == 0
    assert main([*arguments, "--data.source.photos", str(tmp_path / "train")]) == 1
    error = capsys.readouterr().err
    assert f"are missing or empty in {tmp_path / 'train'}" in error
