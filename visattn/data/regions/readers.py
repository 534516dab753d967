"""Readers of images with annotated objects: COCO instances, or a folder of masks."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.regions.coco_instances import read_instance_file
from visattn.data.regions.imagenet_boxes import read_imagenet_boxes
from visattn.images.reader import ImageError, find_images, read_header, read_size
from visattn.io.messages import format_names
from visattn.io.safe_paths import SafeDirectory

PathLike = str | os.PathLike[str]
_SIZE_THREADS = 8  # that wait for headers of photos


class Source(NamedTuple):
    """Arguments of `read_annotated_images`."""

    path: Path
    """A file of annotations, or a folder."""
    images: PathLike | None
    masks: PathLike | None
    omit: PathLike | None
    onerror: Callable[[OSError | ImageError], object] | None

    @property
    def image_folder(self) -> Path:
        """The folder of the images: by default that of the annotations."""
        return self.path if self.images is None else Path(self.images)

    @property
    def mask_folder(self) -> Path | None:
        """The folder of the masks: by default `masks` in or beside that of the images."""
        if self.masks is not None:
            return Path(self.masks)
        candidates = (self.image_folder / "masks", self.image_folder.parent / "masks")
        return next((folder for folder in candidates if folder.is_dir()), None)

    def holds_boxes(self) -> bool:
        """Return whether the boxes are as ImageNet's: a CSV file, or a folder with XML files."""
        if self.path.is_file():
            return self.path.suffix.lower() == ".csv"
        return self.masks is None and next(self.path.rglob("*.xml"), None) is not None


class Reader(NamedTuple):
    """A format of annotations; `READERS` lists them in the order in which they are tried."""

    name: str
    """What is read, for messages."""
    fits: Callable[[Source], bool]
    read: Callable[[Source], list[AnnotatedImage]]


def read_annotated_images(
    data: PathLike,
    *,
    images: PathLike | None = None,
    masks: PathLike | None = None,
    omit: PathLike | None = None,
    onerror: Callable[[OSError | ImageError], object] | None = None,
) -> list[AnnotatedImage]:
    """Read images with annotated objects, ordered by name.

    Args:
        data: COCO instances JSON; a folder with `annotations/instances_NAME.json` and the
            images in `NAME`; boxes as ImageNet's, a CSV file or a folder of XML files
            (`read_imagenet_boxes`); or a folder of images, whose masks are in `masks`.
        images: Folder of the images, if it is another one.
        masks: Folder of mask images with bright foreground, each with the name and size of its
            image; by default `masks` beside or in the folder of images.
        omit: A folder that is not searched for images, because results are written there.
        onerror: Called with the error of each unreadable image or folder when a folder of images
            with masks is searched; raised by default.

    Raises:
        FileNotFoundError: If a file or a folder does not exist.
        ValueError: If the annotations are invalid, or there are none.

    Example:
        >>> from PIL import Image
        >>> folder = getfixture("tmp_path")
        >>> (folder / "masks").mkdir()
        >>> Image.new("RGB", (7, 5)).save(folder / "cat.png")
        >>> Image.new("L", (7, 5), 255).save(folder / "masks" / "cat.png")
        >>> [(image.name, image.size) for image in read_annotated_images(folder)]
        [('cat.png', (5, 7))]
    """
    source = Source(_one_file(Path(data), masks), images, masks, omit, onerror)
    for reader in READERS:
        if reader.fits(source):
            return reader.read(source)
    known = ", ".join(reader.name for reader in READERS)
    raise FileNotFoundError(f"{data} holds none of {known}; name the folder of the masks")


def _one_file(data: Path, masks: PathLike | None) -> Path:
    """Return the only instances file of a folder, or what was given if there is none."""
    if not data.exists():
        raise FileNotFoundError(f"{data} does not exist; give COCO instances as JSON, or a folder")
    files = sorted((data / "annotations").glob("instances_*.json")) if masks is None else []
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ValueError(f"{data / 'annotations'} has several files: give one of {names}")
    return files[0] if files else data


