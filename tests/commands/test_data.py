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
from visattn.data.classification.cluttered_mnist import ClutteredDigits, ClutterSpec, canvas_digest
from visattn.data.regions.readers import read_coco_images
from visattn.data.scenes.dataset import SINGLE_OBJECT, Scenes, single_object_scenes
from visattn.data.scenes.world import object_masks
from visattn.images.sources import find_images

Capsys = pytest.CaptureFixture[str]
LISTS = {"scenes": "captions.jsonl", "shapes": "shapes.jsonl", "digits": "digits.jsonl"}


def write(name: str, out: Path, line: str = "") -> int:
    return main(["data", name, "--out", str(out), *line.split()])


def records(out: Path, name: str = "scenes") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / LISTS[name]).read_text().splitlines()]


def pixels(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image).transpose(2, 0, 1)


def test_scenes(tmp_path: Path, capsys: Capsys) -> None:
    out = tmp_path / "new" / "scenes"
    assert write("scenes", out, "--count 3 --size 37 --seed 5 --split novel") == 0
    assert capsys.readouterr().out == f"{out}\t3 scenes of split novel, 37 x 37 pixels\n"
    scenes = Scenes(3, size=37, seed=5, split="novel")
    lines = records(out)
    assert sorted(path.name for path in find_images([out])) == sorted(x["file"] for x in lines)
    placed = {image.name: image for image in read_coco_images(out / "instances.json", out)}
    for index, line in enumerate(lines):
        np.testing.assert_array_equal(pixels(out / line["file"]), scenes[index].image.numpy())
        assert line["captions"] == list(scenes[index].captions)
        boxes = [(each.category, [*(each.box or ())]) for each in placed[line["file"]].objects]
        assert boxes == [(thing["shape"], thing["box"]) for thing in line["objects"]]
        for thing, mask in zip(line["objects"], object_masks(scenes.world(index), 37), strict=True):
            rows, columns = np.nonzero(mask)
            left, top, right, bottom = thing["box"]
            assert left <= columns.min() + 0.5 <= columns.max() + 0.5 <= right
            assert top <= rows.min() + 0.5 <= rows.max() + 0.5 <= bottom
        for caption, shows in zip(line["captions"], line["word_objects"], strict=True):
            for word, shown in zip(caption.split(), shows, strict=True):
                assert shown is None or word in line["objects"][shown].values()


def test_scenes_contain_only_the_selected_attributes(tmp_path: Path) -> None:
    line = "--colors red blue --shapes ring --textures plain --max-objects 2 --count 5"
    assert write("scenes", tmp_path, line) == 0
    objects = [thing for each in records(tmp_path) for thing in each["objects"]]
    assert len(objects) == 10
    kinds = [{thing[key] for thing in objects} for key in ("shape", "texture", "color")]
    assert kinds == [{"ring"}, {"plain"}, {"red", "blue"}]


def test_shapes_match_the_data_module(tmp_path: Path, capsys: Capsys) -> None:
    assert write("shapes", tmp_path, "--count 5 --size 19 --seed 3 --split train") == 0
    things = single_object_scenes(Scenes(5, size=19, seed=3, split="train", config=SINGLE_OBJECT))
    lines = records(tmp_path, "shapes")
    for line, image, shape in zip(lines, things.images, things.labels.tolist(), strict=True):
        np.testing.assert_array_equal(pixels(tmp_path / line["file"]), image.numpy())
        assert line["class"] == line["object"]["shape"] == SINGLE_OBJECT.shapes[shape]
    assert capsys.readouterr().out == f"{tmp_path}\t5 shapes of split train, 19 x 19 pixels\n"


def test_digits(tmp_path: Path, capsys: Capsys) -> None:
    write_digits(tmp_path, train=5011)
    out, root = tmp_path / "new", f"--root {tmp_path}"
    line = "--canvas-size 31 41 --num-distractors 3 --distractor-size 5 --seed 2"
    assert write("digits", out, f"{root} {line} --count 7 --split validation") == 0
    spec = ClutterSpec((31, 41), 3, 5)
    data = ClutteredDigits(str(tmp_path), canvas=spec, seed=2, split_seed=2)("validation")
    images, labels = data.draw([*range(7)])
    placed = {image.name: image for image in read_coco_images(out / "instances.json", out)}
    for number, record in enumerate(records(out, "digits")):
        drawn = pixels(out / record["file"])
        np.testing.assert_array_equal(drawn, images[number].expand(3, -1, -1).numpy())
        assert record["class"] == str(int(labels[number]))
        left, top, right, bottom = record["box"]
        assert (right - left, bottom - top) == (28, 28)
        inside = np.maximum(drawn[0, top:bottom, left:right], data.digits[number, 0].numpy())
        np.testing.assert_array_equal(drawn[0, top:bottom, left:right], inside)
        boxes = placed[record["file"]].region_masks(record["class"])[1]
        assert boxes[top:bottom, left:right].sum() == boxes.sum() == 28 * 28
        assert len(record["distractors"]) == 3
        lit = np.zeros((31, 41), bool)
        for left, top, right, bottom in [record["box"], *record["distractors"]]:
            lit[top:bottom, left:right] = True
        assert not drawn[0][~lit].any()
    output = capsys.readouterr().out
    assert "7 of 5000 canvases of split validation, 31 x 41 pixels, sha256 of all" in output
    assert output.endswith(f"{canvas_digest(data)}\n")
    for wrong, said in (("--count 99999", "--count must be 1 to"), ("--canvas-size 20 20", "20")):
        assert write("digits", tmp_path / "none", f"{root} {wrong}") == 1
        assert said in capsys.readouterr().err
        assert not (tmp_path / "none").exists()
    names = ("canvas_size", "num_distractors", "distractor_size")
    defaults = [inspect.signature(digits).parameters[name].default for name in names]
    assert ClutterSpec(*defaults) == ClutterSpec()  # those of training


def test_a_smaller_set_replaces_a_larger_one_as_a_whole(tmp_path: Path, capsys: Capsys) -> None:
    out = tmp_path / "set"
    assert write("scenes", out, "--size 16 --count 5") == 0
    assert write("scenes", out, "--size 16 --count 3 --seed 7") == 0
    names = {"test-0.png", "test-1.png", "test-2.png", "captions.jsonl", "instances.json"}
    assert {path.name for path in out.iterdir()} == names
    assert [line["id"] for line in records(out)] == ["test-0", "test-1", "test-2"]
    (out / "labels.json").write_text("{}")
    assert write("scenes", out, "--size 16 --count 2") == 1
    assert "holds labels.json, which this command did not write" in capsys.readouterr().err
    assert len(records(out)) == 3
    assert write("scenes", out, "--size 16 --count 2 --overwrite") == 0
    assert len(records(out)) == 2
    assert (out / "labels.json").read_text() == "{}"
    (out / "captions.jsonl").write_text('{"id": "a", "file": "../labels.json", "captions": []}')
    assert write("scenes", out, "--size 16 --count 2") == 1  # a list of the user
    assert "holds captions.jsonl" in capsys.readouterr().err


def test_an_interrupted_set_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    out = tmp_path / "set"
    assert write("shapes", out, "--size 16 --count 3") == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_write_image", interrupt)
    assert write("shapes", out, "--size 16 --count 2 --seed 7") == 130
    assert "0 of 2 were drawn, and" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
