"""`visattn data`: write a data set as image files and JSON lines."""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.files import create_folder
from visattn.commands.options import (
    DRAWING,
    OUTPUT,
    CommandParser,
    add_options,
    add_overwrite,
    count,
    print_dry_run,
    seed,
    whole_number,
)
from visattn.commands.output_option import output_path
from visattn.commands.streams import activity, print_row
from visattn.images.encoding import encode_png
from visattn.io.atomic import atomic_write, temporary_folder
from visattn.io.messages import format_names
from visattn.io.safe_text import decode_utf8, parse_json, read_bytes_bounded

if TYPE_CHECKING:  # numpy and torch are imported when the command runs, not for its help
    from jaxtyping import UInt8
    from torch import Tensor

    from visattn.data.scenes.dataset import Scenes
    from visattn.data.scenes.world import World

_SCENES = """\
Render scenes of colored shapes. Each scene is DIR/ID.png and a line of DIR/captions.jsonl:
  id, file      the image
  captions      five captions that are true of the scene
  objects       shape, color, texture and size of each object, and its box: left, top, right, bottom
                in pixels
  word_objects  for each word of each caption the index of the object it refers to, or null
DIR/instances.json has the boxes in the format of COCO, with the shapes as categories; its outlines
are those of the boxes."""
_SHAPES = """\
Render scenes of one colored shape each, as the source SingleObjects provides them. Each scene is
DIR/ID.png and a line of DIR/shapes.jsonl:
  id, file   the image
  class      the shape
  object     as in visattn data scenes
DIR/instances.json has the boxes in the format of COCO, with the shapes as categories; its outlines
are those of the boxes. A model of shapes is scored on them by visattn score maps
--data DIR/instances.json --images DIR."""
_DIGITS = """\
Place MNIST digits on canvases, as the source ClutteredDigits provides them. Each canvas is
DIR/ID.png and a line of DIR/digits.jsonl:
  id, file     the canvas
  class        the digit
  box          box of the digit: left, top, right, bottom in pixels
  distractors  boxes of the patches of other digits, in the order in which they were drawn
DIR/instances.json has the boxes in the format of COCO, with the digits as categories; its outlines
are those of the boxes."""
_LISTS = {"scenes": "captions.jsonl", "shapes": "shapes.jsonl", "digits": "digits.jsonl"}
_KEYS = {"scenes": "word_objects", "shapes": "object", "digits": "distractors"}
"""A key that each line of such a list has."""
_INSTANCES = "instances.json"
_SIDES = whole_number(16, 4096)  # pixels; a larger scene takes gigabytes while it is rendered
_OBJECTS = whole_number(1, 100)
_BLEND_MODES = ("sum", "max", "overwrite", "alpha")


_SCENE_EXAMPLES = (
    "visattn data scenes --count 100 --out scenes",
    "visattn data scenes --size 256 --colors red blue --max-objects 3 --out large",
)
_SHAPE_EXAMPLES = (
    "visattn data shapes --split test --out shapes",
    "visattn data shapes --count 50 --shapes circle square --out two",
)
_DIGIT_EXAMPLES = (
    "visattn data digits --root mnist --count 100 --out digits",
    "visattn data digits --root mnist --num-distractors 4 --out cluttered",
)
_EXAMPLES = (_SCENE_EXAMPLES[0], _SHAPE_EXAMPLES[0], _DIGIT_EXAMPLES[0])


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn data",
        description="Write a data set as image files and JSON lines.",
    )
    subparsers = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    _add_scenes(subparsers)
    _add_shapes(subparsers)
    _add_digits(subparsers)
    return parser


def main(argv: Sequence[str]) -> int:
    """Write a data set; return 0."""
    args = build_parser().parse_args(argv)
    writers: dict[str, Callable[[argparse.Namespace], str]] = {
        "scenes": _write_scenes,
        "shapes": _write_shapes,
        "digits": _write_digits,
    }
    _check_folder(args)
    summary = writers[args.name](args)
    if args.dry_run:
        images = [f"{args.split}-{number}.png" for number in range(args.count)]
        return print_dry_run([summary], args.out, [*images, _LISTS[args.name], _INSTANCES])
    print_row(args.out, summary)
    return 0


