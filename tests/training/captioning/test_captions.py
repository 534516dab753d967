"""Captioned photos from config to page: cached features, phrases, files per split, Japanese."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from caption_data import CaptionPaths, write_caption_data
from PIL import Image

from visattn.cli import main

# Scores over so few photos come with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning")
TRAINER = {
    "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False,
    "num_sanity_val_steps": 0, "log_every_n_steps": 1, "max_epochs": 2,
    "callbacks": [{"class_path": "CaptionPanels"}],
}  # fmt: skip
ENCODER = {"class_path": "TimmEncoder", "init_args": {"name": "test_resnet", "img_size": [64, 64]}}
SIZES = {"embed_dim": 7, "hidden_size": 11, "attention_dim": 5, "feature_proj_dim": 13}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> CaptionPaths:
    return write_caption_data(tmp_path_factory.mktemp("mini"), photos=11)


def source_of(paths: CaptionPaths) -> dict[str, Any]:
    files = {"captions": paths.captions, "photos": paths.photos, "train": paths.train}
    files |= {"val": paths.validation, "test": paths.test}
    return {name: str(path) for name, path in files.items()}


def write_config(
    path: Path, source: dict[str, Any], task: dict[str, Any] | None = None, **data: Any
) -> str:
    captioner = {"class_path": "ShowAttendTell", "init_args": {"encoder": ENCODER, **SIZES}}
    task = {"captioner": captioner, "beam_size": 2, "optim": {"warmup_steps": 1}, **(task or {})}
    own = {"source": {"class_path": "CaptionFile", "init_args": source}}
    data = {**own, "min_word_freq": 1, "batch_size": 3, **data}
    config = {
        "trainer": TRAINER,
        "model": {"class_path": "CaptioningTask", "init_args": task},
        "data": {"class_path": "CaptionData", "init_args": data},
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_photos_with_phrases_are_trained_and_scored_on_cached_features(
    paths: CaptionPaths, tmp_path: Path
) -> None:
    features = tmp_path / "features"
    config = write_config(
        tmp_path / "c.yaml", source_of(paths),
        {"attention_loss_weight": 0.5, "doubly_stochastic_weight": 0.1},
        phrases=str(paths.phrases), hflip=True, feature_cache_dir=str(features),
    )  # fmt: skip
    assert main(["fit", "--config", config, "--run", "run"]) == 0
    assert main(["test", "--run", "run"]) == 0
    before = {path: path.stat().st_mtime_ns for path in features.rglob("*")}
    assert before
    assert main(["validate", "--run", "run"]) == 0
    assert {path: path.stat().st_mtime_ns for path in features.rglob("*")} == before
    scores = json.loads(Path("run/test.json").read_text())
    assert scores["signature"].startswith("tok:")
    controls = ("shuffled", "shuffled_teacher_forced", "untrained_teacher_forced")
    names = ("cider-d", "lift", "lift")
    expected = {f"{part}/{name}" for part, name in zip(controls, names, strict=True)}
    expected |= {"test/bleu-4", "test/rouge-l", "test/cider-d", "teacher_forced/pointing_game"}
    assert expected <= scores.keys()
    assert scores["teacher_forced/num_phrases"] == 10  # two photos with five captions of one phrase
    assert 0.1 < scores["teacher_forced/uniform_baseline"] < 0.4
    results = json.loads(Path("run/test_captions.json").read_text())
    assert sorted(result["image_id"] for result in results) == ["1333_09.jpg", "1370_0a.jpg"]
    assert all(set(result) == {"image_id", "caption"} for result in results)
    cached = json.loads(Path("run/validate.json").read_text())
    assert main(["validate", "--run", "run", "--data.feature_cache_dir", "null"]) == 0
    fresh = json.loads(Path("run/validate.json").read_text())
    for name in ("val/loss", "val_teacher_forced/correctness"):
        assert fresh[name] == pytest.approx(cached[name], abs=2e-3)


def test_attention_supervision_increases_the_lift(paths: CaptionPaths, tmp_path: Path) -> None:
    config = write_config(
        tmp_path / "c.yaml", source_of(paths), {"attention_loss_weight": 3.0},
        phrases=str(paths.phrases),
    )  # fmt: skip
    words = ["--config", config, "--run", "run", "--trainer.callbacks=[]", "--seed_everything=3"]
    words += ["--model.optim.optimizer=torch.optim.AdamW", "--model.optim.optimizer.lr=0.04"]
    words += ["--trainer.max_epochs=12", "--trainer.check_val_every_n_epoch=12"]
    assert main(["fit", *words]) == 0
    assert main(["validate", *words, "--ckpt_path", "run/checkpoints/last.ckpt"]) == 0
    scores = json.loads(Path("run/validate.json").read_text())
    assert scores["val_teacher_forced/lift"] > 0.05  # about 0 without supervision


def test_the_folder_of_photos_may_be_a_variable_and_has_to_hold_them(
    paths: CaptionPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    source = {**source_of(paths), "photos": "${VISATTN_TEST_PHOTOS}"}
    fit = ["fit", "--config", write_config(tmp_path / "c.yaml", source), "--dry-run"]
    monkeypatch.delenv("VISATTN_TEST_PHOTOS", raising=False)
    for value, code, message in (
        (None, 1, "uses ${VISATTN_TEST_PHOTOS}, but this environment variable is not set"),
        (str(tmp_path), 1, "are missing or empty"),
        (str(paths.photos), 0, ""),
    ):
        if value:
            monkeypatch.setenv("VISATTN_TEST_PHOTOS", value)
        assert main(fit) == code
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error


def test_files_of_coco_per_split_are_trained_and_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of captions and a folder of photos per split; then the training split only."""
    paths = write_caption_data(tmp_path, photos=11, format="coco")
    whole = json.loads(paths.captions.read_text())
    files, folders = dict[str, str](), dict[str, str]()
    for split, listed in (("train", paths.train), ("val", paths.validation)):
        folders[split] = str(tmp_path / split)
        Path(folders[split]).mkdir()
        names = listed.read_text().split()
        for name in names:
            (paths.photos / name).rename(tmp_path / split / name)
        images = [image for image in whole["images"] if image["file_name"] in names]
        ids = {image["id"] for image in images}
        rows = [row for row in whole["annotations"] if row["image_id"] in ids]
        files[split] = str(tmp_path / f"{split}.json")
        Path(files[split]).write_text(json.dumps({"images": images, "annotations": rows}))
    config = write_config(tmp_path / "c.yaml", {"captions": files, "photos": folders})
    fit = ["fit", "--config", config, "--trainer.max_epochs", "1"]
    assert main([*fit, "--run", "both"]) == 0
    assert "best checkpoint (val/cider-d" in capsys.readouterr().out
    assert main(["test", "--run", "both"]) == 0
    assert "shuffled/cider-d" in json.loads(Path("both/test.json").read_text())
    alone = ["--data.source.captions", f"{{train: {files['train']}}}", "--run", "alone"]
    assert main([*fit, *alone]) == 0
    assert main(["test", "--run", "alone"]) == 1
    assert "the data have no test samples" in capsys.readouterr().err


