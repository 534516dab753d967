"""`visattn data`: write a data set as image files and JSON lines."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from visattn.commands.arguments import Flag, Words
from visattn.commands.files import create_folder
from visattn.commands.streams import activity, print_row
from visattn.images.formats import encode_png
from visattn.io.atomic import atomic_write, temporary_folder
from visattn.io.messages import format_names
from visattn.io.safe_text import decode_utf8, parse_json, read_bytes_bounded

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from jaxtyping import UInt8
    from torch import Tensor

    from visattn.data.scenes.dataset import Scenes
    from visattn.data.scenes.world import World

_LISTS = {"scenes": "captions.jsonl", "shapes": "shapes.jsonl", "digits": "digits.jsonl"}
_KEYS = {"scenes": "word_objects", "shapes": "object", "digits": "distractors"}
"""A key by which each kind of list is recognized."""
_INSTANCES = "instances.json"


@dataclass(frozen=True)
class Canvas:
    """Number of images and output folder.

    Args:
        out: output folder for this data set only; a data set of an earlier run is replaced
        count: number of images
        overwrite: also write into a folder with other files, which are kept
    """

    out: Path
    count: int = 8
    overwrite: Flag = False


@dataclass(frozen=True)
class Rendering(Canvas):
    """How scenes are rendered.

    Args:
        size: height and width in pixels
        seed: seed of the scenes
        colors: colors to use (default: all)
        shapes: shapes to use (default: all)
        textures: textures to use (default: all)
    """

    size: int = 64
    seed: int = 0
    colors: Words = ()
    shapes: Words = ()
    textures: Words = ()

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The chosen colors, shapes and textures."""
        names = ("colors", "shapes", "textures")
        return {name: words for name in names if (words := getattr(self, name))}


def scenes(
    rendering: Rendering,
    *,
    split: Literal["train", "validation", "test", "novel"] = "test",
    min_objects: int = 2,
    max_objects: int = 4,
) -> int:
    """Render scenes of colored shapes with exact captions.

    Each scene is ID.png and a line of captions.jsonl: five captions that are true of it; shape,
    color, texture, size and box of each object (left, top, right, bottom in pixels); and for each
    word of each caption the index of the object it refers to, or null. instances.json has the boxes
    in the format of COCO, with the shapes as categories; its outlines are those of the boxes.

    Args:
        split: novel has color-shape pairs that are not in training
        min_objects: minimum number of objects per scene
        max_objects: maximum number of objects per scene
    """
    from visattn.data.scenes.dataset import Scenes
    from visattn.data.scenes.world import WorldConfig

    config = WorldConfig(**rendering.kinds, num_objects=(min_objects, max_objects))
    drawn = Scenes(
        rendering.count, size=rendering.size, split=split, seed=rendering.seed, config=config
    )
    with _data_set("scenes", rendering, (rendering.size, rendering.size)) as (folder, add):
        for index in range(len(drawn)):
            add(_write_scene(drawn, index, folder))
    size = rendering.size
    print_row(rendering.out, f"{len(drawn)} scenes of split {split}, {size} x {size} pixels")
    return 0


def shapes(rendering: Rendering, *, split: Literal["train", "validation", "test"] = "test") -> int:
    """Render scenes of one colored shape each.

    Each scene is ID.png and a line of shapes.jsonl: its class, the shape, and its object as for
    visattn data scenes; instances.json has the boxes in the format of COCO.

    Args:
        split: the split
    """
    from visattn.data.scenes.dataset import (
        SINGLE_OBJECT,
        Scenes,
        single_object_scenes,
        single_object_world,
    )

    size = rendering.size
    config = replace(SINGLE_OBJECT, **rendering.kinds)
    drawn = Scenes(rendering.count, size=size, split=split, seed=rendering.seed, config=config)
    with _data_set("shapes", rendering, (size, size)) as (folder, add):
        for index, image in enumerate(single_object_scenes(drawn).images):
            [record] = _object_records(single_object_world(drawn, index), size)
            entry = _write_image(image, f"{split}-{index}", folder)
            add({**entry, "class": record["shape"], "object": record})
    print_row(rendering.out, f"{len(drawn)} shapes of split {split}, {size} x {size} pixels")
    return 0


def digits(
    canvas: Canvas,
    *,
    root: Annotated[Path, arg(metavar="DIR")],
    split: Literal["train", "validation", "test"] = "test",
    canvas_size: tuple[int, int] = (60, 60),
    num_distractors: int = 0,
    distractor_size: int = 8,
    seed: int = 0,
) -> int:
    """Place MNIST digits on canvases, with clutter.

    Each canvas is ID.png and a line of digits.jsonl: its class, the digit; its box (left, top,
    right, bottom in pixels); and the boxes of the patches of other digits, in the order in which
    they were drawn. instances.json has the boxes in the format of COCO.

    Args:
        root: torchvision folder that holds MNIST/raw
        split: the split
        canvas_size: height and width in pixels
        num_distractors: number of patches of other digits
        distractor_size: height and width of these patches in pixels
        seed: seed and split_seed of the data
    """
    from visattn.data.classification.cluttered_mnist import (
        ClutteredDigits,
        ClutterSpec,
        canvas_digest,
    )

    if not (root / "MNIST" / "raw").is_dir():
        raise FileNotFoundError(
            f"{root} does not hold MNIST/raw, where torchvision stores MNIST; choose another --root"
        )
    spec = ClutterSpec(canvas_size, num_distractors, distractor_size)
    source = ClutteredDigits(str(root), canvas=spec, seed=seed, split_seed=seed)
    canvases = source(split)
    if not 1 <= canvas.count <= len(canvases):
        raise ValueError(f"--count must be 1 to {len(canvases)}, got {canvas.count}")
    numbers = list(range(canvas.count))
    (images, labels), (digits, pieces) = canvases.draw(numbers), canvases.placements(numbers)
    patch = (distractor_size,) * 2
    with _data_set("digits", canvas, canvas_size) as (folder, add):
        for number, image in enumerate(images):
            corners = pieces.distractors[number].tolist()
            add(
                {
                    **_write_image(image, f"{split}-{number}", folder),
                    "class": source.class_names[int(labels[number])],
                    "box": _box(digits[number].tolist(), canvases.digits.shape[2:]),
                    "distractors": [_box(corner, patch) for corner in corners],
                }
            )
    print_row(
        canvas.out,
        f"{canvas.count} of {len(canvases)} canvases of split {split}, {canvas_size[0]} x "
        f"{canvas_size[1]} pixels, sha256 of all {canvas_digest(canvases)}",
    )
    return 0


