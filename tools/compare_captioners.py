r"""Draw the attention of several captioners for the words of one caption: a row for each captioner.

    python tools/compare_captioners.py soft=M.safetensors hard=run/checkpoints/best.ckpt \
        --scene 3 --out captioners.png
    python tools/compare_captioners.py additive=A.safetensors dot=D.safetensors \
        --image row.png --words 6 5 0 4 3 --out scores.png

All captioners read the same drawn test scene and one of its reference captions, or the same image
and caption (teacher forcing), so that the maps of a word stand in one column. An image is resized
to the input of each captioner. The frame is the box of the object that the word names, in a scene;
the percentage is the word's probability; 1-β or β is its gate, if the captioner has one. The maps
of a row share one color scale, whose upper end is the median of their maxima.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from visattn.commands.options import CommandParser

if TYPE_CHECKING:
    import torch

    from visattn.models import Captioner

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # a checkout need not be installed
    sys.path.insert(0, str(ROOT))

TILE, GAP, TEXT_HEIGHT, TITLE_HEIGHT = 150, 10, 26, 44  # in pixels


class WordRow(NamedTuple):
    """What a captioner gives for each word: map (t, y, x), log-probability, gate and its symbol.

    `smooth` says whether maps are interpolated; those of hard attention are drawn as cells.
    """

    maps: np.ndarray
    log_probs: list[float]
    gates: list[float]
    gate_symbol: str
    smooth: bool = True


class Input(NamedTuple):
    """What the captioners read: the image at any size, and a caption."""

    read: "Callable[[tuple[int, int]], torch.Tensor]"
    words: Sequence[str]
    image: np.ndarray
    boxes: Sequence[np.ndarray | None]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the figure and return 0; a usage error is reported and exits with 2."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        models = dict(map(_load, args.models))
        read, words, image, boxes = _image(args) if args.image else _scene(args)
        rows = {
            name: word_row(model, read(model.encoder.img_size), words)
            for name, model in models.items()
        }
        figure = word_rows(rows, image, words, boxes)
        from visattn.io.atomic import atomic_replace

        args.out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replace(args.out, suffix=args.out.suffix) as part:
            figure.save(part, quality=90)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(args.out)
    return 0


def _scene(args: argparse.Namespace) -> "Input":
    """Return a drawn test scene, one of its captions, and the boxes of the objects it names."""
    from visattn.data import Scenes
    from visattn.data.regions.masks import mask_boxes

    scenes = Scenes(args.scene + 1, size=2 * TILE, split="test")
    caption = scenes.captions(args.scene)[args.caption]
    masks = mask_boxes(scenes.masks(args.scene).numpy()) / 2  # boxes in pixels of a tile
    boxes = [None if index is None else masks[index] for index in caption.objects]

    def read(size: tuple[int, int]) -> "torch.Tensor":
        return Scenes(args.scene + 1, size=size[0], split="test").image(args.scene)

    return Input(read, caption.words, read((2 * TILE, 2 * TILE)).permute(1, 2, 0).numpy(), boxes)


def _image(args: argparse.Namespace) -> "Input":
    """Return the image of a file, and the given caption."""
    import torch

    from visattn.images import read_image
    from visattn.viz.heatmap import resize_image

    if not args.words:
        raise ValueError("--image needs the caption: add --words WORD...")
    pixels = read_image(args.image).pixels

    def read(size: tuple[int, int]) -> "torch.Tensor":
        return torch.from_numpy(resize_image(pixels, size).copy()).permute(2, 0, 1)

    return Input(read, args.words, pixels, [None] * len(args.words))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="compare_captioners.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("models", nargs="+", metavar="NAME=FILE", help="exported captioners, or checkpoints")
    add("--scene", type=int, default=0, metavar="N", help="index of the test scene (0)")
    add("--caption", type=int, default=0, choices=range(5), help="which of its captions (0)")
    add("--image", type=Path, metavar="FILE", help="an image, instead of a scene")
    add("--words", nargs="+", metavar="WORD", help="the caption of the image")
    add("--out", type=Path, required=True, metavar="FILE", help="the figure")
    return parser


def _load(pair: str) -> "tuple[str, Captioner]":
    import visattn as va
    from visattn.models import Captioner
    from visattn.models.saving.checkpoint import read_model

    name, _, file = pair.partition("=")
    if not file:
        raise ValueError(f"a captioner must be given as NAME=FILE, got {pair!r}")
    model = read_model(file) if file.endswith(".ckpt") else va.load(file)
    if not isinstance(model, Captioner):
        raise ValueError(f"{file} holds a {type(model).__name__}, which is not a captioner")  # noqa: TRY004 (the file is wrong)
    return name, model.eval()


def word_row(model: "Captioner", image: "torch.Tensor", words: Sequence[str]) -> WordRow:
    """Return what a captioner gives for each word of a caption when it reads the words before.

    Args:
        model: The captioner.
        image: RGB of its input size, (3, y, x).
        words: The caption.

    Raises:
        ValueError: If the vocabulary of the captioner lacks a word.
    """
    import torch

    from visattn.results.kinds import START

    unknown = sorted(set(words) - set(model.words))
    if unknown:
        raise ValueError(f"the vocabulary of a captioner lacks {', '.join(unknown)}")
    tokens = torch.tensor([START, *map(model.words.index, words)])
    with torch.no_grad():
        features = model.encoder(image[None])
        output = model.teacher_force(features, tokens[None, :-1], torch.tensor([len(words)]))
    log_probs = output.logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
    maps = output.attention.weights.unflatten(-1, model.encoder.grid_size)
    gates = output.attention.gate.expand(len(words)).tolist()
    smooth = model.places is None
    return WordRow(maps.numpy(), log_probs.tolist(), gates, model.gate_symbol, smooth)


def word_rows(
    rows: Mapping[str, WordRow],
    image: np.ndarray,
    words: Sequence[str],
    boxes: Sequence[np.ndarray | None],
) -> Image.Image:
    """Return the figure.

    Args:
        rows: Maps of each captioner, by its name.
        image: RGB. A tile has its proportions, and the area of a square of `TILE` pixels.
        words: The caption.
        boxes: Box of the object that each word names, in pixels of a tile, or None.
    """
    from visattn.viz.heatmap import overlay, resize_image, resize_map
    from visattn.viz.text import load_font, wrap_text

    aspect = math.sqrt(image.shape[1] / image.shape[0])
    height, width = round(TILE / aspect), round(TILE * aspect)

    def enlarge(values: np.ndarray) -> np.ndarray:
        if row.smooth:
            return resize_map(values, (height, width))
        rows, columns = values.shape
        return values[np.arange(height) * rows // height][:, np.arange(width) * columns // width]

    step, row_height = width + GAP, height + TEXT_HEIGHT + GAP
    tile = resize_image(image, (height, width))
    size = (GAP + (len(words) + 1) * step, TITLE_HEIGHT + len(rows) * row_height)
    page = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(page)
    for column, word in enumerate(("", *words)):
        pen.text((GAP + column * step, 12), word, "black", load_font(20))
    for number, (name, row) in enumerate(rows.items()):
        top = TITLE_HEIGHT + number * row_height
        page.paste(Image.fromarray(tile), (GAP, top))
        [shown] = wrap_text(name, load_font(17), width, 1)
        pen.text((GAP, top + height + 3), shown, "black", load_font(17))
        vmax = float(np.median(row.maps.max((1, 2))))
        for column, (values, box) in enumerate(zip(row.maps, boxes, strict=True)):
            left = GAP + (column + 1) * step
            drawn = overlay(tile, enlarge(values), vmax=vmax)
            page.paste(Image.fromarray(drawn), (left, top))
            if box is not None:
                offset = (left, top, left, top)
                pen.rectangle([*np.add(box, offset)], outline="white", width=2)
            text = f"{100 * math.exp(row.log_probs[column]):.0f} %"
            if min(row.gates) < 1:
                text += f"   {row.gate_symbol} {row.gates[column]:.2f}"
            pen.text((left, top + height + 4), text, "#555555", load_font(15))
    return page


if __name__ == "__main__":
    sys.exit(main())
