"""Readers of images with annotated objects: COCO instances and folders of masks."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.regions.coco_instances import read_instance_file
from visattn.images.reader import ImageError, read_size
from visattn.images.sources import find_images
from visattn.io.messages import format_names
from visattn.io.safe_paths import file_below
from visattn.io.safe_text import reading

IMAGENET_CATEGORIES: dict[str, tuple[int, ...]] = {
    "airplane": (404, 895),
    "apple": (948,),
    "backpack": (414,),
    "banana": (954,),
    "bear": (*range(294, 298),),
    "bed": (564,),
    "bench": (703,),
    "bicycle": (444, 671),
    "bird": (*range(7, 25), *range(80, 101), *range(127, 147)),
    "boat": (472, 484, 554, 576, 625, 780, 814, 871, 914),
    "bottle": (440, 720, 737, 898, 907),
    "bowl": (659, 809),
    "broccoli": (937,),
    "bus": (654, 779, 874),
    "car": (407, 436, 468, 511, 609, 627, 656, 661, 751, 817),
    "cat": (*range(281, 286),),
    "cell phone": (487,),
    "chair": (423, 559, 765),
    "clock": (409, 530, 892),
    "couch": (831,),
    "cow": (*range(345, 348),),
    "cup": (504, 968),
    "dining table": (532,),
    "dog": (*range(151, 269),),
    "elephant": (101, 385, 386),
    "hair drier": (589,),
    "handbag": (748,),
    "horse": (339,),
    "hot dog": (934,),
    "keyboard": (508, 878),
    "laptop": (620, 681),
    "microwave": (651,),
    "motorcycle": (665, 670),
    "mouse": (673,),
    "orange": (950,),
    "parking meter": (704,),
    "pizza": (963,),
    "potted plant": (738,),
    "refrigerator": (760,),
    "remote": (761,),
    "sheep": (348, 349),
    "sink": (896,),
    "skis": (795,),
    "sports ball": (*range(429, 431), 522, 574, 722, 768, 805, 852, 890),
    "spoon": (910,),
    "teddy bear": (850,),
    "tennis racket": (752,),
    "tie": (451, 457, 906),
    "toaster": (859,),
    "toilet": (861,),
    "traffic light": (920,),
    "train": (466, 547, 705, 820),
    "truck": (555, 569, 675, 717, 864, 867),
    "tv": (664, 782, 851),
    "umbrella": (879,),
    "vase": (883,),
    "wine glass": (572,),
    "zebra": (340,),
}
"""ImageNet-1k class indices of each COCO category.