def drawn_files(folder: Path) -> list[str]:
    """Return the files of the data set that visattn has drawn into a folder, the list first.

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


def _check_folder(args: argparse.Namespace) -> None:
    """Refuse a folder with other files than those of a data set, unless with `--overwrite`."""
    if args.overwrite or not args.out.is_dir():
        return
    own = drawn_files(args.out)
    others = sorted(path.name for path in args.out.iterdir() if path.name[0] != ".")
    if foreign := [name for name in others if name not in own]:
        raise FileExistsError(
            f"{args.out} holds {format_names(foreign)}, which this command did not write; choose a "
            "new or empty folder, or write beside them with --overwrite"
        )


def _add_scenes(subparsers: Any) -> None:
    line = "rendered shapes with exact captions"
    parser = _add_data_set(subparsers, "scenes", line, _SCENES, _SCENE_EXAMPLES)
    group = parser.group(DRAWING)
    group.add_argument(
        "--split",
        choices=("train", "validation", "test", "novel"),
        default="test",
        help="split; novel has color-shape pairs that are not in training (default: test)",
    )
    _add_rendering(group)
    group.add_argument(
        "--min-objects", type=_OBJECTS, default=2, help="fewest objects per scene (default: 2)"
    )
    group.add_argument(
        "--max-objects", type=_OBJECTS, default=4, help="most objects per scene (default: 4)"
    )


def _add_rendering(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--count", type=count, default=8, help="number of images (default: 8)")
    group.add_argument(
        "--size", type=_SIDES, default=64, help="height and width in pixels (default: 64)"
    )
    group.add_argument("--seed", type=seed, default=0, help="seed of the scenes (default: 0)")
    for name in ("colors", "shapes", "textures"):
        group.add_argument(
            f"--{name}", nargs="+", metavar="WORD", help=f"{name} to use (default: all)"
        )


def _add_shapes(subparsers: Any) -> None:
    line = "one rendered shape per image"
    parser = _add_data_set(subparsers, "shapes", line, _SHAPES, _SHAPE_EXAMPLES)
    _add_split(parser.group(DRAWING))
    _add_rendering(parser.group(DRAWING))


def _add_digits(subparsers: Any) -> None:
    line = "MNIST on larger canvases, with clutter"
    group = _add_data_set(subparsers, "digits", line, _DIGITS, _DIGIT_EXAMPLES).group(DRAWING)
    group.add_argument(
        "--root", metavar="DIR", required=True, help="torchvision folder that holds MNIST/raw"
    )
    _add_split(group)
    group.add_argument("--count", type=count, default=8, help="number of images (default: 8)")
    group.add_argument(
        "--canvas-size",
        type=whole_number(28, 1024),
        nargs=2,
        metavar=("HEIGHT", "WIDTH"),
        default=(60, 60),
        help="size of the canvas in pixels (default: 60 60)",
    )
    group.add_argument(
        "--num-distractors",
        type=whole_number(0, 1000),
        default=0,
        help="number of patches of other digits (default: 0)",
    )
    group.add_argument(
        "--distractor-size",
        type=whole_number(1, 28),
        default=8,
        help="height and width of these patches in pixels (default: 8)",
    )
    group.add_argument(
        "--blend", choices=_BLEND_MODES, default="sum", help="blend mode (default: sum)"
    )
    group.add_argument(
        "--seed", type=seed, default=0, help="seed and split_seed of the data (default: 0)"
    )


def _add_data_set(
    subparsers: Any, name: str, help_text: str, description: str, examples: Sequence[str]
) -> CommandParser:
    """Add the parser of a data set."""
    parser: CommandParser = subparsers.add_parser(
        name, help=help_text, description=description, examples=examples
    )
    parser.group(OUTPUT).add_argument(
        "--out",
        type=output_path,
        metavar="DIR",
        required=True,
        help="output folder, for this data set alone; an earlier one is replaced",
    )
    add_overwrite(parser, "images and lists")
    add_options(parser, "dry-run")
    return parser


def _add_split(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        default="test",
        help="split (default: test)",
    )


def _write_scenes(args: argparse.Namespace) -> str:
    from visattn.data.scenes.dataset import Scenes
    from visattn.data.scenes.world import WorldConfig

    config = WorldConfig(**_kinds(args), num_objects=(args.min_objects, args.max_objects))
    scenes = Scenes(args.count, size=args.size, split=args.split, seed=args.seed, config=config)
    summary = f"{len(scenes)} scenes of split {args.split}, {args.size} x {args.size} pixels"
    if args.dry_run:
        return summary
    with _data_set(args) as (folder, add):
        for index in range(len(scenes)):
            add(_write_scene(scenes, index, folder))
    return summary


def _kinds(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Return the chosen colors, shapes and textures."""
    names = ("colors", "shapes", "textures")
    return {name: tuple(words) for name in names if (words := getattr(args, name))}


def _write_scene(scenes: "Scenes", index: int, folder: Path) -> dict[str, Any]:
    """Write the image of a scene and return its record."""
    sample = scenes[index]
    return {
        **_write_image(scenes.image(index), sample.id, folder),
        "captions": sample.captions,
        "objects": _object_records(scenes.world(index), scenes.size),
        "word_objects": [caption.objects for caption in scenes.captions(index)],
    }


