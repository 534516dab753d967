"""`visattn data`: a data set as files that anybody can open."""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.data.shards import add_shards, shards_asked
from visattn.commands.options.dry_run import add_dry_run, foresee
from visattn.commands.options.folders import png, prepare_folder, write_whole
from visattn.commands.options.output_streams import print_row
from visattn.commands.options.parser import CommandParser
from visattn.commands.options.values import count, seed, whole_number

if TYPE_CHECKING:  # numpy and torch are loaded when the command runs, not for its help
    from jaxtyping import UInt8
    from torch import Tensor

    from visattn.data.scenes.dataset import Scenes
    from visattn.data.scenes.world import SceneObject

_SCENES = """\
Draw scenes of colored shapes. Each is DIR/ID.png and a line of DIR/captions.jsonl:
  id, file   the image
  captions   five true captions
  objects    shape, color, texture and size of each thing, and its box: left, top, right, bottom
             in pixels of the image
  shows      for each word of each caption the number of the object it shows, or null"""
_SHAPES = """\
Draw scenes of one colored shape each, as SingleObjectDataModule gives them to a classifier. Each is
DIR/ID.png and a line of DIR/shapes.jsonl:
  id, file   the image
  class      the shape
  object     as `visattn data scenes` says it"""
_DIGITS = """\
Lay MNIST digits on canvases, as ClutteredMNISTDataModule gives them to a classifier. Each is
DIR/ID.png and a line of DIR/digits.jsonl:
  id, file   the canvas
  class      the digit
  box        where the digit lies: left, top, right, bottom in pixels
  pieces     the boxes of the pieces of other digits, in the order in which they were laid"""
_LISTS = {"scenes": "captions.jsonl", "shapes": "shapes.jsonl", "digits": "digits.jsonl"}
_SIDES = whole_number(16, 4096)  # pixels; beyond, one scene takes gigabytes while it is drawn
_THINGS = whole_number(1, 100)
_COMBINATIONS = ("sum", "max", "overwrite", "blend")


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = CommandParser(prog="visattn data", description="Write a data set as files to look at.")
    sets = made.add_subparsers(dest="name", metavar="NAME", required=True)
    _add_scenes(sets)
    _add_shapes(sets)
    _add_digits(sets)
    add_shards(sets)
    return made


def main(argv: Sequence[str]) -> int:
    """Write a data set; return 0.

    Raises:
        ValueError: If a number makes no sense.
        FileNotFoundError: If the folder of the digits does not hold them.
        OSError: If the folder cannot be written.
    """
    asked = parser().parse_args(argv)
    write: dict[str, Callable[[argparse.Namespace], str]] = {
        "scenes": _write_scenes,
        "shapes": _write_shapes,
        "digits": _write_digits,
    }
    if asked.name == "shards":
        return shards_asked(asked)
    said = write[asked.name](asked)
    if asked.dry_run:
        images = [f"{asked.split}-{number}.png" for number in range(asked.count)]
        return foresee([said], asked.out, [*images, _LISTS[asked.name]])
    print_row(asked.out, said)
    return 0


def _add_scenes(sets: Any) -> None:
    scenes = _added(sets, "scenes", "drawn shapes, with captions that can be checked", _SCENES)
    scenes.add_argument(
        "--split",
        choices=("train", "validation", "test", "novel"),
        default="test",
        help="which scenes; novel: colors on shapes that training never shows (test)",
    )
    scenes.add_argument("--count", type=count, default=8, help="how many (8)")
    scenes.add_argument("--size", type=_SIDES, default=64, help="height and width in pixels (64)")
    scenes.add_argument("--seed", type=seed, default=0, help="another seed, other scenes (0)")
    for name in ("colors", "shapes", "textures"):
        scenes.add_argument(f"--{name}", nargs="+", metavar="WORD", help=f"only these {name}")
    scenes.add_argument("--fewest", type=_THINGS, default=2, help="fewest things on an image (2)")
    scenes.add_argument("--most", type=_THINGS, default=4, help="most things on an image (4)")


def _add_shapes(sets: Any) -> None:
    shapes = _added(sets, "shapes", "one drawn shape an image, to be told apart", _SHAPES)
    _add_split(shapes)
    shapes.add_argument("--size", type=_SIDES, default=64, help="height and width in pixels (64)")
    shapes.add_argument("--seed", type=seed, default=0, help="another seed, other scenes (0)")


def _add_digits(sets: Any) -> None:
    digits = _added(sets, "digits", "MNIST on larger canvases, alone or in clutter", _DIGITS)
    digits.add_argument(
        "--root", metavar="DIR", required=True, help="folder that holds MNIST/raw, for torchvision"
    )
    _add_split(digits)
    digits.add_argument(
        "--canvas",
        type=whole_number(28, 1024),
        nargs=2,
        metavar=("HEIGHT", "WIDTH"),
        default=(60, 60),
        help="in pixels (60 60)",
    )
    digits.add_argument(
        "--pieces", type=whole_number(0, 1000), default=0, help="pieces of other digits (0)"
    )
    digits.add_argument(
        "--piece", type=whole_number(1, 28), default=8, help="sides of a piece in pixels (8)"
    )
    digits.add_argument(
        "--combine", choices=_COMBINATIONS, default="sum", help="how pieces lie over things (sum)"
    )
    digits.add_argument(
        "--seed", type=seed, default=0, help="data.seed and data.split_seed of a config (0)"
    )


