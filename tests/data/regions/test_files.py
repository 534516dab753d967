"""Files of boxes and masks: COCO, Pascal VOC, YOLO, folders of masks; classes of ImageNet."""

import json
import math
import os
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from segmentation_data import write_instances, write_mask_folder
from timm.data.imagenet_info import ImageNetInfo

from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.detection import collate_detections, detection_input
from visattn.data.regions.readers import (
    IMAGENET_CATEGORIES,
    matching_classes,
    read_annotated_images,
    read_coco_images,
    read_images_with_masks,
)
from visattn.data.regions.segmentation import SegmentationInput, label_map
from visattn.data.regions.sources import CocoInstances, MaskFolders, VOCBoxes, YOLOBoxes
from visattn.images.resize import ResizeSpec

SQUARE = [[20, 20, 60, 20, 60, 60, 20, 60]]
DOG = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 45, 80, 10]}
BLOCK = {**DOG, "bbox": [20, 20, 40, 40], "segmentation": SQUARE}


def coco(folder: Path, *annotations: dict[str, Any], **changes: Any) -> Path:
    """Write a COCO file about photos of 100 x 90 pixels, of which the second has no object."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    (folder / "some").mkdir(exist_ok=True)
    images = [{"id": n, "file_name": f"{name}.png", "width": 100, "height": 90}
              for n, name in enumerate("ab", 1)]  # fmt: skip
    document = {"images": images, "annotations": list(annotations),
                "categories": [{"id": 1, "name": "dog"}], **changes}  # fmt: skip
    for name in "ab":
        Image.new("RGB", (100, 90)).save(folder / "some" / f"{name}.png")
    file = folder / "annotations/instances_some.json"
    file.write_text(json.dumps(document))
    return file


def voc(folder: Path, *, entities: str = "") -> VOCBoxes:
    """Write the dog in the format of Pascal VOC."""
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    Image.new("RGB", (100, 90)).save(folder / "JPEGImages/a.png")
    (folder / "ImageSets/Main/train.txt").write_text("a\n\n")
    (folder / "Annotations/a.xml").write_text(
        f"{entities}<annotation><filename>a.png</filename><size><width>100</width>"
        "<height>90</height></size><object><name>dog</name><bndbox><xmin>11</xmin>"
        "<ymin>46</ymin><xmax>90</xmax><ymax>55</ymax></bndbox></object></annotation>"
    )
    return VOCBoxes(str(folder))


def yolo(folder: Path, line: str = f"1 0.5 {50 / 90} 0.8 {10 / 90}\n\n") -> YOLOBoxes:
    """Write the dog in the format of YOLO."""
    for name in ("images", "labels"):
        (folder / name / "train").mkdir(parents=True)
    Image.new("RGB", (100, 90)).save(folder / "images/train/a.png")
    (folder / "labels/train/a.txt").write_text(line)
    (folder / "data.yaml").write_text("names: [cat, dog]\ntrain: images/train\nval: images/train\n")
    return YOLOBoxes(str(folder / "data.yaml"))


def rotated(angle: int) -> dict[str, Any]:
    return {**DOG, "attributes": {"rotation": angle}, "segmentation": []}


def instances(*annotations: dict[str, Any], **changes: Any) -> Callable[[Path], Any]:
    return lambda folder: read_coco_images(coco(folder, *annotations, **changes))


BLOCK_ON = [[7.0, 5.0], *SQUARE, [1, 1, 4, 3]]  # with a point and a line
FLOATS = {"images": [{"id": 1.0, "file_name": "a.png", "height": 90.0, "width": 100}]}
MANY = [{**DOG, "bbox": [k, 1, 2, 3]} for k in range(99)]
READERS: dict[str, tuple[Callable[[Path], Any], tuple[float, ...], Any]] = {
    "COCO": (instances(DOG), (10, 45, 90, 55), None),
    "COCO, of a folder": (lambda folder: read_annotated_images(coco(folder, DOG).parents[1]),
                          (10, 45, 90, 55), None),
    "COCO, turned": (instances(rotated(90)), (45, 10, 55, 90), None),
    "COCO, turned by half": (instances(rotated(180)), (10, 45, 90, 55), None),
    "COCO, not turned": (instances(rotated(0)), (10, 45, 90, 55), None),
    "COCO, clipped": (instances({**DOG, "bbox": [70, 80, 90, 15]}, *MANY), (70, 80, 100, 90), None),
    "COCO, floats": (instances({**DOG, "iscrowd": None, "category_id": 1.0}, **FLOATS),
                     (10, 45, 90, 55), None),
    "COCO, points": (instances({**BLOCK, "segmentation": BLOCK_ON}), (20, 20, 60, 60), SQUARE),
    "VOC": (lambda folder: voc(folder)("train"), (10, 45, 90, 55), None),
    "YOLO": (lambda folder: yolo(folder)("train"), (10, 45, 90, 55), None),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*rectangles are rotated")
@pytest.mark.parametrize("name", READERS)
def test_a_dog_has_its_box_in_every_format(name: str, tmp_path: Path) -> None:
    read, box, outline = READERS[name]
    (image,) = read(tmp_path)
    found = image.objects[0]
    assert (image.size, found.category, found.crowd) == ((90, 100), "dog", False)
    assert found.box == pytest.approx(box)
    assert found.segmentation == outline
    assert image.read().size == (90, 100)


def test_pipes_beside_photos_are_refused_unread(tmp_path: Path) -> None:
    source = yolo(tmp_path)
    [labels] = tmp_path.rglob("labels/**/*.txt")
    labels.unlink()
    os.mkfifo(labels)
    with pytest.raises(ValueError, match="not a regular file"):
        source("train")
    (tmp_path / "data.yaml").unlink()
    os.mkfifo(tmp_path / "data.yaml")
    with pytest.raises(ValueError, match="not a regular file"):
        YOLOBoxes(str(tmp_path / "data.yaml"))


def outside(folder: Path) -> Any:
    file = coco(folder, DOG)
    (folder / "some/a.png").rename(folder / "a.png")
    (folder / "some/a.png").symlink_to(folder / "a.png")
    return read_coco_images(file)


def without(*names: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        file = coco(folder, DOG)
        for name in names:
            (folder / name).unlink()
        return read_coco_images(file)

    return read


def several(folder: Path) -> Any:
    coco(folder, DOG).with_name("instances_more.json").write_text("[]")
    return read_annotated_images(folder)


def listed(folder: Path) -> Any:
    coco(folder, DOG).write_text("[]")
    return read_annotated_images(folder)


def outlined(segmentation: Any) -> Callable[[Path], Any]:
    return instances({**BLOCK, "segmentation": segmentation})


ONE = r"instances_some\.json, annotations\[0\]: "
REFUSED: list[tuple[Callable[[Path], Any], str]] = [
    (instances(*[{**DOG, "bbox": [0.1, 0.2, 0.3, 0.3]}] * 3), r"\.json: boxes must be in pixels"),
    (instances(*[{**DOG, "bbox": [60, 40, 90, 80]}] * 3), "3 of 3 boxes exceed"),
    (instances({**DOG, "bbox": [1, 2, math.nan, 3]}), f"{ONE}a box .* must have left"),
    (instances({**DOG, "image_id": 3}), f"{ONE}no 3"),
    (instances({**DOG, "bbox": None}), f"{ONE}.*not iterable"),
    (instances(DOG, categories=[{"id": 1, "name": "dog"}, {"id": 2, "name": "dog"}]),
     "'dog' occurs twice"),
    (instances(DOG, images=[{"id": 1, "file_name": "a.png"}]), r"images\[0\]: no 'height'"),
    (instances(), "has no annotated objects"),
    (outlined([[0, 0, 9, 0, 9, 9]]), f"{ONE}.* must overlap its bbox .*got .0, 0, 9, 9"),
    (outlined([[1, 1, 4, 3]]), f"{ONE}a polygon must be x, y of at least three corners"),
    (outlined(SQUARE[0]), f"{ONE}.* has no len"),
    (outlined({"size": [90, 99], "counts": [8910]}), rf"{ONE}RLE of size .* not match .*90, 100\]"),
    (outlined({"size": [90, 100], "counts": [-1, 9001]}), "RLE counts must sum to"),
    (outlined({"size": [90, 100], "counts": "P"}), "it is truncated"),
    (outlined({"size": [90, 100], "counts": "o" * 10**6}), "must be an RLE string"),
    (outlined([[1, 2, 3, math.nan, 5, 6]]), "at least three corners in"),
    (outlined([[1, 2, 3, 1e308, 5, 6]]), "at least three corners in"),
    (outlined({"size": [90, 100], "counts": [47]}), f"{ONE}RLE counts must sum to 90 x 100 .* 47"),
    (outlined([[20, 30, 300, 20, 50, 20]]), f"{ONE}a polygon must be .* in an image"),  # a run
    (outside, r"instances_some\.json: 'a\.png' is a link to"),
    (without("some/a.png"), r"no image a\.png in"),
    (without("annotations/instances_some.json"), r"instances_some\.json"),
    (lambda folder: read_coco_images(coco(folder, DOG), folder / "none"), "no folder of images at"),
    (lambda folder: read_annotated_images(folder / "none"), "does not exist; pass a COCO"),
    (lambda folder: read_annotated_images(folder), "holds neither annotations/instances_.* nor a"),
    (several, "has several files; pass one of instances_more"),
    (listed, "instances_some.json: list indices must be"),
    (lambda folder: voc(folder, entities='<!DOCTYPE a [<!ENTITY b "b">]>')("train"),
     r"a\.xml: XML must not define entities"),
    (lambda folder: yolo(folder, "0 50 50 80 10\n")("train"),
     r"a\.txt, line 1: boxes must be fractions"),
    (lambda folder: CocoInstances(str(coco(folder, DOG)), categories=["bird"]),
     "has no category 'bird'"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_contradictions_are_refused_with_file_and_entry(number: int, tmp_path: Path) -> None:
    read, message = REFUSED[number]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(tmp_path)


def test_masks_of_a_category_are_joined(tmp_path: Path) -> None:
    run = {**DOG, "iscrowd": 1, "area": 7, "bbox": [80, 0, 1, 90],
           "segmentation": {"size": [90, 100], "counts": [7200, 90, 1710]}}  # fmt: skip
    with pytest.warns(UserWarning, match="1 rectangles are rotated"):
        (image,) = read_coco_images(coco(tmp_path, BLOCK, run, rotated(0) | rotated(90)))
    mask, boxes = AnnotatedImage(
        image.name, image.path, image.size, image.objects[:2]
    ).region_masks()
    expected = np.zeros((90, 100), dtype=bool)
    expected[20:60, 20:60] = expected[:, 80] = True
    assert np.array_equal(mask, expected)
    assert np.array_equal(boxes, expected)
    assert (image.objects[1].crowd, image.areas()[:2]) == (True, [1600, 7])
    with pytest.raises(ValueError, match=r"a\.png has no cat"):
        image.region_masks("cat")


def test_coco_splits_share_their_classes_or_are_divided(tmp_path: Path) -> None:
    for split, count in (("train2017", 5), ("val2017", 2)):
        file = write_instances(tmp_path, split, count)
    source = CocoInstances(str(file).replace("val2017", "{split}2017"))
    assert source.class_names == ("cat", "dog")
    assert [len(source(split)) for split in ("train", "validation", "test")] == [5, 2, 2]
    one = CocoInstances(str(file).replace("val2017", "train2017"), val_fraction=0.4)
    parts = [{image.name for image in one(split)} for split in ("train", "validation")]
    assert [len(part) for part in parts] == [3, 2]
    assert not parts[0] & parts[1]
    assert "40% of the photos are for validation" in one.notes[0]


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


def test_masks_belong_to_photos_of_their_name(tmp_path: Path) -> None:
    write_mask_folder(tmp_path)
    source = MaskFolders(str(tmp_path / "images"), str(tmp_path / "masks"), val_fraction=0.4)
    parts = [source(split) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [3, 2, 2]
    assert all(photo.stem == mask.stem for part in parts for photo, mask in part)
    make = SegmentationInput(
        {"no": 0, "pet": 1}, ResizeSpec((31, 47)), class_map={1: 1, 2: 0, 3: 255}
    )
    _, labels = make(parts[0][0], 0)
    assert labels.unique().tolist() == [0, 1, 255]
    photo, mask = parts[0][0]
    for pixels, message in (
        (np.full((31, 47), 7, np.uint8), r"2 classes, but .* has \[7\]: correct class_names"),
        (np.zeros((31, 45), np.uint8), r"must be \(31, 47\), like its photo, got \(31, 45\)"),
    ):
        Image.fromarray(pixels).save(mask)
        with pytest.raises(ValueError, match=message):
            make((photo, mask), 0)
    mask.unlink()
    with pytest.raises(FileNotFoundError, match="needs a mask of its name"):
        source("train")


def test_mask_folders_beside_inside_or_elsewhere(tmp_path: Path) -> None:
    photos, masks = tmp_path / "photos", tmp_path / "masks"
    light = np.zeros((6, 8), dtype=np.uint8)
    light[2:4, 3:7] = 1  # as label files have it: nearly black
    for name in ("a", "deep/b"):
        for folder in (photos, masks):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(photos / f"{name}.jpg")
        Image.fromarray(light).save(masks / f"{name}.png")
    result = read_annotated_images(photos)
    assert [image.name for image in result] == ["a.jpg", "deep/b.jpg"]
    assert read_annotated_images(photos, masks=masks) == result
    mask, boxes = result[1].region_masks()
    assert np.array_equal(mask, light.astype(bool))
    assert np.array_equal(mask, boxes)
    masks.rename(photos / "masks")
    assert [item.path for item in read_annotated_images(photos)] == [item.path for item in result]
    Image.new("L", (6, 8), 255).save(photos / "masks" / "a.png")
    with pytest.raises(ValueError, match=r"must be \(6, 8\), like its photo, got \(8, 6\)"):
        read_images_with_masks(photos, photos / "masks")[0].region_masks()


def test_objects_become_label_maps_where_the_smallest_lies_above(tmp_path: Path) -> None:
    large = {**DOG, "bbox": [10, 10, 80, 70], "segmentation": [[10, 10, 90, 10, 90, 80, 10, 80]]}
    small, bare = {**BLOCK, "category_id": 2}, {**DOG, "bbox": [0, 0, 9, 9]}
    names = [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}]
    (image,) = read_coco_images(coco(tmp_path, small, large, bare, categories=names))
    numbers = {"background": 0, "cat": 1, "dog": 2}
    labels = SegmentationInput(numbers, ResizeSpec((90, 100))).load(image)[1]
    assert [int(labels[y, x]) for y, x in ((30, 30), (15, 15), (85, 95), (5, 5))] == [1, 2, 0, 255]
    whole = torch.ones(2, 3, dtype=torch.bool)
    assert label_map([(whole, 255, True), (whole & False, 1, False)], (2, 3)).unique() == 255


def test_inputs_of_detectors_keep_crowds_apart_and_masks_on_their_pixels(tmp_path: Path) -> None:
    crowd = {**DOG, "bbox": [60, 0, 30, 90], "iscrowd": 1}
    pixels = np.zeros((90, 100, 3), np.uint8)
    pixels[45:55, 10:90] = 250
    (image,) = read_coco_images(coco(tmp_path, DOG, crowd))
    Image.fromarray(pixels).save(str(image.path))
    options: Any = {"numbers": {"dog": 0}, "resize": ResizeSpec((36, 60), "pad")}
    sample = detection_input(image, 0, masks=True, **options)
    assert sample.masks is not None
    assert bool((sample.masks[0] == (sample.image[0] > 125)).all())
    batch = collate_detections([sample, detection_input((pixels, []), 0, **options)])
    assert batch.labels.tolist() == [[0], [-1]]
    assert batch.boxes[0, 0].tolist() == pytest.approx(
        [0.5, 50 / 90, 0.8 * 2 / 3, 10 / 90], abs=0.02
    )
    assert sample.true_boxes[0].tolist() == [10, 45, 90, 55]


def test_classes_of_imagenet_are_those_that_were_chosen() -> None:
    """The digest is that of a list that was read word for word: "zebra: zebra", and so on."""
    info = ImageNetInfo()
    names = [info.index_to_description(number).split(",")[0] for number in range(1000)]
    listed = {
        category: ", ".join(re.sub("gr[ae]y", "gray", names[number]) for number in numbers)
        for category, numbers in IMAGENET_CATEGORIES.items()
    }
    assert listed["bicycle"] == "bicycle-built-for-two, mountain bike"
    assert sha256(json.dumps(listed).encode()).hexdigest()[:16] == "dbac7b6fcd661bf7"


def test_other_models_are_matched_by_class_name() -> None:
    classes = ("Dog, hound", "cat", "dog")
    assert matching_classes("dog", classes, 3) == (0, 2)
    assert matching_classes("zebra", classes, 3) == ()
    assert matching_classes("no such thing", (), 1000) == ()
