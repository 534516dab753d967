"""Samples for detection: boxes of pixels, transforms, crowds, and images without objects."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.data.augment.joint import JointTransforms
from visattn.data.regions import annotations
from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.regions.detection import AnnotatedObjects, SceneObjects, collate_detections
from visattn.data.regions.readers import read_coco_images
from visattn.data.regions.segmentation import CocoSegmentation
from visattn.data.scenes.dataset import Scenes
from visattn.functional.boxes import center_to_corners
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeSpec
from visattn.results.kinds import NO_OBJECT


def write_photos(folder: Path) -> list[AnnotatedImage]:
    """Write photos with a red square each, of which the second has none, as COCO has them."""
    pixels = np.full((40, 60, 3), 90, dtype=np.uint8)
    pixels[8:24, 12:30] = (255, 0, 0)
    for name in ("a.png", "b.png"):
        Image.fromarray(pixels).save(folder / name)
    square = {"image_id": 1, "category_id": 3, "bbox": [12, 8, 18, 16], "area": 250.5}
    square["segmentation"] = [[12, 8, 30, 8, 30, 24, 12, 24]]
    crowd = {"image_id": 1, "category_id": 5, "bbox": [40, 0, 20, 40], "iscrowd": 1}
    crowd["segmentation"] = {"size": [40, 60], "counts": [1600, 800]}
    images = [
        {"id": n, "file_name": f"{x}.png", "height": 40, "width": 60}
        for n, x in ((1, "a"), (2, "b"))
    ]
    categories = [{"id": 3, "name": "square"}, {"id": 5, "name": "fence"}]
    content = {"images": images, "annotations": [square, crowd], "categories": categories}
    (folder / "instances.json").write_text(json.dumps(content))
    return read_coco_images(folder / "instances.json", folder, keep_empty=True)


def test_boxes_of_scenes_bound_the_pixels_of_the_objects() -> None:
    dataset = SceneObjects(Scenes(3, size=48))
    for index in range(3):
        sample = dataset[index]
        assert [dataset.class_names[label] for label in sample.labels] == [
            each.shape for each in dataset.scenes.world(index).objects
        ]
        for mask, box in zip(sample.region.object_masks, sample.region.boxes.tolist(), strict=True):
            rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
            assert box == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert torch.equal(sample.areas, sample.region.object_masks.sum((1, 2)).float())


def test_boxes_are_relative_centers_and_sizes() -> None:
    sample = SceneObjects(Scenes(3, size=48))[1]
    batch = collate_detections([sample])
    torch.testing.assert_close(center_to_corners(batch.boxes[0]) * 48, sample.region.boxes)
    assert torch.equal(batch.labels[0], sample.labels)


def test_coco_keeps_crowds_areas_and_images_without_objects(tmp_path: Path) -> None:
    with_objects, without = write_photos(tmp_path)
    assert [(each.crowd, each.area) for each in with_objects.objects] == [
        (False, 250.5),
        (True, None),
    ]
    assert without.objects == ()
    dataset = AnnotatedObjects(
        [with_objects, without], ("fence", "square"), ResizeSpec((30, 30), "pad"), masks=True
    )
    sample, empty = dataset[0], dataset[1]
    assert sample.labels.tolist() == [1, 0]
    assert sample.areas.tolist() == [250.5, 800.0]
    assert (empty.region.object_masks.shape, empty.labels.dtype) == ((0, 30, 30), torch.int64)
    batch = collate_detections([sample, empty])
    assert batch.labels.tolist() == [[1], [NO_OBJECT]]  # the crowd is no target
    assert batch.objects.tolist() == [[0], [0]]
    red = sample.region.image[0] > 200
    left, top, right, bottom = (center_to_corners(batch.boxes[0, 0]) * 30).round().int().tolist()
    assert bool(red[top + 1 : bottom - 1, left + 1 : right - 1].all())
    assert int(red.sum()) == pytest.approx((right - left) * (bottom - top), abs=20)
    assert not collate_detections([empty]).labels.numel()


def test_boxes_follow_random_transforms_which_depend_on_the_index(tmp_path: Path) -> None:
    images = write_photos(tmp_path)
    zoom = {"RandomZoomOut": {"p": 1.0, "side_range": [1.0, 1.5]}}
    transforms = JointTransforms(["RandomHorizontalFlip", zoom], mask_fill=0)
    resize = ResizeSpec((80, 120), "pad")
    dataset = AnnotatedObjects(
        images, ("fence", "square"), resize, transforms=transforms, masks=True
    )
    flipped: set[bool] = set()
    for index in range(0, 16, 2):  # the first photo, in eight epochs
        sample = dataset[index]
        rows, columns = sample.region.object_masks[0].nonzero().unbind(1)
        red = sample.region.image[0].int() - sample.region.image[1] > 100
        assert float((red == sample.region.object_masks[0]).float().mean()) > 0.97
        expected = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        box = [float(x) for x in expected]
        assert sample.region.boxes[0].tolist() == pytest.approx(box, abs=1.0)
        flipped.add(bool(sample.region.boxes[0, 0] > sample.region.boxes[1, 0]))  # of the fence
        assert torch.equal(dataset[index].region.image, sample.region.image)
    assert flipped == {False, True}


def test_objects_outside_of_a_crop_are_no_targets(tmp_path: Path) -> None:
    dataset = AnnotatedObjects(
        write_photos(tmp_path), ("fence", "square"), ResizeSpec((40, 20), "crop", shorter=40)
    )
    batch = collate_detections([dataset[0]])
    assert batch.labels.tolist() == [[1]]
    assert float(center_to_corners(batch.boxes[0, 0])[0]) == 0  # cut at the left


def test_unknown_categories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="but fence are not"):
        AnnotatedObjects(write_photos(tmp_path), ("square",), ResizeSpec((30, 30)))


BOX = {"image_id": 1, "category_id": 3, "bbox": [12, 8, 18, 16]}  # center 21 of 60, 16 of 40


@pytest.mark.parametrize(
    "segmentation",
    ["absent", None, [], {}, [[12, 8, 30, 8, 12, 8]]],  # the last is a line: it has no pixel
    ids=str,
)
def test_boxes_without_masks_are_targets_with_and_without_transforms(
    segmentation: Any, tmp_path: Path
) -> None:
    write_photos(tmp_path)
    content = json.loads((tmp_path / "instances.json").read_text())
    entry = BOX if segmentation == "absent" else {**BOX, "segmentation": segmentation}
    content["annotations"] = [entry]
    (tmp_path / "instances.json").write_text(json.dumps(content))
    images = read_coco_images(tmp_path / "instances.json", tmp_path)
    for p, x in ((None, 21 / 60), (0.0, 21 / 60), (1.0, 39 / 60)):
        flip = None if p is None else JointTransforms([{"RandomHorizontalFlip": {"p": p}}])
        dataset = AnnotatedObjects(images, ["square"], ResizeSpec((40, 60)), transforms=flip)
        batch = collate_detections([dataset[0]])
        assert batch.labels.tolist() == [[0]], (segmentation, p)
        assert batch.boxes[0, 0].tolist() == pytest.approx([x, 16 / 40, 18 / 60, 16 / 40])


def test_masks_of_many_objects_need_the_memory_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    size, count = 1201, 40
    photo = LoadedImage(np.zeros((size, size, 3), np.uint8))
    monkeypatch.setattr(annotations, "read_image", lambda _: photo)
    objects = tuple(
        AnnotatedObject(
            "square", [[k, 0, size, 0, size, size, k, size]], (float(k), 0.0, size, size)
        )
        for k in range(count)
    )
    image = AnnotatedImage("a.png", Path("a.png"), (size, size), objects)
    dataset = AnnotatedObjects([image], ["square"], ResizeSpec((31, 37)), masks=True)
    maps = CocoSegmentation([image], ["square"], ResizeSpec((31, 37)))
    for load in (lambda: dataset[0].region.object_masks, lambda: maps[[0]].labels):
        tracemalloc.start()
        assert load().any()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < count * size * size / 2  # bytes; all masks at once have twice as many
