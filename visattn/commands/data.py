"""`visattn data`: a data set as files that anybody can open."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.folders import prepare_folder

if TYPE_CHECKING:  # numpy and torch are loaded when the command runs, not for its help
    from visattn.data.scenes.datasets import Scenes

_SCENES = """\
Draw scenes of coloured shapes. Each is DIR/ID.png and a line of DIR/captions.jsonl:
  id, file   the picture
  captions   five true captions
  objects    shape, colour, texture and size of each thing, and its box: left, top, right, bottom
             in pixels of the picture
  shows      for each word of each caption the number of the object it shows, or null"""


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = argparse.ArgumentParser(
        prog="visattn data", description="Write a data set as files to look at."
    )
    sets = made.add_subparsers(dest="name", metavar="NAME", required=True)
    scenes = sets.add_parser(
        "scenes",
        help="drawn shapes, with captions that can be checked",
        description=_SCENES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    scenes.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder for files")
    scenes.add_argument(
        "--split",
        choices=("train", "validation", "test", "novel"),
        default="test",
        help="which scenes; novel: colours on shapes that training never shows (test)",
    )
    scenes.add_argument("--count", type=int, default=8, help="how many (8)")
    scenes.add_argument("--size", type=int, default=64, help="height and width in pixels (64)")
    scenes.add_argument("--seed", type=int, default=0, help="another seed, other scenes (0)")
    for name in ("colours", "shapes", "textures"):
        scenes.add_argument(f"--{name}", nargs="+", metavar="WORD", help=f"only these {name}")
    scenes.add_argument("--fewest", type=int, default=2, help="fewest things on a picture (2)")
    scenes.add_argument("--most", type=int, default=4, help="most things on a picture (4)")
    return made


def main(argv: Sequence[str]) -> int:
    """Write a data set; return 0.

    Raises:
        ValueError: If a number makes no sense.
        OSError: If the folder cannot be written.
    """
    asked = parser().parse_args(argv)
    from visattn.data.scenes.datasets import Scenes
    from visattn.data.scenes.worlds import Kinds

    chosen = {
        name: tuple(words)
        for name in ("colours", "shapes", "textures")
        if (words := getattr(asked, name))
    }
    kinds = Kinds(**chosen, count=(asked.fewest, asked.most))
    scenes = Scenes(asked.count, size=asked.size, split=asked.split, seed=asked.seed, kinds=kinds)
    prepare_folder(asked.out)
    lines = [json.dumps(_write(scenes, index, asked.out)) for index in range(len(scenes))]
    (asked.out / "captions.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
    print(f"{asked.out}\t{len(scenes)} scenes of split {asked.split}, {asked.size} pixels a side")
    return 0


def _write(scenes: "Scenes", index: int, folder: Path) -> dict[str, Any]:
    """Write the picture of one scene and return what is to be known of it."""
    from PIL import Image

    sample = scenes[index]
    name = f"{sample.id}.png"
    Image.fromarray(scenes.picture(index).permute(1, 2, 0).numpy()).save(folder / name)
    objects = [
        {
            "shape": thing.shape,
            "colour": thing.colour,
            "texture": thing.texture,
            "size": thing.size,
            "box": [round(side * scenes.size, 2) for side in thing.box],
        }
        for thing in scenes.world(index).things
    ]
    shows = [telling.shows for telling in scenes.tellings(index)]
    return {
        "id": sample.id,
        "file": name,
        "captions": sample.captions,
        "objects": objects,
        "shows": shows,
    }
