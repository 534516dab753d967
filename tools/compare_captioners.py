r"""Draw the attention of several captioners for the words of one caption, below each other.

    python tools/compare_captioners.py soft=M.safetensors hard=run/checkpoints/best.ckpt \
        --scene 3 --out captioners.png
    python tools/compare_captioners.py additive=A.safetensors dot=D.safetensors \
        --image row.png --words 6 5 0 4 3 --out scores.svg

All captioners read the same drawn test scene and one of its reference captions, or the same image
and caption (teacher forcing), so that the maps of a word stand in one column. An image is resized
to the input of each captioner. The frame is the box of the object that the word names, in a scene.
Each captioner has a panel as `visattn caption` writes it, with a color scale of its own.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from visattn.commands.options import CommandParser

if TYPE_CHECKING:
    import torch

    from visattn.models import Captioner
    from visattn.results import Caption
    from visattn.results.map_boxes import MapBoxes
    from visattn.viz.rendering import Figure

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # a checkout need not be installed
    sys.path.insert(0, str(ROOT))

SIDE = 300  # of a scene, in pixels
MARGINS, COLUMN = 72, 250  # of a panel and for each of its tiles, in pixels: one row of tiles


class Input(NamedTuple):
    """What the captioners read: the image at any size, and a caption."""

    read: "Callable[[tuple[int, int]], torch.Tensor]"
    words: Sequence[str]
    image: np.ndarray
    boxes: "MapBoxes | None" = None


def main(argv: Sequence[str] | None = None) -> int:
    """Write the figure and return 0; a usage error is reported and exits with 2."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        models = dict(map(_load, args.models))
        shown = _image(args) if args.image else _scene(args)
        captions = {
            name: read_caption(model, shown.read(model.encoder.img_size), shown)
            for name, model in models.items()
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        panels(captions, shown).save(args.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(args.out)
    return 0


def _scene(args: argparse.Namespace) -> "Input":
    """Return a drawn test scene, one of its captions, and the boxes of the objects it names."""
    from visattn.data import Scenes
    from visattn.data.regions.masks import mask_boxes
    from visattn.results.map_boxes import MapBox, MapBoxes

    scenes = Scenes(args.scene + 1, size=SIDE, split="test")
    caption = scenes.captions(args.scene)[args.caption]
    masks = mask_boxes(scenes.masks(args.scene).numpy())
    boxes = [
        MapBox(tuple(masks[index].tolist()), 1.0, 1.0, map_index=word)
        for word, index in enumerate(caption.objects)
        if index is not None
    ]

    def read(size: tuple[int, int]) -> "torch.Tensor":
        return Scenes(args.scene + 1, size=size[0], split="test").image(args.scene)

    image = read((SIDE, SIDE)).permute(1, 2, 0).numpy()
    count = len(caption.words)
    named = MapBoxes(tuple(boxes), 0.5, relative=True, image_size=(SIDE, SIDE), num_maps=count)
    return Input(read, caption.words, image, named)


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

    return Input(read, args.words, pixels)


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
    add("--out", type=Path, required=True, metavar="FILE", help="the figure: .png, .pdf, .svg")
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


def read_caption(model: "Captioner", image: "torch.Tensor", shown: Input) -> "Caption":
    """Return a caption as the captioner reads it: each word after the words before.

    Args:
        model: The captioner.
        image: RGB of its input size, (3, y, x).
        shown: The caption, and the image on which its maps lie.

    Raises:
        ValueError: If the vocabulary of the captioner lacks a word.
    """
    import torch

    from visattn.geometry import Geometry
    from visattn.results import AttentionMap, Caption
    from visattn.results.info import MapInfo
    from visattn.results.kinds import START

    words = tuple(shown.words)
    if unknown := sorted({*words} - {*model.words}):
        raise ValueError(f"the vocabulary of a captioner lacks {', '.join(unknown)}")
    tokens = torch.tensor([START, *map(model.words.index, words)])
    with torch.no_grad():
        features = model.encoder(image[None])
        output = model.teacher_force(features, tokens[None, :-1], torch.tensor([len(words)]))
    log_probs = output.logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0].tolist()
    maps = output.attention.weights.unflatten(-1, model.encoder.grid_size)
    height, width = shown.image.shape[:2]
    place = Geometry.identity((height, width)).resized(model.encoder.img_size)
    if model.encoder.placement is not None:
        place = place.with_placement(model.encoder.placement)
    info = MapInfo(places=model.places or "")
    return Caption(
        words,
        tuple(log_probs),
        tuple(output.attention.gate.expand(len(words)).tolist()),
        AttentionMap(maps, model.attention_site, "words", place, info, words),
        score=sum(log_probs),
        finished=True,
        gate_symbol=model.gate_symbol,
    )


def panels(captions: "Mapping[str, Caption]", shown: Input) -> "Figure":
    """Return the figure: a panel for each captioner, with its words in one row.

    Args:
        captions: What each captioner reads, by its name.
        shown: The image, and the boxes of its objects.
    """
    from visattn.viz import caption_figure
    from visattn.viz.rendering import stack_figures

    width = MARGINS + COLUMN * (len(shown.words) + 1)
    return stack_figures(
        [
            caption_figure(shown.image, caption, boxes=shown.boxes, note=name, width=width)
            for name, caption in captions.items()
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
