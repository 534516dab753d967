"""Japanese captions from a table to pages, with letters as words and with a tokenizer."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image, ImageDraw

from visattn.cli import main
from visattn.models.saving.checkpoint import read_model
from visattn.training.captioning.data import CaptionDataModule

COLORS = {"赤い": "red", "青い": "blue", "緑の": "green", "黄色い": "yellow"}
SHAPES = {"円": "ellipse", "四角": "rectangle"}
CONFIG = """\
trainer:
  {accelerator: cpu, max_epochs: -1, max_steps: 2, enable_progress_bar: false, logger: false,
   enable_model_summary: false, num_sanity_val_steps: 0, limit_val_batches: 0}
model:
  class_path: CaptioningTask
  init_args:
    captioner:
      class_path: ShowAttendTell
      init_args:
        encoder: {class_path: SmallEncoder, init_args: {img_size: [24, 24], channels: 8}}
        embed_dim: 7
        hidden_size: 11
        attention_dim: 5
data:
  class_path: CaptionDataModule
  init_args:
    {captions: captions.csv, photos: photos, val_fraction: 0.2, min_word_freq: 1, batch_size: 5,
     num_workers: 0}
"""


def write_scenes(folder: Path, size: int = 24) -> list[str]:
    """Draw 24 scenes of two shapes, with a caption each; return the captions."""
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
    return [caption for _, caption in rows]


def write_tokenizer(folder: Path, captions: list[str]) -> str:
    tokenizers = pytest.importorskip("tokenizers")
    folder.mkdir()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, show_progress=False)
    tokenizer.train_from_iterator(captions, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.mark.parametrize("pieces", [False, True], ids=["letters", "pieces"])
def test_japanese_captions_are_trained_and_drawn(
    pieces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    captions = write_scenes(tmp_path)
    config: dict[str, Any] = yaml.safe_load(CONFIG)
    if pieces:
        config["data"]["init_args"]["tokenizer"] = write_tokenizer(tmp_path / "bpe", captions)
    Path("ja.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    assert main(["fit", "--config", "ja.yaml", "--run", "run"]) == 0
    model: Any = read_model(Path("run/checkpoints/last.ckpt"))
    assert model.pieces == ("byte-level" if pieces else "")
    explained = ["--method", "relevance", "--out", "out"]
    assert main(["caption", "photos/00.png", "--model", "run", *explained]) == 0
    record = json.loads(Path("out/00.json").read_text(encoding="utf-8"))
    assert len(record["maps"]) == len(record["words"]) == len(record["log_probs"])
    assert ("pieces" in record) == pieces
    assert "".join(record["words"]) == record["caption"].replace(" ", "")
    assert {"00.png", "00.html"} <= {path.name for path in Path("out").iterdir()}


def test_phrases_and_pieces_exclude_each_other(tmp_path: Path) -> None:
    captions = write_scenes(tmp_path)
    with pytest.raises(ValueError, match="leave out phrases or tokenizer"):
        CaptionDataModule(
            str(tmp_path / "captions.csv"),
            str(tmp_path / "photos"),
            val_fraction=0.2,
            phrases="phrases.jsonl",
            tokenizer=write_tokenizer(tmp_path / "bpe", captions),
        )
