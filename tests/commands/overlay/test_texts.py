"""`visattn overlay --text`: maps of texts of a model of images and texts."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.image_text_models import clip_processor, tiny_clip, tiny_tokenizer
from visattn.cli import main

Capsys = pytest.CaptureFixture[str]


def test_overlay_draws_texts_on_one_scale(tmp_path: Path, capsys: Capsys) -> None:
    photos = tmp_path / "in"
    photos.mkdir()
    for name, size in (("a", (59, 83)), ("b", (47, 40))):
        pixels = np.random.default_rng(4).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{name}.png")
    folder, out = tmp_path / "model", tmp_path / "out"
    for part in (tiny_clip(), clip_processor(), tiny_tokenizer()):
        part.save_pretrained(folder)
    words = ["overlay", str(photos), "--model", f"hf:{folder}", "--out", str(out)]
    texts = ["--text", "a red ball", "the sky"]
    assert main([*words, *texts, "--method", "legrad", "gradcam", "rollout"]) == 0
    captured = capsys.readouterr()
    rows = [line.split("\t") for line in captured.out.splitlines()]
    keys = ["legrad.text1", "legrad.text2", "gradcam.text1", "gradcam.text2", "rollout"]
    assert [row[1] for row in rows] == keys * 2
    assert rows[0][4] == rows[1][4] != rows[5][4]  # one scale for the texts of a photo
    record = json.loads((out / "a.legrad.text2.json").read_text())
    assert record["info"]["class_name"] == "the sky"
    assert abs(record["info"]["cosine"]) <= 1
    assert {"a.methods.png", "b.methods.png", "index.html"} <= {path.name for path in out.iterdir()}
    assert main([*words, *texts, "--method", "legrad", "--normalize", "global"]) == 0
    scaled = [line.split("\t")[4] for line in capsys.readouterr().out.splitlines()]
    assert len({*scaled}) == 1
    assert main([*words, "--text", "ball " * 20]) == 1
    assert "at most 11 tokens" in capsys.readouterr().err
    assert main([*words, *texts, "--target", "3"]) == 2
