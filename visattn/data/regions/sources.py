"""Sources of photos with boxes or masks: COCO, Pascal VOC, YOLO, folders of masks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.regions.coco_instances import check_boxes, clip_box, read_instance_file
from visattn.data.regions.readers import pair_masks, read_coco_images
from visattn.data.source import Source, held_out
from visattn.geometry.affine import Box
from visattn.images.reader import read_size
from visattn.images.sources import find_images
from visattn.io.safe_paths import file_below
from visattn.io.safe_text import decode_utf8, parse_xml, read_bytes_bounded, reading
from visattn.results.kinds import Split

_NAMES: dict[str, str] = {"train": "train", "validation": "val", "test": "test"}


def _divided(source: Any, samples: Sequence[Any], split: Split, what: str) -> list[Any]:
    """Split samples at random and return the training or the validation part."""
    source.notes = (
        f"{what} has no {{split}}: {source.val_fraction:.0%} of the photos are for validation "
        "(val_fraction)",
    )
    labels = torch.zeros(len(samples), dtype=torch.long)
    chosen = held_out(labels, source.val_fraction, source.split_seed) ^ (split == "train")
    return [sample for sample, keep in zip(samples, chosen.tolist(), strict=True) if keep]


@dataclass
class CocoInstances(Source):
    """Photos with objects in COCO instances files: boxes, masks or both.

    Photos without objects are kept. Without a test file, the validation photos are the test photos.

    Args:
        annotations: Instances file; `{split}` in it is replaced by `train`, `val` or `test`, as in
            `annotations/instances_{split}2017.json`. Without it, the photos are split at random.
        images: Folder of the photos, which may contain `{split}`; by default it is named after the
            instances file: `train2017` for `annotations/instances_train2017.json`.
        categories: Categories to use as classes; by default all in the training file.
        val_fraction: Fraction of the photos for validation without `{split}`.
        split_seed: Seed of the random split.
    """

    annotations: str
    images: str | None = None
    categories: list[str] | None = None
    val_fraction: float = 0.1
    split_seed: int = 0

    def __post_init__(self) -> None:
        file = Path(self.annotations.replace("{split}", "train"))
        known = read_instance_file(file)[1]
        if unknown := sorted(set(self.categories or ()) - set(known)):
            raise ValueError(f"{file} has no category {unknown[0]!r}; choose from {known}")
        self.class_names = tuple(self.categories or known)
        self._read: dict[str, list[AnnotatedImage]] = {}

    def __call__(self, split: Split) -> list[AnnotatedImage]:
        """Return the photos of a split with their objects."""
        if "{split}" not in self.annotations:
            return _divided(self, self._images("train"), split, self.annotations)
        name = _NAMES.get(split, "test")
        has_test = Path(self.annotations.replace("{split}", "test")).is_file()
        return self._images("val" if name == "test" and not has_test else name)

    def _images(self, name: str) -> list[AnnotatedImage]:
        if name not in self._read:  # validation and test may share a file
            folder = self.images and self.images.replace("{split}", name)
            file = self.annotations.replace("{split}", name)
            self._read[name] = read_coco_images(file, folder, keep_empty=True)
        return self._read[name]


@dataclass
class VOCBoxes(Source):
    """Photos with boxes in Pascal VOC format.

    Args:
        root: Folder with `JPEGImages`, `Annotations/NAME.xml` and the lists
            `ImageSets/Main/train.txt` and `val.txt`, and optionally `test.txt`.

    Source:
        Everingham et al. 2010, "The PASCAL visual object classes (VOC) challenge".
    """

    root: str

    def __call__(self, split: Split) -> list[AnnotatedImage]:
        """Return the photos of a split with their objects."""
        lists = Path(self.root, "ImageSets", "Main")
        listed = lists / f"{_NAMES.get(split, 'test')}.txt"
        listed = listed if listed.is_file() else lists / "val.txt"
        images: list[AnnotatedImage] = []
        boxes: list[tuple[Box, tuple[int, int]]] = []
        for line in decode_utf8(read_bytes_bounded(listed)).rstrip().splitlines():
            file = file_below(Path(self.root, "Annotations"), f"{line.split()[0]}.xml")
            with reading(file):
                tree = parse_xml(read_bytes_bounded(file))
                size = (int(tree.findtext("size/height", "")), int(tree.findtext("size/width", "")))
                objects: list[AnnotatedObject] = []
                for entry in tree.iterfind("object"):
                    sides = ("xmin", "ymin", "xmax", "ymax")
                    numbers = (float(entry.findtext(f"bndbox/{side}", "")) for side in sides)
                    left, top, right, bottom = numbers
                    box = (left - 1, top - 1, right, bottom)  # pixels are counted from 1
                    boxes.append((box, size))
                    name = entry.findtext("name", "")
                    objects.append(AnnotatedObject(name, None, clip_box(box, size)))
                name = tree.findtext("filename", "")
                photo = file_below(Path(self.root, "JPEGImages"), name)
            images.append(AnnotatedImage(name, str(photo), size, tuple(objects)))
        with reading(listed):
            check_boxes(boxes)
        return images


@dataclass
class YOLOBoxes(Source):
    """Photos with boxes in Ultralytics YOLO format.

    Args:
        file: YAML file with `names`, `train`, `val` and optionally `test` and `path`. Next to the
            folder `images`, a folder `labels` has a text file per photo with lines CLASS CENTER_X
            CENTER_Y WIDTH HEIGHT, as fractions of the photo.

    Source:
        https://docs.ultralytics.com/datasets/detect
    """

    file: str

    def __post_init__(self) -> None:
        with reading(self.file):
            self._settings = yaml.safe_load(decode_utf8(read_bytes_bounded(Path(self.file))))
            names = self._settings["names"]
            self.class_names = tuple(names.values() if isinstance(names, dict) else names)

    def __call__(self, split: Split) -> list[AnnotatedImage]:
        """Return the photos of a split with their objects."""
        key = _NAMES.get(split, "test")
        folder = Path(self.file).parent / self._settings.get("path", "")
        photos = find_images(folder / self._settings[key if key in self._settings else "val"])
        return [self._annotated(photo) for photo in photos]

    def _annotated(self, photo: Path) -> AnnotatedImage:
        height, width = size = read_size(photo)
        before, _, after = str(photo).rpartition("/images/")
        labels = Path(before, "labels", after).with_suffix(".txt")
        objects: list[AnnotatedObject] = []
        text = decode_utf8(read_bytes_bounded(labels)) if labels.exists() else ""  # no objects
        for number, line in enumerate(text.rstrip().splitlines(), 1):
            with reading(labels, f"line {number}"):
                kind, *numbers = line.split()
                x, y, w, h = map(float, numbers)
                box = (
                    (x - w / 2) * width,
                    (y - h / 2) * height,
                    (x + w / 2) * width,
                    (y + h / 2) * height,
                )
                if max(x, y, w, h) > 1 + 1e-6:
                    raise ValueError("boxes must be fractions of the photo, at most 1")
                category = self.class_names[int(kind)]
                objects.append(AnnotatedObject(category, None, clip_box(box, size)))
        return AnnotatedImage(after, str(photo), size, tuple(objects))


@dataclass
class MaskFolders(Source):
    """Photos and label maps in two folders, paired by file name.

    Args:
        images: Folder of the photos; `{split}` in it is replaced by `train`, `val` or `test`.
            Without it, the photos are split at random.
        masks: Folder of the masks, gray or palette PNG.
        val_fraction: Fraction of the photos for validation without `{split}`.
        split_seed: Seed of the random split.
    """

    images: str
    masks: str
    val_fraction: float = 0.1
    split_seed: int = 0

    def __call__(self, split: Split) -> list[tuple[Path, Path]]:
        """Return the photos of a split with their masks."""
        name = _NAMES.get(split, "test")
        if name == "test" and not Path(self.images.replace("{split}", "test")).is_dir():
            name = "val"
        images, masks = (path.replace("{split}", name) for path in (self.images, self.masks))
        pairs = pair_masks(images, masks)
        return pairs if "{split}" in self.images else _divided(self, pairs, split, self.images)
