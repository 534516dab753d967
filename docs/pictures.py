"""Draw `words.jpg`, the picture of the README: a scene, and where a captioner looked for its words.

    python docs/pictures.py

The captioner is `scenes-captioner`, which comes with visattn; the scene is that of the live page.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from live_pages import SCENE, SCENE_SIDE
from PIL import Image, ImageDraw

import visattn as va
from visattn.commands.options import CommandParser
from visattn.data import Scenes
from visattn.viz.text import load_font

HERE = Path(__file__).resolve().parent
TILE, GAP, TEXT = 320, 12, 72
"""Pixels; the picture is less than half as wide on a page, and its text then 17 pixels high."""
INK, PAPER = (24, 26, 32), (255, 255, 255)
SHOWN = ("orange", "ring", "striped", "pink", "star")


def words() -> Image.Image:
    """Return a scene and the maps of words of its caption, in one row."""
    pixels = Scenes(SCENE + 1, size=SCENE_SIDE, split="test").image(SCENE)
    scene = pixels.permute(1, 2, 0).numpy()
    [caption] = va.caption(va.load("scenes-captioner"), scene)
    vmax = caption.display_range()[1]
    maps = dict(zip(caption.words, caption.maps, strict=True))
    tiles = [("scene", scene)]
    tiles += [(w, np.asarray(va.overlay(scene, maps[w], vmax=vmax))[..., :3]) for w in SHOWN]
    step = TILE + GAP
    picture = Image.new("RGB", (len(tiles) * step - GAP, TILE + TEXT), PAPER)
    draw, font = ImageDraw.Draw(picture), load_font(40)
    for place, (text, tile) in enumerate(tiles):
        image = Image.fromarray(tile).resize((TILE, TILE), Image.Resampling.LANCZOS)
        picture.paste(image, (place * step, 0))
        center = place * step + TILE / 2
        draw.text((center, TILE + 50), text, fill=INK, font=font, anchor="ms")
    return picture


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture."""
    parser = CommandParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "words.jpg")
    picture = words()
    picture.save(parser.parse_args(argv).out, quality=86, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