DATA_SETS = {"scenes": scenes, "shapes": shapes, "digits": digits}


def drawn_files(folder: Path) -> list[str]:
    """Return the files of the data set that visattn wrote into a folder, the list first.

    Example:
        >>> drawn_files(Path("no_such_folder"))
        []
    """
    for name, file in _LISTS.items():
        try:
            lines = decode_utf8(read_bytes_bounded(folder / file)).splitlines()
            records = [parse_json(line) for line in lines]
            if records and all(_KEYS[name] in record for record in records):
                images = [Path(record["file"]).name for record in records]
                return [file, _INSTANCES, *images]
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return []


@contextlib.contextmanager
def _data_set(
    name: str, made: Canvas, size: tuple[int, int]
) -> Iterator[tuple[Path, Callable[[dict[str, Any]], None]]]:
    """Yield a temporary folder for the images and a function that adds the record of one.

    The list of records is deleted first and written last, so a folder that has one is complete.

    Raises:
        FileExistsError: If the folder has files that do not belong to a data set.
    """
    own = drawn_files(made.out)
    others = sorted(p.name for p in made.out.iterdir()) if made.out.is_dir() else []
    foreign = [each for each in others if each not in own and each[0] != "."]
    if foreign and not made.overwrite:
        raise FileExistsError(
            f"{made.out} holds {format_names(foreign)}, which this command did not write; choose a "
            "new or empty folder, or keep these files with --overwrite"
        )
    create_folder(made.out)
    records: list[dict[str, Any]] = []

    def add(record: dict[str, Any]) -> None:
        records.append(record)
        shown.advance()

    try:
        with temporary_folder(made.out / name) as folder, activity("drawing", made.count) as shown:
            yield folder, add
            (folder / _INSTANCES).write_text(json.dumps(_coco_instances(records, size)) + "\n")
            for file in own:
                (made.out / file).unlink(missing_ok=True)
            for path in sorted(folder.iterdir()):
                path.replace(made.out / path.name)
            atomic_write(made.out / _LISTS[name], "\n".join([*map(json.dumps, records), ""]))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"{len(records)} of {made.count} were drawn, and {made.out} is unchanged"
        ) from None


def _write_scene(scenes: "Scenes", index: int, folder: Path) -> dict[str, Any]:
    """Write the image of a scene and return its record."""
    from visattn.data.scenes.language import describe_world

    sample, world = scenes[index], scenes.world(index)
    return {
        **_write_image(sample.image, sample.id, folder),
        "captions": sample.captions,
        "objects": _object_records(world, scenes.size),
        "word_objects": [caption.objects for caption in describe_world(world)],
    }


def _object_records(world: "World", size: int) -> list[dict[str, Any]]:
    """Return the attributes of each object, and the box of its pixels."""
    from visattn.data.scenes.world import object_boxes

    return [
        {
            "shape": scene_object.shape,
            "color": scene_object.color,
            "texture": scene_object.texture,
            "size": scene_object.size,
            "box": [int(side) for side in box],
        }
        for scene_object, box in zip(world.objects, object_boxes(world, size), strict=True)
    ]


def _box(corner: Sequence[int], size: Sequence[int]) -> list[int]:
    """Return left, top, right and bottom from the corner (top, left) and the size."""
    (top, left), (height, width) = corner, size
    return [left, top, left + width, top + height]


def _write_image(image: "UInt8[Tensor, 'c y x']", name: str, folder: Path) -> dict[str, Any]:
    """Write an image; return its id and file name."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
    (folder / f"{name}.png").write_bytes(encode_png(pixels))
    return {"id": name, "file": f"{name}.png"}


def _coco_instances(
    records: Sequence[dict[str, Any]], size: tuple[int, int]
) -> dict[str, list[dict[str, Any]]]:
    """Return the boxes of all images as a COCO instances file, whose format also needs outlines."""
    images: list[dict[str, Any]] = []
    boxes: list[tuple[str, str, Sequence[int]]] = []
    for record in records:
        name = record["id"]
        images.append(
            {"id": name, "file_name": record["file"], "height": size[0], "width": size[1]}
        )
        things = record.get("objects") or [record.get("object", record)]
        boxes += [(name, thing.get("shape") or thing["class"], thing["box"]) for thing in things]
    numbers = {name: number for number, name in enumerate(sorted({box[1] for box in boxes}), 1)}
    annotations = [
        {
            "id": number,
            "image_id": image,
            "category_id": numbers[category],
            "bbox": [left, top, right - left, bottom - top],
            "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
            "area": (right - left) * (bottom - top),
            "iscrowd": 0,
        }
        for number, (image, category, (left, top, right, bottom)) in enumerate(boxes, 1)
    ]
    categories = [{"id": number, "name": name} for name, number in numbers.items()]
    return {"images": images, "annotations": annotations, "categories": categories}
