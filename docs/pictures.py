"""Draw the pictures of the README and the guides that bundled and small models make.

    python docs/pictures.py

`words.jpg`: a scene, and where a captioner looked for words of its caption; `alignment.jpg`: its
alignment matrix. The captioner is `scenes-captioner`, which comes with visattn; the scene is that
of the live page. `watermark.jpg`: what the example of `guides/audit.md`, which is executed, finds
beside the objects.
"""

import base64
import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from live_pages import SCENE, SCENE_SIDE
from PIL import Image, ImageDraw

import visattn as va
from visattn.commands.options import CommandParser
from visattn.data import Scenes
from visattn.pipelines.audit.report import AuditReport
from visattn.results import Caption
from visattn.viz.alignment import alignment_figure
from visattn.viz.text import load_font

HERE = Path(__file__).resolve().parent
TILE, GAP, TEXT, COLUMNS = 448, 16, 92, 3
"""Pixels; README shows half of them, a phone a quarter, and its text is then 14 pixels high."""
SMALL, CROPS = 200, 7
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


def audits() -> tuple[Sequence[np.ndarray], Sequence[AuditReport]]:
    """Return the photos of the example of the guide to audits, and its two reports."""
    page = (HERE / "guides" / "audit.md").read_text()
    [example] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(compile(example, "audit.md", "exec"), names)
    return names["pixels"], names["reports"]


def watermark(photos: Sequence[np.ndarray], reports: Sequence[AuditReport]) -> Image.Image:
    """Return circles of an audit, and the patches beside circles of each report."""
    rows: list[tuple[str, list[Image.Image]]] = [
        ("audited circles", [Image.fromarray(each) for each in photos[: 3 * CROPS : 3]])
    ]
    for when, report in zip(("trained with it", "trained without it"), reports, strict=True):
        for each in report.findings:
            if each.class_name == "circle" and each.is_beside_objects and each.effect:
                text = f"{when}: {each.status}, {each.effect.value:+.1f} nats"
                rows.append((text, [crop(url) for url in each.crops[:CROPS]]))
    step, line = SMALL + GAP, SMALL + TEXT
    picture = Image.new("RGB", (CROPS * step - GAP, len(rows) * line), PAPER)
    draw, font = ImageDraw.Draw(picture), load_font(40)
    for number, (text, tiles) in enumerate(rows):
        draw.text((0, number * line + 56), text, fill=INK, font=font, anchor="ls")
        for place, tile in enumerate(tiles):
            image = tile.resize((SMALL, SMALL), Image.Resampling.NEAREST)
            picture.paste(image, (place * step, number * line + TEXT - 16))
    return picture


def crop(url: str) -> Image.Image:
    """Return the image of a data URL."""
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the pictures."""
    parser = CommandParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=HERE, metavar="DIR")
    folder = parser.parse_args(argv).out
    scene, caption = captioned()
    words(scene, caption).save(folder / "words.jpg", quality=82, optimize=True)
    alignment_figure(scene, caption, width=760).image.save(folder / "alignment.jpg", quality=86)
    watermark(*audits()).save(folder / "watermark.jpg", quality=80, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
