"""Boxes, maps and points of detectors on the original photo, and `visattn overlay` with them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from tests.helpers.image_text_models import (
    clip_processor,
    tiny_clip,
    tiny_detector,
    tiny_rt_detr,
    tiny_tokenizer,
)
from visattn.cli import main
from visattn.pipelines.detection import explain_queries, load_detector
from visattn.viz.detections import detection_figure

Capsys = pytest.CaptureFixture[str]
RESIZE: dict[str, Any] = {"size": {"shortest_edge": 96, "longest_edge": 160}}
SIZES = {"photo": (90, 130), "portrait": (131, 67), "panorama": (31, 230), "strip": (3, 200)}


def photo(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, (height, width, 3), dtype=np.uint8)


def detr_processor() -> Any:
    return transformers.DetrImageProcessor(**RESIZE)


@pytest.mark.parametrize("name", SIZES)
def test_maps_cover_the_photo_and_boxes_are_in_its_pixels(name: str) -> None:
    height, width = SIZES[name]
    model = tiny_detector("Detr")
    image = photo(height, width)
    [result] = explain_queries(model, [image], 3, processor=detr_processor())
    pixels = detr_processor()(images=Image.fromarray(image), return_tensors="pt")
    with torch.no_grad():
        output = model(pixel_values=pixels["pixel_values"])
    theirs = detr_processor().post_process_object_detection(
        output, threshold=0.0, target_sizes=[(height, width)]
    )[0]
    for each in result.objects:
        box = theirs["boxes"][each.query]
        torch.testing.assert_close(torch.tensor(each.box), box, rtol=1e-3, atol=1e-2)
        assert each.score == pytest.approx(float(theirs["scores"][each.query]), abs=1e-4)
    on_photo = result.maps.resize_to_image()
    assert on_photo.shape == (3, height, width)
    assert not bool(torch.isnan(on_photo).any())
    geometry = result.maps.geometry
    assert geometry is not None
    assert geometry.region == (0, 0, width, height)
    assert detection_figure(image, result, width=600).image.width == 600


def test_cells_lie_where_the_processor_put_their_pixels() -> None:
    """A ramp through the processor says which share of the photo each network pixel shows."""
    height, width = 90, 130
    ramp = np.broadcast_to(np.linspace(0, 255, width)[None, :, None], (height, width, 3))
    plain = transformers.DetrImageProcessor(**RESIZE, do_normalize=False)
    pixels = plain(images=Image.fromarray(ramp.astype(np.uint8)), return_tensors="pt")
    shares = pixels["pixel_values"][0, 0, 5]
    [result] = explain_queries(tiny_detector("Detr"), photo(height, width), 1, processor=plain)
    geometry = result.maps.geometry and result.maps.geometry.from_edges()
    assert geometry is not None
    centers = torch.arange(len(shares)) + 0.5
    points = torch.stack([centers, torch.full_like(centers, 5.5)], 1)
    x = geometry.to_image(points.to(torch.float64))[:, 0]
    torch.testing.assert_close(x[5:-5].float(), shares[5:-5] * (width - 1) + 0.5, rtol=0, atol=1.5)


def test_sampled_points_are_drawn_at_their_place() -> None:
    model = tiny_detector("DeformableDetr")
    processor = transformers.DeformableDetrImageProcessor(**RESIZE)
    image = photo(90, 130)
    [result] = explain_queries(model, image, 2, processor=processor)
    assert result.points is not None
    assert result.points[:, :, 2].sum(1).tolist() == pytest.approx([1, 1], abs=1e-4)
    # the center of mass of the map is that of the points that lie on the photo
    inside = (result.points[..., 0] > 4) & (result.points[..., 0] < 126)
    inside &= (result.points[..., 1] > 4) & (result.points[..., 1] < 86)
    values = result.maps.resize_to_image(smooth=False)
    for index in range(2):
        points = result.points[index][inside[index]]
        expected = (points[:, :2] * points[:, 2:]).sum(0) / points[:, 2].sum()
        mass = values[index] / values[index].sum()
        x = float((mass.sum(0) * (torch.arange(130) + 0.5)).sum())
        y = float((mass.sum(1) * (torch.arange(90) + 0.5)).sum())
        assert abs(x - float(expected[0])) < 8
        assert abs(y - float(expected[1])) < 8


def test_a_turned_photo_gives_what_the_upright_one_gives() -> None:
    upright = Image.fromarray(photo(60, 88))
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    upright.transpose(Image.Transpose.ROTATE_90).save(buffer, "PNG", exif=exif)
    model = tiny_detector("Detr")
    [plain] = explain_queries(model, upright, 2, processor=detr_processor())
    [turned] = explain_queries(model, buffer.getvalue(), 2, processor=detr_processor())
    for first, second in zip(plain.objects, turned.objects, strict=True):
        assert first.box == pytest.approx(second.box, rel=1e-4)
    torch.testing.assert_close(plain.maps.resize_to_image(), turned.maps.resize_to_image())


def test_selections_that_do_not_exist_are_refused() -> None:
    model, image = tiny_detector("Detr"), photo(60, 88)
    assert explain_queries(model, image, "best", processor=detr_processor())[0].objects
    [chosen] = explain_queries(model, image, [5, 2], processor=detr_processor(), heads=[0])
    assert [each.query for each in chosen.objects] == [5, 2]
    options: dict[str, Any]
    for queries, options, match in (
        (8, {}, "number of queries must be 1 to 7, got 8"),
        ([7], {}, "indices below 7"),
        (1, {"layer": 2}, "layer must be below 2"),
        (1, {"heads": [3]}, "heads must be indices below 3"),
    ):
        with pytest.raises(ValueError, match=match):
            explain_queries(model, image, queries, processor=detr_processor(), **options)
    with pytest.raises(TypeError, match="needs its image processor"):
        explain_queries(model, image)


def test_a_directory_without_processor_or_with_another_model_is_refused(tmp_path: Path) -> None:
    tiny_detector("Detr").save_pretrained(tmp_path / "detr")
    with pytest.raises(ValueError, match="has no image processor"):
        load_detector(tmp_path / "detr")
    tiny_clip().save_pretrained(tmp_path / "clip")
    with pytest.raises(ValueError, match="must be a detector with queries.*CLIPModel"):
        load_detector(tmp_path / "clip")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name, size in (("a", (59, 83)), ("b", (47, 40))):
        Image.fromarray(photo(*size)).save(tmp_path / "in" / f"{name}.png")
    return tmp_path / "in"


def test_detect_draws_queries_of_each_photo(photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    tiny_rt_detr().save_pretrained(folder)
    transformers.RTDetrImageProcessor(size={"height": 96, "width": 96}).save_pretrained(folder)
    model = ["--model", f"hf:{folder}", "--query", "best:2"]
    words = ["detect", str(photos), *model, "--out", str(out)]
    assert main([*words, "--dry-run"]) == 0
    assert not out.exists()
    capsys.readouterr()
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert [row.split("\t")[0] for row in printed.splitlines()] == ["a", "b"]
    record = json.loads((out / "a.json").read_text())
    assert len(record["maps"]) == len(record["objects"]) == 2
    assert np.array(record["points"]).shape[2] == 3
    lines = (out / "detect.csv").read_text().splitlines()
    assert lines[0] == "image,class,score,left,top,right,bottom,query,seen_share,files"
    assert len(lines) == 5
    with Image.open(out / "b.queries.png") as figure:
        assert figure.width == 1200
    assert main(words) == 0  # both are finished
    assert capsys.readouterr().out == printed
    for code, extra, match in (
        (2, ["--threshold", "0.3"], "--threshold is for detectors of visattn"),
        (1, ["--layer", "7"], "layer must be below"),
    ):
        assert main([*words, *extra]) == code
        assert match in capsys.readouterr().err


def test_overlay_draws_texts_on_one_scale(photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    folder, out = tmp_path / "model", tmp_path / "out"
    for part in (tiny_clip(), clip_processor(), tiny_tokenizer()):
        part.save_pretrained(folder)
    words = ["overlay", str(photos), "--model", f"hf:{folder}", "--out", str(out)]
    texts = ["--text", "a red ball", "the sky"]
    assert main([*words, *texts, "--method", "legrad", "gradcam", "rollout"]) == 0
    captured = capsys.readouterr()
    rows = [line.split("\t") for line in captured.out.splitlines()]
    keys = ["legrad.text1", "legrad.text2", "gradcam.text1", "gradcam.text2", "rollout"]
    assert [row[1] for row in rows] == keys * 2
    assert rows[0][4] == rows[1][4] != rows[5][4]  # one scale for the texts of a photo
    record = json.loads((out / "a.legrad.text2.json").read_text())
    assert record["metadata"]["class"] == "the sky"
    assert abs(record["metadata"]["cosine"]) <= 1
    assert {"a.methods.png", "b.methods.png", "index.html"} <= {path.name for path in out.iterdir()}
    assert main([*words, *texts, "--method", "legrad", "--normalize", "global"]) == 0
    scaled = [line.split("\t")[4] for line in capsys.readouterr().out.splitlines()]
    assert len({*scaled}) == 1
    assert main([*words, "--text", "ball " * 20]) == 1
    assert "at most 11 tokens" in capsys.readouterr().err
    assert main([*words, *texts, "--target", "3"]) == 2


def test_detectors_of_given_texts_are_refused() -> None:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    config = transformers.Owlv2Config(
        text_config={**small, "vocab_size": 50, "max_position_embeddings": 8},
        vision_config={**small, "image_size": 32, "patch_size": 8}, projection_dim=16,
    )  # fmt: skip
    model = transformers.Owlv2ForObjectDetection(config).eval()
    processor = transformers.Owlv2ImageProcessor(size={"height": 32, "width": 32})
    with pytest.raises(ValueError, match=r"Owlv2ForObjectDetection .* also needs input_ids"):
        explain_queries(model, photo(90, 130), processor=processor)
