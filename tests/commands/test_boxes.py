"""`--boxes`: the commands write the boxes of their maps as COCO JSON, and draw them."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from visattn.cli import main
from visattn.commands.boxes import _DEFAULT
from visattn.data.regions.readers import read_coco_images
from visattn.data.scenes.dataset import Scenes
from visattn.results.map_boxes import BOX_THRESHOLD

CAPTION = ("caption", "--weights", "scenes-captioner", "--beam-size", "1")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A scene, and one in a folder below whose file is stored turned by EXIF 6."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    first, second = (
        Image.fromarray(Scenes(2, size=80, split="test").image(i).permute(1, 2, 0).numpy())
        for i in (0, 1)
    )
    first.crop((0, 0, 80, 61)).save(folder / "a.png")
    exif = Image.Exif()
    exif[274] = 6
    second.crop((0, 0, 80, 53)).transpose(Image.Transpose.ROTATE_90).save(
        folder / "more/b.png", exif=exif
    )
    return folder


def run(*words: object) -> int:
    return main([str(word) for word in words])


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


def test_captions_have_boxes_for_their_words(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "out", tmp_path / "boxes" / "words.json"
    assert run(*CAPTION, photos, "--out", out, "--boxes", file) == 0
    rows = dict(line.split("\t") for line in capsys.readouterr().out.splitlines())
    written = read(file)
    assert [each["file_name"] for each in written["images"]] == ["a.png", "more/b.png"]
    assert [(each["height"], each["width"]) for each in written["images"]] == [(61, 80), (53, 80)]
    texts = {e["index"]: e["text"] for e in written["annotations"] if e["image_id"] == 1}
    assert [texts[index] for index in sorted(texts)] == rows["a"].split()
    first, second = read_coco_images(file, photos)
    for image in (first, second):
        assert image.read().size == image.size
        left = min(each.box[0] for each in image.objects if each.box is not None)
        assert left >= (80 - image.size[0]) / 2 - 1  # the central square is what the model saw
    record = read(out / "a.json")
    assert len(record["boxes"]["boxes"]) == len(first.objects)
    assert '"boxes":[[[' in (out / "a.html").read_text()
    before = file.read_bytes()
    file.unlink()
    stamp = (out / "a.png").stat().st_mtime_ns
    assert run(*CAPTION, photos, "--out", out, "--boxes", file) == 0
    assert file.read_bytes() == before  # of the records
    assert (out / "a.png").stat().st_mtime_ns == stamp


def test_boxes_need_no_folder(photos: Path, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "words.json"
    assert run(*CAPTION, photos / "a.png", "--boxes", file, "--dry-run") == 0
    assert f"writes  {file}" in capsys.readouterr().out
    assert not file.exists()
    assert run(*CAPTION, photos / "a.png", "--boxes", file, "--box-threshold", "0.25") == 0
    assert read(file)["info"]["rules"] == [{"threshold": 0.25}]


def test_overlays_have_boxes_of_classes_and_methods(photos: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "maps.json"
    model = ("overlay", photos, "--out", out, "--model", "timm:test_resnet", "--input-size", "64",
             "--method", "input_gradient", "itti_koch", "--class", "7", "--save", "overlay",
             "--boxes", file)  # fmt: skip
    assert run(*model) == 0
    written = read(file)
    names = {each["id"]: each["name"] for each in written["categories"]}
    categories = [names[each["category_id"]] for each in written["annotations"]]
    assert set(categories) == {"cock", "itti_koch"}
    assert {each["image_id"] for each in written["annotations"]} == {1, 2}
    before = file.read_bytes()
    assert run(*model) == 0
    assert file.read_bytes() == before
    maps = ("overlay", photos / "a.png", "--maps", out / "a.itti_koch.npy")
    assert run(*maps, "--words", "salient", "--out", tmp_path / "s.png", "--boxes", file) == 0
    assert [each["name"] for each in read(file)["categories"]] == ["salient"]


def test_wrong_files_are_refused(photos: Path, tmp_path: Path, capsys: Any) -> None:
    image = photos / "a.png"
    for code, words, message in (
        (1, ("--boxes", tmp_path), "must be a file"),
        (1, ("--boxes", image), "overwrite the input image"),
        (2, ("--box-threshold", "0.3"), "needs a file of boxes, --boxes FILE"),
    ):
        assert run(*CAPTION, image, *words) == code
        assert message in capsys.readouterr().err
    assert run(*CAPTION, image, "--boxes", "b.json", "--box-threshold", "0") == 2
    assert _DEFAULT == BOX_THRESHOLD


def test_a_file_of_something_else_is_not_replaced(
    photos: Path, tmp_path: Path, capsys: Any
) -> None:
    file, image = tmp_path / "boxes.json", photos / "a.png"
    for content in ('{"info": {"description": "COCO 2017"}}', "no JSON"):
        file.write_text(content)
        for words in (CAPTION, ("overlay", "--method", "gradcam", "--model", "timm:resnet18")):
            out = tmp_path / "out"
            assert run(*words, image, "--out", out, "--boxes", file) == 1
            assert "holds no boxes of attention maps" in capsys.readouterr().err
            assert file.read_text() == content
            assert not out.exists()  # nothing was computed
    assert run(*CAPTION, image, "--boxes", file) == 1
    assert run(*CAPTION, image, "--boxes", file, "--overwrite") == 0
    assert read(file)["info"]["description"] == "boxes of attention maps"
    assert run(*CAPTION, image, "--boxes", file) == 0
    maps = ("overlay", image, "--maps", file, "--out", tmp_path / "x.png")
    file.write_text("[[1]]")
    assert run(*maps, "--boxes", file) == 1
    assert run(*CAPTION, image, "--overwrite") == 2