def _write_shapes(args: argparse.Namespace) -> str:
    from visattn.data.scenes.dataset import (
        SINGLE_OBJECT,
        Scenes,
        single_object_scenes,
        single_object_world,
    )

    config = replace(SINGLE_OBJECT, **_kinds(args))
    scenes = Scenes(args.count, size=args.size, split=args.split, seed=args.seed, config=config)
    summary = f"{len(scenes)} shapes of split {args.split}, {args.size} x {args.size} pixels"
    if args.dry_run:
        return summary
    with _data_set(args) as (folder, add):
        for index, image in enumerate(single_object_scenes(scenes).images):
            [record] = _object_records(single_object_world(scenes, index), args.size)
            entry = _write_image(image, f"{args.split}-{index}", folder)
            add({**entry, "class": record["shape"], "object": record})
    return summary


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


def _write_digits(args: argparse.Namespace) -> str:
    from visattn.data.classification.cluttered_mnist import ClutteredDigits, ClutterSpec

    canvas: tuple[int, int] = (args.canvas_size[0], args.canvas_size[1])
    _require_mnist(Path(args.root))
    spec = ClutterSpec(canvas, args.num_distractors, args.distractor_size, args.blend)
    data = ClutteredDigits(args.root, spec, seed=args.seed, split_seed=args.seed)
    canvases = data(args.split)
    if not 1 <= args.count <= len(canvases):
        raise ValueError(f"count must be 1 to {len(canvases)}, got {args.count}")
    numbers = list(range(args.count))
    (images, labels), placements = canvases.draw(numbers), canvases.placements(numbers)
    summary = (
        f"{args.count} of {len(canvases)} canvases of split {args.split}, "
        f"{canvas[0]} x {canvas[1]} pixels, sha256 of all {canvases.digest()}"
    )
    if args.dry_run:
        return summary
    patch = (args.distractor_size,) * 2
    with _data_set(args) as (folder, add):
        for number, image in enumerate(images):
            corners = placements.distractors[number].tolist()
            add(
                {
                    **_write_image(image, f"{args.split}-{number}", folder),
                    "class": data.class_names[int(labels[number])],
                    "box": _box(placements.digits[number].tolist(), canvases.digits.shape[2:]),
                    "distractors": [_box(corner, patch) for corner in corners],
                }
            )
    return summary


def _require_mnist(root: Path) -> None:
    if not (root / "MNIST" / "raw").is_dir():
        raise FileNotFoundError(
            f"{root} does not hold MNIST/raw, where torchvision stores MNIST; choose another --root"
        )


def _box(corner: Sequence[int], size: Sequence[int]) -> list[int]:
    """Return left, top, right and bottom from the corner (top, left) and the size."""
    (top, left), (height, width) = corner, size
    return [left, top, left + width, top + height]


def _write_image(image: "UInt8[Tensor, 'c y x']", name: str, folder: Path) -> dict[str, Any]:
    """Write an image; return its id and file name."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
    (folder / f"{name}.png").write_bytes(encode_png(pixels))
    return {"id": name, "file": f"{name}.png"}


@contextlib.contextmanager
def _data_set(
    args: argparse.Namespace,
) -> Iterator[tuple[Path, Callable[[dict[str, Any]], None]]]:
    """Yield a temporary folder and a function that adds a record: together the data set.

    The list of the records leaves first and comes last: a folder that has one is complete.
    """
    create_folder(args.out)
    records: list[dict[str, Any]] = []

    def add(record: dict[str, Any]) -> None:
        records.append(record)
        shown.advance()

    try:
        with (
            temporary_folder(args.out / args.name) as folder,
            activity("drawing", args.count) as shown,
        ):
            yield folder, add
            size = (args.size, args.size) if "size" in args else tuple(args.canvas_size)
            instances = json.dumps(_coco_instances(records, size)) + "\n"
            (folder / _INSTANCES).write_text(instances)
            for name in drawn_files(args.out):
                (args.out / name).unlink(missing_ok=True)
            for path in sorted(folder.iterdir()):
                path.replace(args.out / path.name)
            text = "\n".join([*map(json.dumps, records), ""])
            atomic_write(args.out / _LISTS[args.name], text)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"{len(records)} of {args.count} were drawn, and {args.out} is unchanged"
        ) from None


def _coco_instances(
    records: Sequence[dict[str, Any]], size: tuple[int, int]
) -> dict[str, list[dict[str, Any]]]:
    """Return the boxes of all images as an instances file of COCO, which needs outlines too."""
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
