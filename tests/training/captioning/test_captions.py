"""Captioned photos from config to scores and pages: cached features, phrases, Japanese."""

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


def config(source: dict[str, Any], **more: Any) -> str:
    """Return a config of two steps."""
    task = of("CaptioningTask", captioner=soft(frozen(64)), beam_size=2, attention_loss_weight=0.5)
    samples = data("Caption", of("CaptionFile", **source), 4, min_word_freq=1, **more)
    return as_yaml(task, samples, max_steps=2, callbacks=[of("CaptionPanels")])


def test_photos_with_phrases_are_scored_on_cached_features(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path / "mini", photos=11)
    source = {"captions": paths.captions, "photos": paths.photos, "train": paths.train}
    files = {name: str(path) for name, path in {**source, "val": paths.validation}.items()}
    more = {"phrases": str(paths.phrases), "hflip": True, "feature_cache_dir": "features"}
    Path("c.yaml").write_text(config(files, **more))
    assert main(["fit", "--config", "c.yaml", "--run", "run"]) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("features").rglob("*")}
    scores = []
    for features in ("features", "null"):
        words = ["validate", "--run", "run", "--data.feature_cache_dir", features]
        assert main(words) == 0
        scores.append(json.loads(Path("run/validate.json").read_text()))
    assert before
    assert {path: path.stat().st_mtime_ns for path in Path("features").rglob("*")} == before
    for name in ("val/loss", "val_teacher_forced/correctness"):
        assert scores[0][name] == pytest.approx(scores[1][name], abs=2e-3)


def test_japanese_captions_are_trained_and_drawn(tmp_path: Path) -> None:
    """From a table to pages, with letters as words, and photos resized as in training."""
    (tmp_path / "photos").mkdir()
    lines = ["image,caption"]
    for number in range(12):
        color, name = (("red", "赤い"), ("blue", "青い"), ("green", "緑の"))[number % 3]
        Image.new("RGB", (24, 24), color).save(tmp_path / "photos" / f"{number:02}.png")
        lines.append(f"{number:02}.png,{name}円と四角。")
    Path("captions.csv").write_text("\n".join(lines), encoding="utf-8")
    source = {"captions": "captions.csv", "photos": "photos", "val_fraction": 0.2}
    Path("ja.yaml").write_text(config(source, resize_mode="squash"))
    fit = ["fit", "--config", "ja.yaml", "--run", "run"]
    assert main([*fit, "--trainer.limit_val_batches", "0"]) == 0
    explained = ["--method", "relevance", "--out", "out", "--figures", "png"]
    assert main(["caption", "photos/00.png", "--model", "run", *explained]) == 0
    record = json.loads(Path("out/00.json").read_text(encoding="utf-8"))
    assert len(record["maps"]["values"]) == len(record["words"]) == len(record["log_probs"])
    assert record["maps"]["info"]["more"]["resize_mode"] == "squash"
    assert "".join(record["words"]) == record["caption"].replace(" ", "")
    assert {"00.png", "00.html"} <= {path.name for path in Path("out").iterdir()}
