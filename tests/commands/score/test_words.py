"""`visattn score words`, from the command line."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import visattn
from visattn.commands.score import evaluate_words
from visattn.commands.score.command import main
from visattn.images.reader import ImageError
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.results.kinds import SPECIAL_TOKENS


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    words = (*SPECIAL_TOKENS, "a", "dog", "red", "ball", "circle")
    visattn.save(
        ShowAttendTell(words, SmallEncoder((24, 40), channels=8), hidden_size=11),
        tmp_path / "model.safetensors",
    )
    return tmp_path / "model.safetensors"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for name in ("1.png", "2.png"):
        pixels = rng.integers(0, 256, (31, 53, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / name)
    phrase = {"first_word": 0, "words": 2, "types": [], "boxes": [[0.0, 0.0, 0.5, 1.0]]}
    entry = {"sentence": "a dog has a red ball", "phrases": [phrase]}
    (tmp_path / "phrases.json").write_text(json.dumps({n: [entry] for n in ("1.png", "2.png")}))
    return tmp_path


def test_scores_and_controls_are_printed_and_written(
    weights: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["words", "--weights", str(weights), "--data", str(photos / "phrases.json")]
    arguments += ["--images", str(photos / "images"), "--methods", "attention", "relevance"]
    assert main([*arguments, "--out", str(photos / "out")]) == 0
    printed = capsys.readouterr().out
    assert "2 phrases of 2 reference captions" in printed
    scores = json.loads((photos / "out" / "scores.json").read_text())["scores"]
    assert set(scores) == {"attention", "relevance", "uniform", "center"}
    assert set(scores["attention"]) == {"none", "swapped", "untrained"}
    assert scores["uniform"]["none"]["lift"] == pytest.approx(0, abs=1e-6)
    assert scores["attention"]["swapped"]["count"] == 1
    settings, *rows = map(json.loads, (photos / "out" / "rows.jsonl").read_text().splitlines())
    assert settings["settings"]["methods"] == ["attention", "relevance"]
    assert {row["method"] for row in rows if row["kind"] == "phrase"} == set(scores)


def test_scenes_need_no_files(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["words", "--weights", str(weights), "--data", "scenes:scenes_demo"]
    assert main([*arguments, "--limit", "2", "--methods", "gradcam"]) == 0
    assert "of 2 reference captions" in capsys.readouterr().out


def test_methods_of_transformers_are_scored_on_their_own_grid(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    from tests.helpers.tiny_vlms import WORDS, build

    model, processor = build("qwen2_5_vl")
    model.save_pretrained(photos / "model")
    processor.save_pretrained(photos / "model")
    sentence = " ".join(WORDS[3:6])
    phrase = {"first_word": 0, "words": 2, "types": [], "boxes": [[0.0, 0.0, 0.5, 1.0]]}
    entry = [{"sentence": sentence, "phrases": [phrase]}]
    (photos / "phrases.json").write_text(json.dumps({"1.png": entry}))
    arguments = ["words", "--model", f"hf:{photos / 'model'}", "--images", str(photos / "images")]
    arguments += ["--data", str(photos / "phrases.json"), "--prompt", "w1", "--contrast", "w2"]
    arguments += ["--methods", "tam", "tower_gradcam", "--out", str(photos / "out")]
    assert main(arguments) == 0
    scores = json.loads((photos / "out" / "scores.json").read_text())["scores"]
    assert set(scores) == {"tam", "tower_gradcam", "contrast", "uniform", "center"}
    areas = {name: scores[name]["none"]["area"] for name in scores}
    assert all(area == pytest.approx(0.5, abs=0.02) for area in areas.values()), areas


def test_mistakes_are_explained(weights: Path, photos: Path) -> None:
    data = ["--data", str(photos / "phrases.json")]
    for arguments, message in (
        (["--weights", str(weights), *data], "--images DIR"),
        (
            ["--weights", str(weights), "--data", "scenes:mnist_resnet_cbam"],
            "no config of drawn scenes",
        ),
        (
            ["--model", "timm:resnet18", "--data", "scenes:scenes_demo", "--limit", "1"],
            "which is not a captioner",
        ),
        (
            [
                "--weights",
                str(weights),
                "--data",
                "scenes:scenes_demo",
                "--limit",
                "1",
                "--methods",
                "tam",
            ],
            "tam is for the words of models of transformers",
        ),
        (
            [
                "--weights",
                str(weights),
                "--data",
                "scenes:scenes_demo",
                "--limit",
                "1",
                "--contrast",
                "a",
            ],
            "--contrast belongs to --model",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            main(["words", *arguments])


def test_an_interrupted_run_is_resumed(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = ["--weights", str(weights), "--data", "scenes:scenes_demo", "--limit", "4"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["words", *scenes, "--out", str(whole)]) == 0
    shutil.copytree(whole, cut)
    for name in ("test-2", "test-3"):
        (cut / "rows" / f"{name}.json").unlink()
    (cut / "rows.jsonl").unlink()
    computed: list[str] = []
    maps = evaluate_words.WordModel.maps

    def counted(self: Any, image: Any, *rest: Any) -> Any:
        computed.append(image.name)
        return maps(self, image, *rest)

    monkeypatch.setattr(evaluate_words.WordModel, "maps", counted)
    assert main(["words", *scenes, "--out", str(cut)]) == 0
    assert {*computed} == {"test-1", "test-2", "test-3"}  # a control is the scene before
    for name in ("rows.jsonl", "scores.json", "rows/test-2.json"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    computed.clear()
    assert main(["words", *scenes, "--out", str(cut)]) == 0
    assert not computed


def test_shards_share_the_photos(weights: Path, tmp_path: Path) -> None:
    scenes = ["--weights", str(weights), "--data", "scenes:scenes_demo", "--limit", "4"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["words", *scenes, "--out", str(whole)]) == 0
    for number in (1, 2):
        assert main(["words", *scenes, "--shard", f"{number}/2", "--out", str(parts)]) == 0
        kept = json.loads((parts / "scores.json").read_text())["scores"]["attention"]["none"]
        total = json.loads((whole / "scores.json").read_text())["scores"]["attention"]["none"]
        assert (kept == total) is (number == 2)
    for name in ("rows.jsonl", "scores.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


def test_unreadable_photos_are_skipped_and_foreign_files_kept(
    weights: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["words", "--weights", str(weights), "--data", str(photos / "phrases.json")]
    arguments += ["--images", str(photos / "images"), "--out", str(photos / "out")]
    (photos / "images" / "1.png").write_bytes(b"none")
    assert main(arguments) == 1
    lines, errors = capsys.readouterr()
    assert "1 phrases of 1 reference captions" in lines
    assert "1 of 2 images skipped" in errors
    (photos / "out" / "rows.jsonl").write_text("mine")
    with pytest.raises(FileExistsError, match="rows.jsonl, which this command did not write"):
        main(arguments)
    assert main([*arguments, "--overwrite"]) == 1
    with pytest.raises(ImageError):
        main([*arguments, "--strict"])
