"""`visattn data`: written scenes, digits and shapes equal those of the data sets."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from classification_data import write_digits
from PIL import Image

from visattn.cli import main
from visattn.commands import data as command
from visattn.commands.data import digits
from visattn.data.classification.cluttered_mnist import ClutterSpec
from visattn.data.regions.readers import read_coco_images
from visattn.data.scenes.dataset import SINGLE_OBJECT, Scenes, single_object_scenes
from visattn.images.reader import read_image
from visattn.images.sources import find_images
from visattn.training.classification.data import ClutteredMNISTDataModule

Capsys = pytest.CaptureFixture[str]


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


def read_records(file: Path) -> list[dict[str, Any]]:
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
    for number, line in enumerate(read_records(out / "digits.jsonl")):
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
    placed = {image.name: image for image in read_coco_images(out / "instances.json", out)}
    for line in read_records(out / "digits.jsonl"):
        image, (left, top, right, bottom) = placed[line["file"]], line["box"]
        assert (image.size, image.categories) == ((31, 41), (line["class"],))
        boxes = image.region_masks(line["class"])[1]
        assert boxes[top:bottom, left:right].sum() == boxes.sum() == 28 * 28
    output = capsys.readouterr().out
    assert "7 of 5000 canvases of split validation, 31 x 41 pixels, sha256 of all" in output
    assert output.endswith(f"{data.digest()}\n")


def test_instances_of_scenes_and_shapes_are_their_boxes(tmp_path: Path) -> None:
    """The instances file is read as any of COCO, with the boxes and shapes of the JSON lines."""
    for name, lines_file in (("scenes", "captions.jsonl"), ("shapes", "shapes.jsonl")):
        folder = tmp_path / name
        words = ["--out", str(folder), "--count", "5", "--size", "37", "--colors", "red", "cyan"]
        assert main(["data", name, *words]) == 0
        records = {line["file"]: line for line in read_records(folder / lines_file)}
        images = read_coco_images(folder / "instances.json", folder)
        assert [image.name for image in images] == sorted(records)
        for image in images:
            record = records[image.name]
            things = record.get("objects") or [record["object"]]
            assert [each.category for each in image.objects] == [each["shape"] for each in things]
            assert {each["color"] for each in things} <= {"red", "cyan"}
            for thing in things:
                left, top, right, bottom = thing["box"]
                _, boxes = image.region_masks(thing["shape"])
                assert boxes[top:bottom, left:right].all()
            area = sum((b - t) * (r - x) for x, t, r, b in (each["box"] for each in things))
            assert image.region_masks()[1].sum() <= area


def test_shapes_match_the_data_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--count", "5", "--size", "19", "--seed", "3", "--split", "train"]
    assert main(["data", "shapes", "--out", str(tmp_path), *words]) == 0
    things = single_object_scenes(Scenes(5, size=19, seed=3, split="train", config=SINGLE_OBJECT))
    record = read_records(tmp_path / "shapes.jsonl")
    for line, image, shape in zip(record, things.images, things.shapes.tolist(), strict=True):
        np.testing.assert_array_equal(pixels(tmp_path / line["file"]), image.numpy())
        assert line["class"] == line["object"]["shape"] == SINGLE_OBJECT.shapes[shape]
    assert capsys.readouterr().out == f"{tmp_path}\t5 shapes of split train, 19 x 19 pixels\n"


def test_canvas_defaults_match_those_of_training() -> None:
    names = ("canvas_size", "num_distractors", "distractor_size", "blend")
    defaults = [inspect.signature(digits).parameters[name].default for name in names]
    assert ClutterSpec(*defaults) == ClutterSpec()


@pytest.mark.parametrize(
    ("words", "output", "code"),
    [
        (["--count", "12"], "count must be 1 to 11, got 12", 1),
        (["--canvas-size", "20", "20"], "20", 1),
        (["--root", "nowhere"], "does not hold MNIST", 1),
    ],
)
def test_invalid_requests_write_nothing(
    words: list[str], output: str, code: int, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = root / "new"
    folder = [] if "--root" in words else ["--root", str(root)]
    assert main(["data", "digits", *folder, "--out", str(out), *words]) == code
    assert output in capsys.readouterr().err
    assert not out.exists()


def test_a_smaller_set_replaces_a_larger_one_as_a_whole(tmp_path: Path, capsys: Capsys) -> None:
    out = tmp_path / "set"
    words = ["data", "scenes", "--size", "16", "--out", str(out)]
    assert main([*words, "--count", "5"]) == 0
    assert main([*words, "--count", "3", "--seed", "7"]) == 0
    names = {"test-0.png", "test-1.png", "test-2.png", "captions.jsonl", "instances.json"}
    assert {path.name for path in out.iterdir()} == names
    assert [line["id"] for line in lines(out)] == ["test-0", "test-1", "test-2"]
    (out / "labels.json").write_text("{}")
    capsys.readouterr()
    assert main([*words, "--count", "2"]) == 1
    assert "holds labels.json, which this command did not write" in capsys.readouterr().err
    assert len(lines(out)) == 3
    assert main([*words, "--count", "2", "--overwrite"]) == 0
    assert len(lines(out)) == 2
    assert (out / "labels.json").read_text() == "{}"
    (out / "captions.jsonl").write_text('{"id": "a", "file": "../labels.json", "captions": []}')
    assert main([*words, "--count", "2"]) == 1  # a list of the user
    assert "holds captions.jsonl" in capsys.readouterr().err


def test_an_interrupted_set_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    words = ["data", "shapes", "--size", "16", "--out", str(tmp_path / "set"), "--count"]
    assert main([*words, "3"]) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_write_image", interrupt)
    assert main([*words, "2", "--seed", "7"]) == 130
    assert "0 of 2 were drawn, and" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
