"""Files of boxes and masks: COCO, Pascal VOC, YOLO, folders of masks."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from segmentation_data import write_instances, write_mask_folder

from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.coco_instances import read_instance_file
from visattn.data.regions.detection import collate_detections, detection_input
from visattn.data.regions.segmentation import SegmentationInput, label_map
from visattn.data.regions.sources import CocoInstances, MaskFolders, VOCBoxes, YOLOBoxes
from visattn.images.resize import ResizeSpec

DOG = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 45, 80, 10]}


def coco(folder: Path, *annotations: dict[str, Any], **changes: Any) -> Path:
    document: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "a.png", "width": 100, "height": 90}],
        "annotations": list(annotations), "categories": [{"id": 1, "name": "dog"}], **changes,
    }  # fmt: skip
    (folder / "a.json").write_text(json.dumps(document))
    Image.new("RGB", (100, 90)).save(folder / "a.png")
    return folder / "a.json"


def objects(file: Path) -> list[Any]:
    return read_instance_file(file)[0][0].objects


def test_boxes_are_corners_clipped_at_the_image(tmp_path: Path) -> None:
    many = [{**DOG, "bbox": [k, 1, 2, 3]} for k in range(99)]
    file = coco(tmp_path, {**DOG, "bbox": [70, 80, 90, 15], "iscrowd": 1, "area": 7}, *many)
    first, second, *_ = objects(file)
    assert (first.box, first.crowd, first.area) == ((70, 80, 100, 90), True, 7)
    assert second.box == (0, 1, 2, 4)


def test_a_rotated_rectangle_has_its_bounding_box(tmp_path: Path) -> None:
    for angle, box in ((90, (45, 10, 55, 90)), (0, (10, 45, 90, 55)), (180, (10, 45, 90, 55))):
        file = coco(tmp_path, {**DOG, "segmentation": [], "attributes": {"rotation": angle}})
        if angle:
            with pytest.warns(UserWarning, match="1 rectangles are rotated"):
                assert objects(file)[0].box == pytest.approx(box)
        else:
            assert objects(file)[0].box == box


REFUSED = [
    ({"annotations": [{**DOG, "bbox": [0.1, 0.2, 0.3, 0.3]}] * 3}, "fractions of the image"),
    ({"annotations": [{**DOG, "bbox": [60, 40, 90, 80]}] * 3}, "3 of 3 boxes exceed"),
    ({"annotations": [{**DOG, "bbox": [1, 2, math.nan, 3]}]}, r"annotations\[0\]: no box inside"),
    ({"annotations": [{**DOG, "image_id": 2}]}, r"annotations\[0\]: no 2"),
    ({"annotations": [{**DOG, "bbox": None}]}, r"annotations\[0\]: .* not iterable"),
    ({"annotations": [{**DOG, "segmentation": [[0, 0, 9, 0, 9, 9]]}]}, "lies outside of bbox"),
    ({"categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "dog"}]}, "'dog' occurs twice"),
    ({"images": [{"id": 1, "file_name": "a.png"}]}, r"images\[0\]: no 'height'"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_contradictions_are_refused_with_the_entry(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"a\.json.*{message}"):
        read_instance_file(coco(tmp_path, **changes))


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
    with pytest.raises(ValueError, match="has no category 'bird'"):
        CocoInstances(one.annotations, categories=["bird"])


def test_voc_and_yolo_have_the_boxes_of_coco(tmp_path: Path) -> None:
    """One photo of 100 x 90 pixels, whose dog covers columns 10 to 89 and rows 45 to 54."""
    voc = tmp_path / "voc"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (voc / name).mkdir(parents=True)
    Image.new("RGB", (100, 90)).save(voc / "JPEGImages/a.png")
    (voc / "ImageSets/Main/train.txt").write_text("a\n")
    (voc / "ImageSets/Main/val.txt").write_text("")
    (voc / "Annotations/a.xml").write_text(
        "<annotation><filename>a.png</filename><size><width>100</width><height>90</height></size>"
        "<object><name>dog</name><bndbox><xmin>11</xmin><ymin>46</ymin><xmax>90</xmax>"
        "<ymax>55</ymax></bndbox></object></annotation>"
    )
    yolo = tmp_path / "yolo"
    for name in ("images", "labels"):
        (yolo / name / "train").mkdir(parents=True)
    Image.new("RGB", (100, 90)).save(yolo / "images/train/a.png")
    (yolo / "labels/train/a.txt").write_text(f"1 0.5 {50 / 90} 0.8 {10 / 90}\n")
    (yolo / "data.yaml").write_text("names: [cat, dog]\ntrain: images/train\nval: images/train\n")
    for source in (VOCBoxes(str(voc)), YOLOBoxes(str(yolo / "data.yaml"))):
        (image,) = source("train")
        (found,) = image.objects
        assert (image.size, found.category) == ((90, 100), "dog")
        assert found.box == pytest.approx((10, 45, 90, 55))
        assert image.read().size == (90, 100)
    (voc / "Annotations/a.xml").write_text('<!DOCTYPE a [<!ENTITY b "b">]><annotation/>')
    with pytest.raises(ValueError, match=r"a\.xml: it defines entities"):
        VOCBoxes(str(voc))("train")
    (yolo / "labels/train/a.txt").write_text("0 50 50 80 10\n")
    with pytest.raises(ValueError, match=r"a\.txt, line 1: numbers must be fractions"):
        YOLOBoxes(str(yolo / "data.yaml"))("train")


def test_masks_belong_to_photos_of_their_name(tmp_path: Path) -> None:
    write_mask_folder(tmp_path, 5)
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
        (np.full((31, 47), 7, np.uint8), r"has the numbers \[7\], which are none of the 2 classes"),
        (np.zeros((31, 45), np.uint8), r"is \(31, 45\), the upright image \(31, 47\)"),
    ):
        Image.fromarray(pixels).save(mask)
        with pytest.raises(ValueError, match=message):
            make((photo, mask), 0)
    mask.unlink()
    with pytest.raises(FileNotFoundError, match="has no mask with its name"):
        source("train")


def test_objects_become_label_maps_where_the_smallest_lies_above(tmp_path: Path) -> None:
    square = [[20, 20, 60, 20, 60, 60, 20, 60]]
    large = {**DOG, "bbox": [10, 10, 80, 70], "segmentation": [[10, 10, 90, 10, 90, 80, 10, 80]]}
    small = {**DOG, "id": 2, "category_id": 2, "bbox": [20, 20, 40, 40], "segmentation": square}
    bare = {**DOG, "id": 3, "bbox": [0, 0, 9, 9]}
    names = [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}]
    file = coco(tmp_path, small, large, bare, categories=names)
    source = CocoInstances(str(file), str(tmp_path), val_fraction=0.5)
    (image,) = source._images("train")
    numbers = {"background": 0, "cat": 1, "dog": 2}
    labels = SegmentationInput(numbers, ResizeSpec((90, 100))).load(image)[1]
    assert [int(labels[y, x]) for y, x in ((30, 30), (15, 15), (85, 95), (5, 5))] == [1, 2, 0, 255]
    whole = torch.ones(2, 3, dtype=torch.bool)
    assert label_map([(whole, 255, True), (whole & False, 1, False)], (2, 3)).unique() == 255


def test_inputs_of_detectors_keep_crowds_apart_and_masks_on_their_pixels(tmp_path: Path) -> None:
    crowd = {**DOG, "id": 2, "bbox": [60, 0, 30, 90], "iscrowd": 1}
    pixels = np.zeros((90, 100, 3), np.uint8)
    pixels[45:55, 10:90] = 250
    file = coco(tmp_path, DOG, crowd)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (image,) = CocoInstances(str(file), str(tmp_path), val_fraction=0.5)._images("train")
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
    wrong = AnnotatedImage(image.name, image.path, (9, 9), image.objects)
    with pytest.raises(ValueError, match="its annotations say 9 x 9"):
        detection_input(wrong, 0, **options)
