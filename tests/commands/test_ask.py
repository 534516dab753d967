"""`visattn ask`: rows, pages and JSON in the coordinates of the photo, and errors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from question_models import small_mac

import visattn as va
from visattn.cli import main
from visattn.geometry.affine import Geometry
from visattn.results.records import from_dict
from visattn.viz.answers import answer_figure
from visattn.viz.figures import rgb

Capsys = pytest.CaptureFixture[str]
QUESTIONS = ("what color is the ring?", "is the rng on the left")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    va.save(small_mac(), path)
    return str(path)


def test_files_hold_what_the_library_returns(
    weights: str, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    assert main(["ask", str(photos), *QUESTIONS, "--weights", weights, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("'rng': did you mean ring?") == 1
    lines = [line.split("\t") for line in printed.out.splitlines()]
    rows = {(name, question): text for name, question, text in lines}
    assert {path.name for path in out.iterdir()} == {
        "tall.html", "tall.json", "tall.png", "wide.html", "wide.json", "wide.png",
        "index.html", "ask.csv",
    }  # fmt: skip
    model = va.load(weights)
    for name in ("tall", "wide"):
        with pytest.warns(UserWarning, match="rng"):
            answers = va.ask(model, photos / f"{name}.png", QUESTIONS)
        record = json.loads((out / f"{name}.json").read_text())
        for entry, answer in zip(record["questions"], answers, strict=True):
            best, probability = answer.answers[0]
            row = rows[name, answer.question]
            assert re.fullmatch(rf"{best} \(\d+ %\)", row)
            assert entry["answers"][0][0] == best
            assert entry["answers"][0][1] == pytest.approx(probability, abs=1e-5)
            assert answer.maps is not None
            torch.testing.assert_close(torch.tensor(entry["maps"]["values"]), answer.maps.values)
            assert from_dict(Geometry, entry["maps"]["geometry"]) == answer.maps.geometry
            assert entry["unknown"] == list(answer.unknown)


def test_a_dry_run_names_the_files(
    weights: str, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    arguments = ["ask", str(photos), "the ring", "--weights", weights, "--out", str(out)]
    assert main([*arguments, "--dry-run"]) == 0
    assert "tall.html" in capsys.readouterr().out
    assert not out.exists()


def test_errors_say_what_to_do(weights: str, photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    va.save(small_mac().encoder, tmp_path / "encoder.safetensors")
    photo, encoder = str(photos / "tall.png"), str(tmp_path / "encoder.safetensors")
    cases = (
        ([photo, "the ring"], 2, "a model is missing"),
        ([photo, "the ring", "--model", "timm:x"], 1, "unknown timm model 'x'"),
        ([photo, "the ring", "--model", "hf:x", "--weights", weights], 2, "pass one model"),
        ([photo, "the ring", "--model", "hf:x"], 1, "x must be a directory with a config.json"),
        ([photo, "", "--weights", weights], 1, "a question must have at least one word"),
        ([photo, "wo ist er", "--weights", weights], 1, "knows none of the words"),
        (
            [photo, "the ring", "--weights", encoder],
            1,
            "which is not a model that answers questions",
        ),
    )
    for arguments, code, message in cases:
        assert main(["ask", *arguments]) == code, arguments
        assert message in capsys.readouterr().err


def test_boxes_of_all_maps_have_the_answer_as_category(
    weights: str, photos: Path, tmp_path: Path
) -> None:
    file = tmp_path / "boxes.json"
    photo, questions = str(photos / "tall.png"), ["what color is the ring?", "the ring"]
    arguments = ["ask", photo, *questions, "--weights", weights, "--out", str(tmp_path)]
    assert main([*arguments, "--boxes", str(file)]) == 0
    written = json.loads(file.read_text())
    answers = va.ask(va.load(weights), photo, questions)
    assert [each["name"] for each in written["categories"]] == list(
        dict.fromkeys(answer.text for answer in answers)
    )
    counts = [len(answer.maps) for answer in answers if answer.maps is not None]
    numbers = {each["index"] for each in written["annotations"]}
    assert numbers == set(range(sum(counts)))  # maps of the second question follow the first
    assert '"boxes":[[[' in (tmp_path / "tall.html").read_text()
    plain = answer_figure(photo, answers)  # the panel beside it has the boxes too
    with Image.open(tmp_path / "tall.png") as panel:
        outlined = (np.asarray(panel) != rgb(plain)).any(2)
    assert 0 < outlined.mean() < 0.1
