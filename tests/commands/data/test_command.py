"""Scenes as files: what is written can be read back and is what the data set holds."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from visattn.cli import main
from visattn.commands.data.command import build_parser
from visattn.data.images.reader import find_images, read_image
from visattn.data.scenes.dataset import Scenes, Split


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    words = ["data", "scenes", "--out", str(tmp_path / "new" / "scenes"), "--count", "3"]
    assert main([*words, "--size", "37", "--seed", "5", "--split", "novel"]) == 0
    return tmp_path / "new" / "scenes"


def test_images_match_the_dataset(written: Path) -> None:
    scenes = Scenes(3, size=37, seed=5, split="novel")
    for index, line in enumerate(lines(written)):
        with Image.open(written / line["file"]) as image:
            drawn = np.asarray(image).transpose(2, 0, 1)
        np.testing.assert_array_equal(drawn, scenes.image(index).numpy())
        assert line["captions"] == list(scenes[index].captions)


def test_every_image_is_listed_and_readable(written: Path) -> None:
    results = find_images([written])
    assert sorted(path.name for path in results) == sorted(line["file"] for line in lines(written))
    assert {read_image(path).size for path in results} == {(37, 37)}


def test_boxes_contain_their_objects(written: Path) -> None:
    scenes = Scenes(3, size=37, seed=5, split="novel")
    for index, line in enumerate(lines(written)):
        for thing, mask in zip(line["objects"], scenes.masks(index).numpy(), strict=True):
            rows, columns = np.nonzero(mask)
            left, top, right, bottom = thing["box"]
            assert left <= columns.min() + 0.5 <= columns.max() + 0.5 <= right
            assert top <= rows.min() + 0.5 <= rows.max() + 0.5 <= bottom


def test_words_refer_to_the_objects_that_they_name(written: Path) -> None:
    for line in lines(written):
        for caption, shows in zip(line["captions"], line["word_objects"], strict=True):
            for word, shown in zip(caption.split(), shows, strict=True):
                if shown is not None:
                    assert word in line["objects"][shown].values()


def test_defaults_are_eight_test_scenes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "scenes", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\t8 scenes of split test, 64 x 64 pixels\n"
    assert [line["id"] for line in lines(tmp_path)] == [f"test-{index}" for index in range(8)]


def test_help_lists_the_splits(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        build_parser().parse_args(["scenes", "--help"])
    assert f"{{{','.join(get_args(Split))}}}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["--count", "0"], "--count: must be a whole number from 1 to 1,000,000"),
        (["--size", "3"], "--size: must be a whole number from 16 to 4,096"),
        (["--seed", "-1"], "--seed: must be a whole number from 0"),
    ],
)
def test_numbers_out_of_range_write_nothing(
    words: list[str], output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "scenes", "--out", str(tmp_path / "new"), *words]) == 2
    assert output in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_unwritable_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["data", "scenes", "--out", str(tmp_path / "file" / "in")]) == 1
    assert "cannot be written: Not a directory" in capsys.readouterr().err


def test_scenes_contain_only_the_selected_attributes(tmp_path: Path) -> None:
    words = [
        "--colors",
        "red",
        "blue",
        "--shapes",
        "ring",
        "--textures",
        "plain",
        "--max-objects",
        "2",
    ]
    assert main(["data", "scenes", "--out", str(tmp_path), "--count", "5", *words]) == 0
    record = (tmp_path / "captions.jsonl").read_text().splitlines()
    objects = [thing for line in record for thing in json.loads(line)["objects"]]
    assert len(objects) == 10
    assert {thing["shape"] for thing in objects} == {"ring"}
    assert {thing["texture"] for thing in objects} == {"plain"}
    assert {thing["color"] for thing in objects} == {"red", "blue"}
