"""Images whose objects are known, each with its outline: COCO's, or a folder with masks."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from visattn.data.images.reader import ImageError, find_images, read_image, read_size
from visattn.data.regions.coco_instances import CocoImage, read_instance_file
from visattn.data.regions.masks import boxes_mask, segmentation_mask
from visattn.geometry.affine import Box
from visattn.io.safe_paths import SafeDirectory


@dataclass(frozen=True)
class LocatedObject:
    """One object on an image.

    Args:
        category: What it is; "" if nobody said.
        outline: COCO's polygons or run lengths, or the file of a mask, which is inside where it is
            brighter than half of its brightest pixel.
        box: Left, top, right, bottom in pixels; None for the tightest around the mask.
    """

    category: str
    outline: Any
    box: Box | None = None


@dataclass(frozen=True)
class LocatedImage:
    """An image and its objects.

    Args:
        name: Where the file lies in the folder of images, with `/`: what tells it from others.
        path: Of the file.
        size: Height and width of the upright image, which the outlines refer to.
        objects: On it.
    """

    name: str
    path: Path
    size: tuple[int, int]
    objects: tuple[LocatedObject, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """What is on it, each once, in alphabetical order."""
        return tuple(sorted({one.category for one in self.objects}))

    def regions(
        self, category: str | None = None
    ) -> tuple[Bool[np.ndarray, "y x"], Bool[np.ndarray, "y x"]]:
        """Return where the objects of a category are, and where the boxes around them are.

        Args:
            category: Of the objects; None for all.

        Raises:
            ValueError: If there are none, or an outline cannot be understood; the file is named.
        """
        chosen = [one for one in self.objects if category in (None, one.category)]
        if not chosen:
            raise ValueError(f"{self.path} has no {category or 'object'}")
        mask, boxes = np.zeros(self.size, dtype=bool), np.zeros(self.size, dtype=bool)
        for one in chosen:
            try:
                own = _outline(one.outline, self.size)
            except ValueError as error:
                raise ValueError(f"{self.path}, {one.category or 'mask'}: {error}") from error
            mask |= own
            around = _tightest(own) if one.box is None else one.box
            boxes |= boxes_mask([around] if around is not None else [], self.size)
        return mask, boxes


def read_located(
    data: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    masks: str | os.PathLike[str] | None = None,
    omit: str | os.PathLike[str] | None = None,
    onerror: Callable[[OSError | ImageError], object] | None = None,
) -> list[LocatedImage]:
    """Return images with objects, in the order of their names.

    Args:
        data: COCO's instances as JSON; a folder with `annotations/instances_NAME.json` and the
            images in `NAME`; or a folder of images, whose masks are in `masks`.
        images: Where the images are, if not there.
        masks: A folder of masks as images, light inside, each named and sized as its own
            image; `masks` beside or in the folder of images if left out.
        omit: A folder that is not searched for images, as results are written there.
        onerror: Takes the error of each image and folder that cannot be read while a folder of
            images with masks is searched; by default it is raised.

    Raises:
        FileNotFoundError: If a file or a folder does not exist.
        ValueError: If the annotations cannot be understood, or there is nothing to be found.
    """
    source = Path(data)
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; give instances as JSON, or a folder")
    if source.is_dir() and masks is None:
        files = sorted((source / "annotations").glob("instances_*.json"))
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise ValueError(f"{source / 'annotations'} has several sets: give one of {names}")
        source = files[0] if files else source
    if source.is_file():
        return read_instances(source, images)
    folder = Path(images) if images is not None else source
    if masks is None:
        places = (folder / "masks", folder.parent / "masks")
        masks = next((place for place in places if place.is_dir()), None)
    if masks is None:
        raise FileNotFoundError(
            f"{source} has neither annotations/instances_*.json nor a folder masks; "
            "say where the masks are"
        )
    return read_masked(folder, masks, omit=omit, onerror=onerror)


def read_instances(
    file: str | os.PathLike[str], images: str | os.PathLike[str] | None = None
) -> list[LocatedImage]:
    """Return the images of COCO's instances that have objects.

    Args:
        file: JSON with `images`, `annotations` and `categories`.
        images: Folder of the images; by default that beside the folder of the file which its
            name says: of `annotations/instances_val2017.json`, `val2017`.

    Raises:
        FileNotFoundError: If there is no such file or folder, or an image is not in it.
        ValueError: If the file does not hold what it should, with the key, or an image lies
            outside of its folder.

    Example:
        >>> import json
        >>> from PIL import Image
        >>> folder = getfixture("tmp_path")
        >>> Image.new("RGB", (4, 3)).save(folder / "a.png")
        >>> ball = {"image_id": 1, "category_id": 7, "bbox": [0, 0, 2, 1]}
        >>> ball["segmentation"] = [[0, 0, 2, 0, 2, 1, 0, 1]]
        >>> told = {"images": [{"id": 1, "file_name": "a.png", "height": 3, "width": 4}]}
        >>> told |= {"annotations": [ball], "categories": [{"id": 7, "name": "ball"}]}
        >>> _ = (folder / "some.json").write_text(json.dumps(told))
        >>> [image] = read_instances(folder / "some.json", folder)
        >>> image.categories, image.regions("ball")[0].sum()
        (('ball',), np.int64(2))

    Source:
        Lin et al. 2014, arXiv:1405.0312 (COCO), whose annotations come so.
    """
    path = Path(file)
    told = [one for one in read_instance_file(path) if one.objects]
    if not told:
        raise ValueError(f"{path} knows no object on any image")
    folder = Path(images) if images is not None else _beside(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of images at {folder}; say where they are")
    inside = SafeDirectory(folder)
    try:
        found = [_located(one, inside) for one in told]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    _check_files(found, folder)
    return sorted(found, key=lambda one: one.name)


def read_masked(
    images: str | os.PathLike[str],
    masks: str | os.PathLike[str],
    *,
    omit: str | os.PathLike[str] | None = None,
    onerror: Callable[[OSError | ImageError], object] | None = None,
) -> list[LocatedImage]:
    """Return images with one object each, whose mask is an image of the same name.

    Args:
        images: Folder; it is searched with all that it holds.
        masks: Folder, in which masks lie as the images do in theirs; endings may differ.
        omit: A folder that is not searched for images.
        onerror: Takes the error of each image and folder that cannot be read; by default it is
            raised.

    Raises:
        FileNotFoundError: If a folder does not exist, or an image has no mask.

    Example:
        >>> from PIL import Image
        >>> folder = getfixture("tmp_path")
        >>> for name in ("seen", "masks"):
        ...     (folder / name).mkdir()
        ...     Image.new("L", (4, 3), 255).save(folder / name / "a.png")
        >>> read_masked(folder / "seen", folder / "masks")[0].regions()[0].all()
        np.True_
    """
    folder, inside = Path(images), Path(masks)
    if not inside.is_dir():
        raise FileNotFoundError(f"no folder of masks at {inside}")
    known = {path.relative_to(inside).with_suffix(""): path for path in find_images(inside)}
    found: list[LocatedImage] = []
    for path in find_images(folder, omit=omit, onerror=onerror):
        if path.is_relative_to(inside):
            continue
        mask = known.get(path.relative_to(folder).with_suffix(""))
        if mask is None:
            raise FileNotFoundError(f"{path} has no mask of its name in {inside}")
        try:
            size, _ = read_size(path)
        except ImageError as error:
            if onerror is None:
                raise
            onerror(error)
            continue
        name = path.relative_to(folder).as_posix()
        found.append(LocatedImage(name, path, size, (LocatedObject("", mask),)))
    return sorted(found, key=lambda one: one.path)


def _located(told: CocoImage, folder: SafeDirectory) -> LocatedImage:
    objects = tuple(LocatedObject(*one) for one in told.objects)
    return LocatedImage(told.file, folder.path(told.file), told.size, objects)


def _beside(path: Path) -> Path:
    """Return the folder of images that goes with a file of instances."""
    name = path.stem.removeprefix("instances_")
    places = (path.parent.parent / name, path.parent.parent / "images" / name, path.parent / name)
    return next((place for place in places if place.is_dir()), places[0])


def _check_files(found: Sequence[LocatedImage], folder: Path) -> None:
    lost = [one.name for one in found if not one.path.is_file()]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise FileNotFoundError(f"no image {lost[0]}{more} in {folder}")


def _outline(outline: Any, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    if not isinstance(outline, Path):
        return segmentation_mask(outline, size)
    light = read_image(outline).pixels.max(2)
    mask = light > light.max() / 2
    if mask.shape != tuple(size):
        raise ValueError(f"the mask {outline} is {mask.shape}, the upright image {tuple(size)}")
    return mask


def _tightest(mask: Bool[np.ndarray, "y x"]) -> Box | None:
    """Return the box around a mask, or None if there is nothing in it."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return None
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)
