"""Photos with captions from their files to a scored run: in Python, and as a story."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from miniatures import CaptionPaths, Format, write_caption_data

from visattn.cli import main
from visattn.data.captions.batch import CaptionBatch
from visattn.models.captioner import SPECIALS
from visattn.training.data.captions import CaptionDataModule

ENCODER = {"class_path": "TimmEncoder", "init_args": {"name": "test_resnet", "size": [64, 64]}}
CAPTIONER = {
    "class_path": "ShowAttendTell",
    "init_args": {
        "encoder": ENCODER,
        "word_width": 7,
        "hidden": 11,
        "attention": 5,
        "projection": 13,
    },
}
# Seven photos say little, and the scores say so.
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


def described(paths: CaptionPaths, **changes: Any) -> dict[str, Any]:
    listed = {name: str(getattr(paths, name)) for name in ("train", "validation", "test")}
    told = {"captions": str(paths.captions), "photos": str(paths.photos), **listed}
    return {**told, "min_count": 1, "batch": 3, **changes}


def write_config(path: Path, data: dict[str, Any], **task: Any) -> Path:
    config = {
        "trainer": {**QUIET, "max_epochs": 2, "callbacks": [{"class_path": "CaptionPanels"}]},
        "model": {
            "class_path": "CaptioningTask",
            "init_args": {
                "captioner": CAPTIONER,
                "beam": 2,
                "warm": 1,
                **task,
            },
        },
        "data": {"class_path": "CaptionDataModule", "init_args": data},
    }
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("form", ["flickr", "csv", "karpathy", "coco", "jsonl"])
def test_every_format_gives_the_same_words(
    tmp_path: Path, paths: CaptionPaths, form: Format
) -> None:
    told = write_caption_data(tmp_path / form, photos=11, format=form)
    if form == "karpathy":
        other = described(told, train="train", validation="val", test="test")
    else:
        other = described(told)
    words = CaptionDataModule(**other).data_info["words"]
    assert words == CaptionDataModule(**described(paths)).data_info["words"]
    assert tuple(words[:4]) == SPECIALS


def test_words_come_from_the_training_photos_alone(paths: CaptionPaths) -> None:
    data = CaptionDataModule(**described(paths))
    told = {entry.id for entry in data.entries["train"]}
    assert len(told) == 7
    said = " ".join(c for entry in data.entries["train"] for c in entry.captions).lower()
    assert all(word in said for word in data.data_info["words"][4:])
    assert len(CaptionDataModule(**described(paths, min_count=7)).data_info["words"]) < len(
        data.data_info["words"]
    )


def test_a_split_that_shares_photos_with_training_is_refused(paths: CaptionPaths) -> None:
    with pytest.raises(ValueError, match="train"):
        CaptionDataModule(**described(paths, validation=str(paths.train)))


def test_an_unknown_split_is_refused(paths: CaptionPaths) -> None:
    with pytest.raises(ValueError, match=r"neither a split .* nor a list of photos"):
        CaptionDataModule(**described(paths, train="nowhere.txt"))


@pytest.mark.parametrize("name", ["min_count", "max_words", "batch"])
def test_numbers_below_one_are_refused(paths: CaptionPaths, name: str) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        CaptionDataModule(**described(paths, **{name: 0}))


def test_what_is_read_once_has_no_substitutes(paths: CaptionPaths) -> None:
    with pytest.raises(ValueError, match=r"a cache every photo is read once, .* must be raise"):
        CaptionDataModule(**described(paths, on_error="substitute", cache="features"))
    data = CaptionDataModule(**described(paths, on_error="substitute"))
    substitutes = data.stand_ins(13, str)
    assert substitutes is not None
    assert CaptionDataModule(**described(paths)).stand_ins(13, str) is None


@pytest.fixture(scope="module")
def story(paths: CaptionPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained from kept features with everything on, and was scored; look only."""
    folder = tmp_path_factory.mktemp("story")
    data = described(paths, phrases=str(paths.phrases), mirror=True, cache=str(folder / "features"))
    config = write_config(folder / "c.yaml", data, supervision=0.5, penalty=0.1)
    best = folder / "run" / "checkpoints" / "best.ckpt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["visattn"])
        assert main(["fit", "--config", str(config), "--run", str(folder / "run")]) == 0
        assert main(["validate", "--config", str(config), "--ckpt_path", str(best)]) == 0
        assert main(["test", "--config", str(config), "--ckpt_path", str(best)]) == 0
    return folder