def read_coco_images(
    file: PathLike,
    images: PathLike | None = None,
    *,
    keep_empty: bool = False,
) -> list[AnnotatedImage]:
    """Return the images of a COCO instances file that have objects.

    Args:
        file: JSON with `images`, `annotations` and `categories`.
        images: Folder of the images; by default the one in the name of the file: `val2017` for
            `annotations/instances_val2017.json`.
        keep_empty: Whether to return images without objects too.

    Raises:
        FileNotFoundError: If there is no such file or folder, or an image is not in it.
        ValueError: If the file is invalid, with the key, or an image is outside of its folder.

    Example:
        >>> import json
        >>> from PIL import Image
        >>> folder = getfixture("tmp_path")
        >>> Image.new("RGB", (4, 3)).save(folder / "a.png")
        >>> ball = {"image_id": 1, "category_id": 7, "bbox": [0, 0, 2, 1]}
        >>> ball["segmentation"] = [[0, 0, 2, 0, 2, 1, 0, 1]]
        >>> content = {"images": [{"id": 1, "file_name": "a.png", "height": 3, "width": 4}]}
        >>> content |= {"annotations": [ball], "categories": [{"id": 7, "name": "ball"}]}
        >>> _ = (folder / "instances.json").write_text(json.dumps(content))
        >>> [image] = read_coco_images(folder / "instances.json", folder)
        >>> image.categories, image.region_masks("ball")[0].sum()
        (('ball',), np.int64(2))

    Source:
        Lin et al. 2014, arXiv:1405.0312 (COCO), the format of its annotations.
    """
    path = Path(file)
    coco_images = [image for image in read_instance_file(path) if image.objects or keep_empty]
    if not any(image.objects for image in coco_images):
        raise ValueError(f"{path} has no objects on any image")
    folder = Path(images) if images is not None else _default_image_folder(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of images at {folder}; name it")
    directory = SafeDirectory(folder)
    try:
        annotated = [
            AnnotatedImage(image.file, directory.path(image.file), image.size, image.objects)
            for image in coco_images
        ]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    _check_files(annotated, folder)
    return sorted(annotated, key=lambda image: image.name)


def read_images_with_masks(
    images: PathLike,
    masks: PathLike,
    *,
    omit: PathLike | None = None,
    onerror: Callable[[OSError | ImageError], object] | None = None,
) -> list[AnnotatedImage]:
    """Return images with one object each, whose mask is an image of the same name.

    Args:
        images: Folder of the images, searched recursively.
        masks: Folder of the masks, with the same relative paths; suffixes may differ.
        omit: A folder that is not searched for images.
        onerror: Called with the error of each unreadable image or folder; raised by default.

    Raises:
        FileNotFoundError: If a folder does not exist, or an image has no mask.

    Example:
        >>> from PIL import Image
        >>> folder = getfixture("tmp_path")
        >>> for name in ("images", "masks"):
        ...     (folder / name).mkdir()
        ...     Image.new("L", (4, 3), 255).save(folder / name / "a.png")
        >>> read_images_with_masks(folder / "images", folder / "masks")[0].region_masks()[0].all()
        np.True_
    """
    folder, mask_folder = Path(images), Path(masks)
    if not mask_folder.is_dir():
        raise FileNotFoundError(f"no folder of masks at {mask_folder}")
    mask_files = {
        path.relative_to(mask_folder).with_suffix(""): path for path in find_images(mask_folder)
    }
    annotated: list[AnnotatedImage] = []
    for path in find_images(folder, omit=omit, onerror=onerror):
        if path.is_relative_to(mask_folder):
            continue
        mask = mask_files.get(path.relative_to(folder).with_suffix(""))
        if mask is None:
            raise FileNotFoundError(f"{path} has no mask with its name in {mask_folder}")
        try:
            size, _ = read_size(path)
        except ImageError as error:
            if onerror is None:
                raise
            onerror(error)
            continue
        name = path.relative_to(folder).as_posix()
        annotated.append(AnnotatedImage(name, path, size, (AnnotatedObject("", mask),)))
    return sorted(annotated, key=lambda image: image.path)


def check_photo_sizes(images: Sequence[AnnotatedImage]) -> None:
    """Compare the size of each photo, from its header, with that of the annotations.

    Photos that cannot be read are left to `read_image`, whose errors training may tolerate.

    Args:
        images: Annotated images.

    Raises:
        ValueError: If sizes differ; the message names the first photo and counts the others.
    """

    def fault(image: AnnotatedImage) -> str:
        try:
            header = read_header(image.path)
            image.check_size(header.size, header.orientation)
        except ImageError:
            return ""
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(_SIZE_THREADS) as threads:
        faults = [text for text in threads.map(fault, images) if text]
    if faults:
        others = f" ({len(faults):,} of {len(images):,} photos)" if len(faults) > 1 else ""
        raise ValueError(f"{faults[0]}{others}")


def _default_image_folder(path: Path) -> Path:
    """Return the folder of images of a COCO instances file."""
    name = path.stem.removeprefix("instances_")
    root = path.parent.parent
    candidates = (root / name, root / "images" / name, path.parent / name)
    return next((folder for folder in candidates if folder.is_dir()), candidates[0])


def _check_files(images: Sequence[AnnotatedImage], folder: Path) -> None:
    missing = [image.name for image in images if not image.path.is_file()]
    if missing:
        raise FileNotFoundError(f"no image {format_names(missing, 1)} in {folder}")


READERS = (
    Reader(
        "boxes as ImageNet's (a CSV file, or XML files)",
        Source.holds_boxes,
        lambda source: read_imagenet_boxes(source.path, source.images),
    ),
    Reader(
        "COCO instances (a JSON file, or annotations/instances_*.json)",
        lambda source: source.path.is_file(),
        lambda source: read_coco_images(source.path, source.images),
    ),
    Reader(
        "images with a folder masks",
        lambda source: source.mask_folder is not None,
        lambda source: read_images_with_masks(
            source.image_folder, source.mask_folder or "", omit=source.omit, onerror=source.onerror
        ),
    ),
)
"""The formats of annotations; the first that fits reads."""