Categories without a matching class are missing, such as person, or stop sign: the street signs of
ImageNet are rarely stop signs."""


def matching_classes(category: str, classes: Sequence[str], count: int) -> tuple[int, ...]:
    """Return the indices of a model's classes that match a category, or an empty tuple.

    A class matches if its name, or one of its comma-separated names, equals the category. A model
    with 1000 classes is assumed to have those of ImageNet, which WordNet ids such as n02391049
    match, too.

    Example:
        >>> matching_classes("zebra", (), 1000), matching_classes("Ring", ("bar", "ring"), 2)
        ((340,), (1,))
        >>> matching_classes("person", (), 1000), matching_classes("n02391049", (), 1000)
        ((), (340,))
    """
    category = category.casefold()
    if count == 1000 and category in IMAGENET_CATEGORIES:
        return IMAGENET_CATEGORIES[category]
    if count == 1000 and category in _imagenet_indices():
        return (_imagenet_indices()[category],)
    names_of_classes = ({alias.strip().casefold() for alias in name.split(",")} for name in classes)
    return tuple(index for index, names in enumerate(names_of_classes) if category in names)


@cache
def _imagenet_indices() -> dict[str, int]:
    """Return the class index of each WordNet id of ImageNet-1k."""
    from timm.data.imagenet_info import ImageNetInfo  # slow to import

    return {name: index for index, name in enumerate(ImageNetInfo().label_names())}


PathLike = str | os.PathLike[str]


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
            images in `NAME`; or a folder of images, whose masks are in `masks`.
        images: Folder of the images, if it is not the default.
        masks: Folder of mask images with bright foreground, each with the name and size of its
            image; by default `masks` in or next to the folder of images.
        omit: A folder to skip in the search for images, such as the output folder.
        onerror: Called with the error of missing images, or of each unreadable image or folder in a
            folder of images with masks; by default errors are raised.

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
    path = _one_file(Path(data), masks)
    if path.is_file():
        return read_coco_images(path, images, onerror=onerror)
    folder = Path(images or path)
    candidates = (folder / "masks", folder.parent / "masks") if masks is None else (Path(masks),)
    found = next((each for each in candidates if each.is_dir()), None)
    if found is None:
        raise FileNotFoundError(
            f"{data} holds neither annotations/instances_*.json nor a folder masks; pass the "
            "folder of the masks"
        )
    return read_images_with_masks(folder, found, omit=omit, onerror=onerror)


def _one_file(data: Path, masks: PathLike | None) -> Path:
    """Return the only instances file in a folder, or the path itself if there is none."""
    if not data.exists():
        raise FileNotFoundError(f"{data} does not exist; pass a COCO instances file or a folder")
    files = sorted((data / "annotations").glob("instances_*.json")) if masks is None else []
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ValueError(f"{data / 'annotations'} has several files; pass one of {names}")
    return files[0] if files else data


def read_coco_images(
    file: PathLike,
    images: PathLike | None = None,
    *,
    keep_empty: bool = False,
    onerror: Callable[[OSError | ImageError], object] | None = None,
) -> list[AnnotatedImage]:
    """Return the images of a COCO instances file; without `keep_empty`, those with objects.

    The default folder of images is named after the file: `val2017` for
    `annotations/instances_val2017.json`. Missing images are skipped if there is an `onerror`.

    Raises:
        FileNotFoundError: If there is no such file or folder, or an image is not in it.
        ValueError: If the file is invalid (the message names the entry), or an image is outside its
            folder.

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
    coco_images = [image for image in read_instance_file(path)[0] if image.objects or keep_empty]
    if not any(image.objects for image in coco_images):
        raise ValueError(f"{path} has no annotated objects")
    folder = Path(images) if images is not None else _default_image_folder(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of images at {folder}; pass it")
    with reading(path):
        pairs = [(image, file_below(folder, image.file)) for image in coco_images]
    missing = {image.file: file for image, file in pairs if not file.is_file()}
    if missing:
        error = FileNotFoundError(f"no image {format_names([*missing], 1)} in {folder}")
        if onerror is None:
            raise error
        onerror(error)
    annotated = [
        AnnotatedImage(each.file, file, each.size, tuple(each.objects))
        for each, file in pairs
        if each.file not in missing
    ]
    return sorted(annotated, key=lambda image: image.name)


def read_images_with_masks(
    images: PathLike,
    masks: PathLike,
    *,
    omit: PathLike | None = None,
    onerror: Callable[[OSError | ImageError], object] | None = None,
) -> list[AnnotatedImage]:
    """Return images with one object each, whose mask is an image of the same name.

    Arguments as for `pair_masks`; unreadable images are skipped if there is an `onerror`.

    Example:
        >>> from PIL import Image
        >>> folder = getfixture("tmp_path")
        >>> for name in ("images", "masks"):
        ...     (folder / name).mkdir()
        ...     Image.new("L", (4, 3), 255).save(folder / name / "a.png")
        >>> read_images_with_masks(folder / "images", folder / "masks")[0].region_masks()[0].all()
        np.True_
    """
    annotated: list[AnnotatedImage] = []
    for path, mask in pair_masks(images, masks, omit=omit, onerror=onerror):
        try:
            size = read_size(path)
        except ImageError as error:
            if onerror is None:
                raise
            onerror(error)
            continue
        name = path.relative_to(images).as_posix()
        annotated.append(AnnotatedImage(name, path, size, (AnnotatedObject("", mask),)))
    return sorted(annotated, key=lambda image: str(image.path))


def pair_masks(
    images: PathLike,
    masks: PathLike,
    *,
    omit: PathLike | None = None,
    onerror: Callable[[OSError], object] | None = None,
) -> list[tuple[Path, Path]]:
    """Return the image files of a folder, each with the mask of the same name in another folder.

    Args:
        images: Folder of images, searched recursively.
        masks: Folder of masks, which may be inside the folder of images.
        omit: A folder to skip in the search for images.
        onerror: Called with the error of each folder that cannot be searched; raised by default.

    Raises:
        FileNotFoundError: If there is no such folder, or an image has no mask.
    """
    by_name = {file.relative_to(masks).with_suffix(""): file for file in find_images(masks)}
    files = find_images(
        images, exclude=omit, skip=lambda path: path.samefile(masks), onerror=onerror
    )
    names = {file: file.relative_to(images).with_suffix("") for file in files}
    if missing := [file for file, name in names.items() if name not in by_name]:
        raise FileNotFoundError(
            f"every image needs a mask of its name in {masks}; {len(missing)} of {len(files)} "
            f"have none, such as {missing[0]}"
        )
    return [(file, by_name[name]) for file, name in names.items()]


def _default_image_folder(path: Path) -> Path:
    """Return the folder of images of a COCO instances file."""
    name = path.stem.removeprefix("instances_")
    root = path.parent.parent
    candidates = (root / name, root / "images" / name, path.parent / name)
    return next((folder for folder in candidates if folder.is_dir()), candidates[0])