def test_japanese_captions_are_trained_and_drawn(tmp_path: Path) -> None:
    """From a table to pages, with letters as words."""
    (tmp_path / "photos").mkdir()
    lines = ["image,caption"]
    for number in range(24):
        color, name = (("red", "赤い"), ("blue", "青い"), ("green", "緑の"))[number % 3]
        Image.new("RGB", (24, 24), color).save(tmp_path / "photos" / f"{number:02}.png")
        lines.append(f"{number:02}.png,{name}円と四角。")
    Path("captions.csv").write_text("\n".join(lines), encoding="utf-8")
    source = {"captions": "captions.csv", "photos": "photos", "val_fraction": 0.2}
    config = write_config(tmp_path / "ja.yaml", source, batch_size=5)
    short = ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "0"]
    assert main(["fit", "--config", config, "--run", "run", *short]) == 0
    explained = ["--method", "relevance", "--out", "out", "--figures", "png"]
    assert main(["caption", "photos/00.png", "--model", "run", *explained]) == 0
    record = json.loads(Path("out/00.json").read_text(encoding="utf-8"))
    assert len(record["maps"]["values"]) == len(record["words"]) == len(record["log_probs"])
    assert "".join(record["words"]) == record["caption"].replace(" ", "")
    assert {"00.png", "00.html"} <= {path.name for path in Path("out").iterdir()}