def test_a_run_is_scored_like_the_field_scores(story: Path) -> None:
    scores = json.loads((story / "run" / "test.json").read_text())
    assert {"test/bleu-4", "test/rouge-l", "test/cider-d", "shuffled/cider-d"} <= set(scores)
    assert {"given/lift", "given/pointing", "shuffled_given/lift", "untrained_given/lift"} <= set(
        scores
    )
    assert scores["signature"].startswith("tok:")
    assert scores["given/phrases"] == 10  # two photos, five captions each, a phrase in each
    assert 0.1 < scores["given/baseline"] < 0.4


def test_captions_are_kept_as_results_that_others_can_score(story: Path) -> None:
    told = json.loads((story / "run" / "test_captions.json").read_text())
    assert sorted(one["image_id"] for one in told) == ["1333_09.jpg", "1370_0a.jpg"]
    assert all(set(one) == {"image_id", "caption"} for one in told)


def test_features_are_kept_once_and_used_again(story: Path, capsys: Any) -> None:
    assert (story / "features").is_dir()
    before = {path: path.stat().st_mtime_ns for path in (story / "features").iterdir()}
    run = ["validate", "--config", str(story / "c.yaml")]
    best = story / "run" / "checkpoints" / "best.ckpt"
    assert main([*run, "--ckpt_path", str(best), "--run", str(story / "again")]) == 0
    assert {path: path.stat().st_mtime_ns for path in (story / "features").iterdir()} == before


def test_kept_features_give_the_scores_of_the_photos_themselves(
    story: Path, tmp_path: Path
) -> None:
    best = story / "run" / "checkpoints" / "best.ckpt"
    words = ["validate", "--config", str(story / "c.yaml"), "--ckpt_path", str(best)]
    looked = [*words, "--data.cache", "null", "--run", str(tmp_path)]
    assert main(looked) == 0
    fresh = json.loads((tmp_path / "validate.json").read_text())
    kept = json.loads((story / "run" / "validate.json").read_text())
    assert fresh["val/loss"] == pytest.approx(kept["val/loss"], abs=2e-3)
    assert fresh["val_given/correctness"] == pytest.approx(kept["val_given/correctness"], abs=2e-3)


