"""Captioned photos from config to page: cached features, phrases, Japanese."""

import json
from pathlib import Path
from typing import Any

import pytest
from caption_data import write_caption_data
from PIL import Image
from task_runs import as_yaml, data, frozen, of, soft

from visattn.cli import main

# Scores over so few photos come with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning")


def write_config(path: str, source: dict[str, Any], **more: Any) -> str:
    """Write a config of two steps."""
    task = of(
        "CaptioningTask", captioner=soft(frozen(64), feature_proj_dim=13), beam_size=2,
        attention_loss_weight=0.5,
    )  # fmt: skip
    samples = data("Caption", of("CaptionFile", **source), 4, min_word_freq=1, **more)
    Path(path).write_text(as_yaml(task, samples, max_steps=2, callbacks=[of("CaptionPanels")]))
    return path


def test_photos_with_phrases_are_trained_and_scored_on_cached_features(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path / "mini", photos=11)
    named = {"captions": paths.captions, "photos": paths.photos, "train": paths.train}
    named |= {"val": paths.validation, "test": paths.test}
    features = tmp_path / "features"
    config = write_config(
        "c.yaml", {name: str(path) for name, path in named.items()},
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


def test_japanese_captions_are_trained_and_drawn(tmp_path: Path) -> None:
    """From a table to pages, with letters as words."""
    (tmp_path / "photos").mkdir()
    lines = ["image,caption"]
    for number in range(12):
        color, name = (("red", "赤い"), ("blue", "青い"), ("green", "緑の"))[number % 3]
        Image.new("RGB", (24, 24), color).save(tmp_path / "photos" / f"{number:02}.png")
        lines.append(f"{number:02}.png,{name}円と四角。")
    Path("captions.csv").write_text("\n".join(lines), encoding="utf-8")
    source = {"captions": "captions.csv", "photos": "photos", "val_fraction": 0.2}
    fit = ["fit", "--config", write_config("ja.yaml", source), "--run", "run"]
    assert main([*fit, "--trainer.limit_val_batches", "0"]) == 0
    explained = ["--method", "relevance", "--out", "out", "--figures", "png"]
    assert main(["caption", "photos/00.png", "--model", "run", *explained]) == 0
    record = json.loads(Path("out/00.json").read_text(encoding="utf-8"))
    assert len(record["maps"]["values"]) == len(record["words"]) == len(record["log_probs"])
    assert "".join(record["words"]) == record["caption"].replace(" ", "")
    assert {"00.png", "00.html"} <= {path.name for path in Path("out").iterdir()}
