"""Japanese captions from a table to pages, with letters as words."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image, ImageDraw
from task_configs import MODEL

from visattn.cli import main

COLORS = {"赤い": "red", "青い": "blue", "緑の": "green", "黄色い": "yellow"}
SHAPES = {"円": "ellipse", "四角": "rectangle"}
CONFIG = (
    MODEL
    + """\
trainer:
  {accelerator: cpu, max_epochs: -1, max_steps: 2, enable_progress_bar: false, logger: false,
   enable_model_summary: false, num_sanity_val_steps: 0, limit_val_batches: 0}
data:
  class_path: CaptionData
  init_args:
    source:
      class_path: CaptionFile
      init_args:
        {captions: captions.csv, photos: photos, val_fraction: 0.2}
    min_word_freq: 1
    batch_size: 5
    num_workers: 0
"""
)


def write_scenes(folder: Path, size: int = 24) -> None:
    """Draw 24 scenes of two shapes, with a caption each."""
    (folder / "photos").mkdir(parents=True)
    pairs = [(color, shape) for color in COLORS for shape in SHAPES]
    rows = []
    for number in range(24):
        first, second = pairs[number % 8], pairs[(number * 3 + 1) % 8]
        image = Image.new("RGB", (size, size), "white")
        for (color, shape), left in ((first, 0.05), (second, 0.55)):
            box = [left * size, 0.3 * size, (left + 0.4) * size, 0.7 * size]
            getattr(ImageDraw.Draw(image), SHAPES[shape])(box, fill=COLORS[color])
        image.save(folder / "photos" / f"{number:02}.png")
        rows.append((f"{number:02}.png", f"{''.join(first)}と{''.join(second)}。"))
    with (folder / "captions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])


def test_japanese_captions_are_trained_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_scenes(tmp_path)
    Path("ja.yaml").write_text(CONFIG)
    assert main(["fit", "--config", "ja.yaml", "--run", "run"]) == 0
    explained = ["--method", "relevance", "--out", "out", "--figures", "png"]
    assert main(["caption", "photos/00.png", "--model", "run", *explained]) == 0
    record = json.loads(Path("out/00.json").read_text(encoding="utf-8"))
    assert len(record["maps"]["values"]) == len(record["words"]) == len(record["log_probs"])
    assert "".join(record["words"]) == record["caption"].replace(" ", "")
    assert {"00.png", "00.html"} <= {path.name for path in Path("out").iterdir()}