def test_features_of_another_encoder_are_refused(
    story: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = story / "run" / "checkpoints" / "best.ckpt"
    other = "--model.captioner.encoder.size=[96,64]"
    words = ["validate", "--config", str(story / "c.yaml"), "--ckpt_path", str(best), other]
    assert main([*words, "--run", str(tmp_path)]) == 1
    assert "features" in capsys.readouterr().err


def test_a_batch_holds_each_photo_once_for_all_of_its_captions(
    story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[CaptionBatch] = []
    from visattn.training.tasks.captioning import CaptioningTask

    step = CaptioningTask.training_step
    monkeypatch.setattr(
        CaptioningTask,
        "training_step",
        lambda self, batch, batch_idx: (seen.append(batch), step(self, batch, batch_idx))[1],
    )
    words = ["fit", "--config", str(story / "c.yaml"), "--trainer.limit_val_batches=0"]
    words += ["--trainer.callbacks=[]", "--trainer.max_steps=2", "--run", str(story / "more")]
    assert main(words) == 0
    assert [len(batch.grids[0]) for batch in seen] == [3, 3]
    assert all(len(batch.captions) == 15 and batch.images is None for batch in seen)
    assert all(batch.owners.bincount().tolist() == [5, 5, 5] for batch in seen)


def test_supervision_draws_attention_to_the_boxes(paths: CaptionPaths, tmp_path: Path) -> None:
    lifts = {}
    for weight in (0.0, 3.0):
        folder = tmp_path / str(weight)
        data = described(paths, phrases=str(paths.phrases))
        config = write_config(tmp_path / "c.yaml", data, supervision=weight)
        words = ["--config", str(config), "--run", str(folder)]
        rate = ["--model.optimizer=torch.optim.AdamW", "--model.optimizer.lr=0.04"]
        words += [*rate, "--trainer.callbacks=[]", "--seed_everything=3"]
        words += ["--trainer.check_val_every_n_epoch=12"]
        last = str(folder / "checkpoints" / "last.ckpt")
        assert main(["fit", *words, "--trainer.max_epochs=12"]) == 0
        assert main(["validate", *words, "--ckpt_path", last]) == 0
        lifts[weight] = json.loads((folder / "validate.json").read_text())["val_given/lift"]
    assert lifts[3.0] > lifts[0.0] + 0.05  # which is 0.00


def test_missing_photos_are_named(
    paths: CaptionPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "c.yaml", described(paths, photos=str(tmp_path)))
    assert main(["fit", "--config", str(config), "--run", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert "photos are missing" in said
    assert "Traceback" not in said


def test_a_name_of_the_environment_stands_for_a_path(
    paths: CaptionPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    data = described(paths, photos="${VISATTN_TEST_PHOTOS}")
    config = write_config(tmp_path / "c.yaml", data)
    words = ["fit", "--config", str(config), "--trainer.fast_dev_run=1"]
    monkeypatch.delenv("VISATTN_TEST_PHOTOS", raising=False)
    assert main(words) == 1
    assert "VISATTN_TEST_PHOTOS" in capsys.readouterr().err
    monkeypatch.setenv("VISATTN_TEST_PHOTOS", str(paths.photos))
    assert main(words) == 0


def test_examples_are_files_of_validation_photos(paths: CaptionPaths) -> None:
    data = CaptionDataModule(**described(paths))
    assert [path.name for path in data.examples(9)] == paths.validation.read_text().split()
    assert data.examples(1)[0].is_file()


def test_coco_as_it_is_published_trains_is_tested_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of captions and a folder of photos per split; then the first of them alone."""
    monkeypatch.setattr("sys.argv", ["visattn"])
    paths = write_caption_data(tmp_path, photos=11, format="coco")
    whole = json.loads(paths.captions.read_text())
    for split, listed in (("train", paths.train), ("validation", paths.validation)):
        (tmp_path / split).mkdir()
        names = listed.read_text().split()
        for name in names:
            (paths.photos / name).rename(tmp_path / split / name)
        images = [image for image in whole["images"] if image["file_name"] in names]
        ids = {image["id"] for image in images}
        said = [one for one in whole["annotations"] if one["image_id"] in ids]
        text = json.dumps({"images": images, "annotations": said})
        (tmp_path / f"{split}.json").write_text(text)
    files = {split: str(tmp_path / f"{split}.json") for split in ("train", "validation")}
    folders = {split: str(tmp_path / split) for split in files}
    data = {"captions": files, "photos": folders, "min_count": 1, "batch": 3}
    config = write_config(tmp_path / "c.yaml", {**data, "cache": str(tmp_path / "features")})
    words, runs = ["fit", "--config", str(config), "--trainer.max_epochs", "1"], tmp_path / "runs"
    assert main([*words, "--run", str(runs / "both")]) == 0
    assert "best checkpoint (val/cider-d" in capsys.readouterr().out
    assert main(["test", "--run", str(runs / "both")]) == 0
    scores = json.loads((runs / "both" / "test.json").read_text())
    assert {"test/cider-d", "shuffled/cider-d"} <= set(scores)
    alone = ["--data.captions", f"{{train: {files['train']}}}", "--run", str(runs / "alone")]
    assert main([*words, *alone, "--data.cache", "null"]) == 0
    last = runs / "alone" / "checkpoints" / "last.ckpt"
    assert f"last checkpoint (none was chosen as the best): {last}" in capsys.readouterr().out
    assert main(["test", "--run", str(runs / "alone")]) == 1
    assert "the data name no test photos" in capsys.readouterr().err
    assert main(["export", str(last), "--out", str(tmp_path / "m.safetensors")]) == 0
    assert main([*words, "--data.photos", str(tmp_path / "train")]) == 1
    said = capsys.readouterr().err
    assert f"2 of 2 photos are missing or empty in {tmp_path / 'train'}" in said
    assert f"{tmp_path / 'validation'} has the first, is it the folder?" in said
