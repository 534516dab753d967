"""Digits on canvases and lone shapes as files: what is written is what training sees."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classification_data import write_digits
from PIL import Image

from visattn.cli import main
from visattn.commands.data.command import build_parser
from visattn.data.classification.cluttered_mnist import ClutterSpec
from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.single_object import SINGLE_OBJECT, single_object_scenes
from visattn.training.data.cluttered_mnist import ClutteredMNISTDataModule


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def pixels(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image).transpose(2, 0, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_digits(tmp_path, train=5011)
    return tmp_path


def test_boxes_locate_the_digits(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = root / "new"
    words = [
        "--canvas-size",
        "31",
        "41",
        "--num-distractors",
        "3",
        "--distractor-size",
        "5",
        "--seed",
        "2",
    ]
    args = ["data", "digits", "--root", str(root), "--out", str(out), "--count", "7", *words]
    assert main([*args, "--blend", "max", "--split", "validation"]) == 0
    data = ClutteredMNISTDataModule(
        root=str(root),
        canvas_size=(31, 41),
        num_distractors=3,
        distractor_size=5,
        blend="max",
        seed=2,
        split_seed=2,
    ).open_dataset("validation")
    images, labels = data[[*range(7)]]
    for number, line in enumerate(lines(out / "digits.jsonl")):
        drawn = pixels(out / line["file"])
        np.testing.assert_array_equal(drawn, images[number].expand(3, -1, -1).numpy())
        assert line["class"] == str(int(labels[number]))
        left, top, right, bottom = line["box"]
        assert (right - left, bottom - top) == (28, 28)
        inside = np.maximum(drawn[0, top:bottom, left:right], data.digits[number, 0].numpy())
        np.testing.assert_array_equal(drawn[0, top:bottom, left:right], inside)
        assert len(line["distractors"]) == 3
        lit = np.zeros((31, 41), bool)
        for left, top, right, bottom in [line["box"], *line["distractors"]]:
            lit[top:bottom, left:right] = True
        assert not drawn[0][~lit].any()
    output = capsys.readouterr().out
    assert "7 of 5000 canvases of split validation, 31 x 41 pixels, sha256 of all" in output
    assert output.endswith(f"{data.digest()}\n")


def test_shapes_match_the_data_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--count", "5", "--size", "19", "--seed", "3", "--split", "train"]
    assert main(["data", "shapes", "--out", str(tmp_path), *words]) == 0
    things = single_object_scenes(Scenes(5, size=19, seed=3, split="train", config=SINGLE_OBJECT))
    record = lines(tmp_path / "shapes.jsonl")
    for line, image, shape in zip(record, things.images, things.shapes.tolist(), strict=True):
        np.testing.assert_array_equal(pixels(tmp_path / line["file"]), image.numpy())
        assert line["class"] == line["object"]["shape"] == SINGLE_OBJECT.shapes[shape]
    assert capsys.readouterr().out == f"{tmp_path}\t5 shapes of split train, 19 x 19 pixels\n"


def test_canvas_defaults_match_those_of_training() -> None:
    args = build_parser().parse_args(["digits", "--root", ".", "--out", "."])
    plan = ClutterSpec(args.canvas_size, args.num_distractors, args.distractor_size, args.blend)
    assert plan == ClutterSpec()


@pytest.mark.parametrize(
    ("words", "output", "code"),
    [
        (["--count", "12"], "count must be 1 to 11, got 12", 1),
        (["--canvas-size", "20", "20"], "--canvas-size: must be a whole number from 28", 2),
        (["--num-distractors", "-1"], "--num-distractors: must be a whole number from 0", 2),
        (["--root", "nowhere"], "does not hold MNIST", 1),
    ],
)
def test_invalid_requests_write_nothing(
    words: list[str], output: str, code: int, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = root / "new"
    args = ["data", "digits", "--root", str(root), "--out", str(out), *words]
    assert main(args) == code
    assert output in capsys.readouterr().err
    assert not out.exists()