def _added(sets: Any, name: str, what: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of a data set."""
    own: argparse.ArgumentParser = sets.add_parser(
        name,
        help=what,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder for files")
    add_dry_run(own)
    return own


def _add_split(own: argparse.ArgumentParser) -> None:
    own.add_argument(
        "--split",
        choices=("train", "validation", "test"),
        default="test",
        help="which images (test)",
    )
    own.add_argument("--count", type=count, default=8, help="how many (8)")


def _write_scenes(asked: argparse.Namespace) -> str:
    from visattn.data.scenes.dataset import Scenes
    from visattn.data.scenes.world import Kinds

    chosen = {
        name: tuple(words)
        for name in ("colors", "shapes", "textures")
        if (words := getattr(asked, name))
    }
    kinds = Kinds(**chosen, count=(asked.fewest, asked.most))
    scenes = Scenes(asked.count, size=asked.size, split=asked.split, seed=asked.seed, kinds=kinds)
    said = f"{len(scenes)} scenes of split {asked.split}, {asked.size} pixels a side"
    if asked.dry_run:
        return said
    with _listed(asked) as lines:
        for index in range(len(scenes)):
            lines.append(_scene(scenes, index, asked.out))
    return said


def _scene(scenes: "Scenes", index: int, folder: Path) -> dict[str, Any]:
    """Write the image of one scene and return what is to be known of it."""
    sample = scenes[index]
    return {
        **_image(scenes.image(index), sample.id, folder),
        "captions": sample.captions,
        "objects": [_told(thing, scenes.size) for thing in scenes.world(index).things],
        "shows": [telling.shows for telling in scenes.tellings(index)],
    }


def _write_shapes(asked: argparse.Namespace) -> str:
    from visattn.data.scenes.dataset import Scenes
    from visattn.data.scenes.single_object import LONE, lone_things, lone_world

    scenes = Scenes(asked.count, size=asked.size, split=asked.split, seed=asked.seed, kinds=LONE)
    said = f"{len(scenes)} shapes of split {asked.split}, {asked.size} pixels a side"
    if asked.dry_run:
        return said
    with _listed(asked) as lines:
        for index, image in enumerate(lone_things(scenes).images):
            (thing,) = lone_world(scenes, index).things
            written = _image(image, f"{asked.split}-{index}", asked.out)
            lines.append({**written, "class": thing.shape, "object": _told(thing, asked.size)})
    return said


def _told(thing: "SceneObject", size: int) -> dict[str, Any]:
    """Return what is to be known of a thing."""
    return {
        "shape": thing.shape,
        "color": thing.color,
        "texture": thing.texture,
        "size": thing.size,
        "box": [round(side * size, 2) for side in thing.box],
    }


def _write_digits(asked: argparse.Namespace) -> str:
    from visattn.training.data.cluttered_mnist import ClutteredMNISTDataModule

    canvas: tuple[int, int] = (asked.canvas[0], asked.canvas[1])
    if not (Path(asked.root) / "MNIST" / "raw").is_dir():
        raise FileNotFoundError(
            f"{asked.root} does not hold MNIST/raw, as torchvision keeps it; choose another --root"
        )
    data = ClutteredMNISTDataModule(
        root=asked.root,
        canvas=canvas,
        pieces=asked.pieces,
        piece=asked.piece,
        combine=asked.combine,
        split_seed=asked.seed,
        seed=asked.seed,
    )
    laid = data.laid(asked.split)
    if not 1 <= asked.count <= len(laid):
        raise ValueError(f"count must be 1 to {len(laid)}, got {asked.count}")
    numbers = list(range(asked.count))
    (images, labels), placed = laid[numbers], laid.placements(numbers)
    said = f"{asked.count} of {len(laid)} canvases of split {asked.split}"
    said = f"{said}, {canvas[0]} x {canvas[1]} pixels, sha256 of all {laid.digest()}"
    if asked.dry_run:
        return said
    with _listed(asked) as lines:
        for number, image in enumerate(images):
            corners = placed.pieces[number].tolist()
            lines.append(
                {
                    **_image(image, f"{asked.split}-{number}", asked.out),
                    "class": data.classes[int(labels[number])],
                    "box": _box(placed.digits[number].tolist(), laid.digits.shape[2:]),
                    "pieces": [_box(corner, (asked.piece,) * 2) for corner in corners],
                }
            )
    return said


def _box(corner: Sequence[int], size: Sequence[int]) -> list[int]:
    """Return left, top, right and bottom of what starts at a corner: top, left."""
    (top, left), (height, width) = corner, size
    return [left, top, left + width, top + height]


def _image(image: "UInt8[Tensor, 'c y x']", name: str, folder: Path) -> dict[str, Any]:
    """Write an image and return its name and that of its file."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
    write_whole(folder / f"{name}.png", png(pixels))
    return {"id": name, "file": f"{name}.png"}


@contextlib.contextmanager
def _listed(asked: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Prepare the folder; what is put on the list is written, also when the work is interrupted."""
    prepare_folder(asked.out)
    lines: list[dict[str, Any]] = []
    try:
        yield lines
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{len(lines)} of {asked.count} are in {asked.out}") from None
    finally:
        if lines:
            text = "\n".join([*map(json.dumps, lines), ""])
            write_whole(asked.out / _LISTS[asked.name], text.encode())
