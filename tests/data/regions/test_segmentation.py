"""Segmentation data sets: scenes, folders of masks, COCO instances."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from segmentation_data import write_instances, write_mask_folder

from visattn.data.augment.joint import JointTransforms
from visattn.data.regions.readers import pair_masks, read_coco_images
from visattn.data.regions.segmentation import (
    CocoSegmentation,
    MaskFolder,
    SceneSegmentation,
    label_map,
)
from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.world import SHAPES
from visattn.images.reader import ImageError, read_label_image
from visattn.images.resize import ResizeSpec

OWN = ResizeSpec((31, 47))


def test_scene_labels_are_the_shapes_of_their_objects() -> None:
    scenes = Scenes(5, size=61)
    dataset = SceneSegmentation(scenes)
    images, labels = dataset[[3, 1]]
    for row, index in enumerate((3, 1)):
        assert torch.equal(images[row], scenes.image(index))
        expected = torch.zeros(61, 61, dtype=torch.uint8)
        for mask, item in zip(scenes.masks(index), scenes.world(index).objects, strict=True):
            expected[mask] = 1 + SHAPES.index(item.shape)
        assert torch.equal(labels[row], expected)


def test_transforms_move_scene_and_labels_together_and_differ_in_each_epoch() -> None:
    scenes = Scenes(7, size=61)
    flipped = SceneSegmentation(scenes, JointTransforms([{"RandomHorizontalFlip": {"p": 1.0}}]))
    plain = SceneSegmentation(scenes)
    for name in ("images", "labels"):
        assert torch.equal(getattr(flipped[[2]], name).flip(-1), getattr(plain[[2]], name))
    random = SceneSegmentation(scenes, JointTransforms([{"RandomAffine": {"degrees": 45}}]))
    epochs = [random[[2 + 7 * epoch]].labels for epoch in (0, 0, 1)]
    assert torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], epochs[2])


def test_mask_folder_maps_numbers_to_classes(tmp_path: Path) -> None:
    write_mask_folder(tmp_path, 2)
    files = pair_masks(tmp_path / "images", tmp_path / "masks")
    assert [file.name for file, _ in files] == ["0.png", "1.png"]
    trimaps = MaskFolder(files, 2, OWN, class_map={1: 1, 2: 0, 3: 255})
    images, labels = trimaps[[1]]
    numbers = images[0, 0] // 80
    for number, label in ((1, 1), (2, 0), (3, 255)):
        assert (labels[0][numbers == number] == label).all()
    direct = MaskFolder(files, 4, OWN)[[1]].labels[0]
    assert torch.equal(direct, numbers)


def test_padding_of_a_resized_mask_is_ignored(tmp_path: Path) -> None:
    write_mask_folder(tmp_path, 1)
    files = pair_masks(tmp_path / "images", tmp_path / "masks")
    images, labels = MaskFolder(files, 4, ResizeSpec((47, 47), mode="pad"))[[0]]
    assert (labels[0, :8] == 255).all()
    assert (labels[0, 39:] == 255).all()
    assert torch.equal(labels[0, 8:39], images[0, 0, 8:39] // 80)


def test_palette_masks_have_the_indices_of_their_palette(tmp_path: Path) -> None:
    numbers = np.array([[0, 15, 255], [1, 2, 3]], np.uint8)
    image = Image.fromarray(numbers)
    image.putpalette([255 - value for value in range(256) for _ in range(3)])
    image.save(tmp_path / "palette.png")
    assert np.array_equal(read_label_image(tmp_path / "palette.png"), numbers)
    Image.fromarray(numbers.astype(np.uint16)).save(tmp_path / "wide.png")
    assert np.array_equal(read_label_image(tmp_path / "wide.png"), numbers)


def test_masks_that_are_no_class_numbers_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (4, 3)).save(tmp_path / "color.png")
    with pytest.raises(
        ImageError, match=r"color.png: a mask must have one channel of class numbers"
    ):
        read_label_image(tmp_path / "color.png")
    Image.fromarray(np.full((2, 2), 256, np.uint16)).save(tmp_path / "large.png")
    with pytest.raises(ImageError, match=r"from 0 to 255, got I;16 up to 256"):
        read_label_image(tmp_path / "large.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG")
    with pytest.raises(ImageError, match=r"broken.png"):
        read_label_image(tmp_path / "broken.png")


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    write_mask_folder(tmp_path, 2)
    files = pair_masks(tmp_path / "images", tmp_path / "masks")
    with pytest.raises(ValueError, match=r"0.png has the numbers \[2, 3\], which are no classes"):
        MaskFolder(files, 2, OWN)[[0]]
    with pytest.raises(ValueError, match="must map 0 to 255 to classes below 2, or 255; got 3: 2"):
        MaskFolder(files, 2, OWN, class_map={1: 1, 3: 2})
    Image.new("L", (9, 9)).save(files[0][1])
    with pytest.raises(ValueError, match=r"is \(9, 9\), the upright image \(31, 47\)"):
        MaskFolder(files, 4, OWN)[[0]]
    files[0][1].unlink()
    with pytest.raises(FileNotFoundError, match="0.png has no mask with its name"):
        pair_masks(tmp_path / "images", tmp_path / "masks")
    with pytest.raises(FileNotFoundError, match="no folder of masks at"):
        pair_masks(tmp_path / "images", tmp_path / "nowhere")


def test_coco_labels_are_the_categories_of_their_objects(tmp_path: Path) -> None:
    file = write_instances(tmp_path, "train2017", count=2)
    images = read_coco_images(file)
    batch = CocoSegmentation(images, ["dog", "cat"], ResizeSpec((40, 52)))[[1]]
    level = batch.images[0, 0]
    assert torch.equal(batch.labels[0] == 0, level == 60)
    objects = {1: (30, 7, 42, 27), 2: (4, 7, 16, 27)}
    for number, (left, top, right, bottom) in objects.items():
        inside = batch.labels[0] == number
        assert inside[top:bottom, left:right].all()
        assert inside.sum() == (right - left) * (bottom - top)
    assert CocoSegmentation(images, ["dog"], ResizeSpec((40, 52)))[
        [1]
    ].labels.unique().tolist() == [0, 1]


def test_crowds_are_ignored_below_other_objects(tmp_path: Path) -> None:
    file = write_instances(tmp_path, "train2017", count=1)
    content = json.loads(file.read_text())
    crowd = dict(content["annotations"][0], id=99, iscrowd=1, bbox=[0, 0, 20, 40])
    crowd["segmentation"] = {"counts": [0, 20 * 40, 32 * 40], "size": [40, 52]}
    content["annotations"].append(crowd)
    file.write_text(json.dumps(content))
    labels = CocoSegmentation(read_coco_images(file), ["cat", "dog"], ResizeSpec((40, 52)))[
        [0]
    ].labels[0]
    assert labels[0, 0] == 255
    assert labels[10, 8] == 1
    assert labels[10, 35] == 2
    crowd["iscrowd"] = 7
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="iscrowd must be 0 or 1, got 7"):
        read_coco_images(file)


def test_smaller_objects_cover_larger_ones() -> None:
    masks = torch.zeros(2, 3, 3, dtype=torch.bool)
    masks[0, 1, 1], masks[1] = True, True
    for order in ([0, 1], [1, 0]):
        labels = label_map(((masks[row], (4, 9)[row], False) for row in order), (3, 3))
        assert labels[1, 1] == 4
        assert (labels == 9).sum() == 8
