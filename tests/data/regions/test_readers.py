"""Images with masks of objects: COCO annotations and mask folders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.readers import (
    read_annotated_images,
    read_coco_images,
    read_images_with_masks,
)

SQUARE = [[1.0, 1.0, 4.0, 1.0, 4.0, 3.0, 1.0, 3.0]]


def written(folder: Path, **changes: Any) -> Path:
    """Write a COCO annotation file with two images with objects and one without."""
    (folder / "annotations").mkdir(parents=True)
    (folder / "some2031").mkdir()
    for name in ("b.png", "a.png", "c.png"):
        Image.new("RGB", (8, 6)).save(folder / "some2031" / name)
    content: dict[str, Any] = {
        "images": [
            {"id": 3 + index, "file_name": name, "height": 6, "width": 8}
            for index, name in enumerate(("b.png", "a.png", "c.png"))
        ],
        "categories": [{"id": 17, "name": "cat"}, {"id": 1, "name": "person"}],
        "annotations": [
            {"image_id": 3, "category_id": 17, "bbox": [1, 1, 3, 2], "segmentation": SQUARE},
            {
                "image_id": 3,
                "category_id": 17,
                "bbox": [5, 0, 1, 6],
                "segmentation": {"size": [6, 8], "counts": [30, 6, 12]},
                "iscrowd": 1,
            },
            {"image_id": 4, "category_id": 1, "bbox": [0, 0, 8, 6], "segmentation": SQUARE},
        ],
    } | changes
    path = folder / "annotations" / "instances_some2031.json"
    path.write_text(json.dumps(content))
    return path


def file_names(images: list[AnnotatedImage]) -> list[str]:
    return [image.path.name for image in images if isinstance(image.path, Path)]


def test_every_path_to_a_coco_set_loads_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    result = read_annotated_images(tmp_path)
    assert file_names(result) == ["a.png", "b.png"]
    assert read_annotated_images(path) == result
    assert read_annotated_images(path, images=tmp_path / "some2031") == result
    assert result[1].categories == ("cat",)


def test_masks_of_a_category_are_joined(tmp_path: Path) -> None:
    _, image = read_coco_images(written(tmp_path))
    mask, boxes = image.region_masks("cat")
    expected = np.zeros((6, 8), dtype=bool)
    expected[1:3, 1:4] = expected[:, 5] = True
    assert np.array_equal(mask, expected)
    assert np.array_equal(boxes, expected)
    assert np.array_equal(image.region_masks()[0], expected)
    with pytest.raises(ValueError, match=r"b\.png has no dog"):
        image.region_masks("dog")


def of_one(folder: Path, segmentation: Any, box: tuple[float, ...] = (1, 1, 3, 2)) -> Path:
    entry = {"image_id": 4, "category_id": 1, "bbox": box, "segmentation": segmentation}
    return written(folder, annotations=[entry])


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ([[1, 1, 4, 3]], "a polygon must be x, y of at least three corners"),
        (SQUARE[0], ".* has no len"),
        ({"size": [6, 7], "counts": [42]}, r"RLE of size \[6, 7\] does not match .* \[6, 8\]"),
        ({"size": [6, 8], "counts": [47]}, "RLE counts must sum to 6 x 8 pixels, got 47"),
        ([[9, 7, 12, 7, 12, 9]], "a polygon must be .* on an image of 8 x 6 pixels, got .9, 7"),
        ([[2, 3, 30, 2, 5, 2]], "a polygon must be .* on an image"),  # run lengths
        ([[6, 4, 8, 4, 8, 6]], "the segmentation lies outside of bbox: .6, 4, 8, 6"),
    ],
)
def test_a_wrong_segmentation_is_refused_when_the_file_is_read(
    segmentation: Any, message: str, tmp_path: Path
) -> None:
    file = of_one(tmp_path, segmentation)
    with pytest.raises(ValueError, match=rf"some2031\.json, annotations\[0\]: {message}"):
        read_coco_images(file)


def test_points_and_lines_beside_a_polygon_are_left_out(tmp_path: Path) -> None:
    file = of_one(tmp_path, [[7.0, 5.0], *SQUARE, [1, 1, 4, 3]])
    [image] = read_coco_images(file)
    assert image.objects[0].segmentation == SQUARE


def test_whole_numbers_may_be_floats_and_crowds_null(tmp_path: Path) -> None:
    size = {"id": 4.0, "file_name": "a.png", "height": 6.0, "width": 8}
    entry = {"id": 1.0, "image_id": 4, "category_id": 17.0, "bbox": [1, 1, 3, 2], "iscrowd": None}
    categories = [{"id": 17, "name": "cat"}]
    file = written(tmp_path, images=[size], annotations=[entry], categories=categories)
    [image] = read_coco_images(file)
    assert (image.size, image.objects[0].crowd) == ((6, 8), False)


def test_a_photo_of_another_size_is_named_with_its_exif_orientation(tmp_path: Path) -> None:
    for exif, annotated, message in (
        (6, (6, 8), r"photo\.jpg is 6 x 8 pixels .* say 8 x 6; .* after its EXIF orientation"),
        (1, (12, 16), r"photo\.jpg is 8 x 6 pixels \(width x height\), .* say 16 x 12;"),
    ):
        tags = Image.Exif()
        tags[0x112] = exif
        Image.new("RGB", (8, 6)).save(tmp_path / "photo.jpg", exif=tags)
        image = AnnotatedImage("photo.jpg", tmp_path / "photo.jpg", annotated, ())
        with pytest.raises(ValueError, match=message):
            image.read()


def test_missing_files_are_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "coco")
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        read_coco_images(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError, match="does not exist; give COCO instances as JSON"):
        read_annotated_images(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds neither annotations/instances_.* nor a"):
        read_annotated_images(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="no folder of images at"):
        read_coco_images(path, tmp_path / "none")
    (tmp_path / "coco" / "some2031" / "a.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"no image a\.png in"):
        read_coco_images(path)
    path.with_name("instances_more.json").write_text("[]")
    with pytest.raises(ValueError, match="has several files: give one of instances_more"):
        read_annotated_images(tmp_path / "coco")
    with pytest.raises(ValueError, match="must hold an object, got a list"):
        read_annotated_images(path.with_name("instances_more.json"))
    path.write_text("{")
    with pytest.raises(ValueError, match="is not valid JSON"):
        read_annotated_images(path)


def masked(folder: Path) -> Path:
    (folder / "photos" / "deep").mkdir(parents=True)
    (folder / "masks" / "deep").mkdir(parents=True)
    light = np.zeros((6, 8), dtype=np.uint8)
    light[2:4, 3:7] = 1  # as label files have it: nearly black
    for name in ("a", "deep/b"):
        Image.new("RGB", (8, 6)).save(folder / "photos" / f"{name}.jpg")
        Image.fromarray(light).save(folder / "masks" / f"{name}.png")
    return folder / "photos"


def test_mask_folders_beside_inside_or_elsewhere(tmp_path: Path) -> None:
    photos = masked(tmp_path)
    result = read_annotated_images(photos)
    assert file_names(result) == ["a.jpg", "b.jpg"]
    assert read_annotated_images(photos, masks=tmp_path / "masks") == result
    mask, boxes = result[1].region_masks()
    assert mask.sum() == 8
    assert np.array_equal(mask, boxes)
    (tmp_path / "masks").rename(photos / "masks")
    assert [item.path for item in read_annotated_images(photos)] == [item.path for item in result]


def test_mismatching_masks_are_reported(tmp_path: Path) -> None:
    photos = masked(tmp_path)
    Image.new("L", (6, 8), 255).save(tmp_path / "masks" / "a.png")
    with pytest.raises(ValueError, match=r"is \(8, 6\), the upright image \(6, 8\)"):
        read_images_with_masks(photos, tmp_path / "masks")[0].region_masks()
    (tmp_path / "masks" / "a.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.jpg has no mask with its name"):
        read_annotated_images(photos)
    with pytest.raises(FileNotFoundError, match="none does not exist"):
        read_images_with_masks(photos, tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="name the folder of the masks"):
        read_annotated_images(tmp_path / "masks" / "deep")


def test_image_outside_its_folder_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "elsewhere.png").write_bytes((tmp_path / "some2031" / "a.png").read_bytes())
    (tmp_path / "some2031" / "a.png").unlink()
    (tmp_path / "some2031" / "a.png").symlink_to(tmp_path / "elsewhere.png")
    with pytest.raises(ValueError, match=r"instances_some2031\.json: 'a\.png' is a link to"):
        read_coco_images(path)
