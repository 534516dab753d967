"""Draw the pictures of the README and the guides that bundled and small models make.

    python docs/pictures.py

`words.jpg`: a scene, and where a captioner looked for words of its caption; `alignment.jpg`: its
alignment matrix. The captioner is `scenes-captioner`, which comes with visattn; the scene is that
of the live page.
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
from visattn.results import Caption
from visattn.viz.alignment import alignment_figure
from visattn.viz.text import load_font

HERE = Path(__file__).resolve().parent
TILE, GAP, TEXT, COLUMNS = 448, 16, 92, 3
"""Pixels; README shows half of them, a phone a quarter, and its text is then 14 pixels high."""
INK, PAPER = (24, 26, 32), (255, 255, 255)
SHOWN = ("dotted", "blue", "star", "red", "ring")


def captioned() -> tuple[np.ndarray, Caption]:
    """Return the scene and its caption."""
    pixels = Scenes(SCENE + 1, size=SCENE_SIDE, split="test").image(SCENE)
    scene = pixels.permute(1, 2, 0).numpy()
    [caption] = va.caption(va.load("scenes-captioner"), scene)
    return scene, caption


def words(scene: np.ndarray, caption: Caption) -> Image.Image:
    """Return a scene and the maps of words of its caption, in rows."""
    vmax = caption.display_range()[1]
    maps = dict(zip(caption.words, caption.maps, strict=True))
    tiles = [("scene", scene)]
    tiles += [(w, np.asarray(va.overlay(scene, maps[w], vmax=vmax))[..., :3]) for w in SHOWN]
    step, rows = TILE + GAP, -(-len(tiles) // COLUMNS)
    picture = Image.new("RGB", (COLUMNS * step - GAP, rows * (TILE + TEXT)), PAPER)
    draw, font = ImageDraw.Draw(picture), load_font(56)
    for place, (text, tile) in enumerate(tiles):
        image = Image.fromarray(tile).resize((TILE, TILE), Image.Resampling.LANCZOS)
        left, top = place % COLUMNS * step, place // COLUMNS * (TILE + TEXT)
        picture.paste(image, (left, top))
        draw.text((left + TILE / 2, top + TILE + 62), text, fill=INK, font=font, anchor="ms")
    return picture


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the pictures."""
    parser = CommandParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR")
    folder = parser.parse_args(argv).out
    scene, caption = captioned()
    words(scene, caption).save(folder / "words.jpg", quality=82, optimize=True)
    alignment_figure(scene, caption, width=760).image.save(folder / "alignment.jpg", quality=86)
    return 0


if __name__ == "__main__":
    sys.exit(main())
