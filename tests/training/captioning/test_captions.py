"""Japanese captions from a table to pages, with letters as words."""

import json
from pathlib import Path

import pytest
from PIL import Image
from task_runs import as_yaml, data, frozen, of, soft

from visattn.cli import main


@pytest.mark.filterwarnings("ignore:CIDEr-D over:UserWarning")  # over so few photos
def test_japanese_captions_are_trained_and_drawn(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    lines = ["image,caption"]
    for number in range(12):
        color, name = (("red", "赤い"), ("blue", "青い"), ("green", "緑の"))[number % 3]
        Image.new("RGB", (24, 24), color).save(tmp_path / "photos" / f"{number:02}.png")
        lines.append(f"{number:02}.png,{name}円と四角。")
    Path("captions.csv").write_text("\n".join(lines), encoding="utf-8")
    source = of("CaptionFile", captions="captions.csv", photos="photos", val_fraction=0.2)
    task = of("CaptioningTask", captioner=soft(frozen(64)), beam_size=2)
    panels = [of("CaptionPanels")]
    config = as_yaml(task, data("Caption", source, 4), max_steps=2, callbacks=panels)
    Path("ja.yaml").write_text(config)
    fit = ["fit", "--config", "ja.yaml", "--run", "run"]
    assert main([*fit, "--trainer.limit_val_batches", "0"]) == 0
    explained = ["--method", "relevance", "--out", "out", "--figures", "png"]
    assert main(["caption", "photos/00.png", "--model", "run", *explained]) == 0
    record = json.loads(Path("out/00.json").read_text(encoding="utf-8"))
    assert len(record["maps"]["values"]) == len(record["words"]) == len(record["log_probs"])
    assert "".join(record["words"]) == record["caption"].replace(" ", "")
    assert {"00.png", "00.html"} <= {path.name for path in Path("out").iterdir()}
