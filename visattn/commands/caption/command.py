"""`visattn caption`: caption images, with the attention of each word."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from visattn.commands.boxes import BOX_OPTIONS, add_boxes, check_boxes, without_folder
from visattn.commands.caption.job import BeamSearchJob
from visattn.commands.caption.language import (
    ONLY_TRANSFORMERS,
    TransformersJob,
    add_huggingface,
    check_model_options,
)
from visattn.commands.image_options import add_images, resolve_images
from visattn.commands.model_option import add_model, is_transformers, resolve_model
from visattn.commands.options import (
    BULK,
    DRAWING,
    OUTPUT,
    PHOTO_FIGURES,
    RUN,
    TARGET,
    WORD_METHODS,
    CommandParser,
    Mode,
    add_options,
    add_resize_mode,
    real_number,
    refuse_unused,
    refuse_without,
    whole_number,
)
from visattn.commands.run import run_job

_NO_MODEL = """\
--model is missing: captions need a trained model. Pass --model scenes-captioner, which comes
with visattn and knows drawn scenes only, or train one:
  in a few minutes     make demo, then --model runs/demo/model.safetensors
  with your config     visattn fit --config FILE.yaml, then --model FOLDER with its run directory
Or pass a vision-language model of transformers with --model hf:DIRECTORY."""

_EPILOG = """\
Prints a row per image: its name, a tab, its caption. With --out it also writes
  DIR/NAME.html   page for the browser: choose a word, see its attention on the image
  DIR/NAME.png    the image and one overlay per word, all on one color scale
  DIR/NAME.json   words, log-probabilities, gates, maps, and their geometry on the image
  DIR/NAME.npz    the same as NumPy arrays
  DIR/NAME.alignment.png  (with --alignment) words by columns of the image, below the image
  DIR/index.html  index of all pages
With --boxes FILE, FILE holds the boxes of each word: COCO JSON, whose categories are the words.
Each page is self-contained and works offline. An interrupted run resumes: files that exist and were
made in the same way are not written again.
Unreadable images are skipped and reported at the end; the exit code is then 1."""

_LARGEST_SEED = 2**31 - 1
_MAX_NUM_CAPTIONS = 5  # default for files, if the beam is at least as wide

_IN_FILES = (
    "num_captions",
    "alignment",
    "phrase_boxes",
    "method",
    "maps",
    "overwrite",
    *PHOTO_FIGURES,
)
_PHOTO = (
    "method",
    "alignment",
    "phrase_boxes",
    "shard",
    *BOX_OPTIONS,
    *PHOTO_FIGURES,
)
_CAPTIONER = (
    "weights",
    "beam_size",
    "resize_mode",
    "places",
    "seed",
    "maps",
    "length_penalty",
)
_MODES = {
    "photos": Mode("photos", (*_CAPTIONER, *_PHOTO, "num_captions", "autocast")),
    "transformers": Mode(
        "models of transformers (--model hf:DIRECTORY)",
        (*ONLY_TRANSFORMERS, *_PHOTO, "seed", "length_penalty"),
    ),
}


_EXAMPLES = (
    "visattn caption scenes --model scenes-captioner --out captions",
    "visattn caption photo.jpg --model hf:models/blip --max-new-tokens 40 --out captions",
    "visattn caption photos --model runs/mine/1 --shard 1/4 --out captions",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn caption",
        description="Caption images, and show where the model attends for each word.",
        epilog=_EPILOG,
    )
    add_images(parser)
    add_model(parser)
    add_options(parser, "out", out={"help": "output folder for pages, panels and arrays"})
    _add_search(parser)
    _add_places(parser)
    _add_maps(parser)
    _add_method(parser)
    parser.group(OUTPUT).add_argument(
        "--alignment",
        action="store_true",
        help="also write the alignment matrix: words by columns of the image, below the image",
    )
    parser.group(DRAWING).add_argument(
        "--phrase-boxes",
        type=Path,
        metavar="FILE",
        help="phrases with boxes (JSON, or JSON compressed with gzip): pages compare the attention "
        "of a phrase with its boxes",
    )
    add_boxes(parser)
    add_resize_mode(parser, "crop")
    text = "images per batch (default: 16; 1 for hf:DIRECTORY)"
    add_options(parser, "batch-size", batch_size={"default": None, "help": text})
    add_options(parser, *PHOTO_FIGURES, *BULK, "autocast", "dry-run")
    add_huggingface(parser)
    return parser


def _add_method(parser: CommandParser) -> None:
    """Add the choice of what the maps of words show."""
    parser.group(TARGET).add_argument(
        "--method",
        choices=WORD_METHODS,
        default="attention",
        metavar="METHOD",
        help=f"what the maps of words show: {', '.join(WORD_METHODS)} (default: attention)",
    )


def _add_search(parser: CommandParser) -> None:
    """Add the options of beam search."""
    beams = whole_number(1, 1000)
    group = parser.add_argument_group("beam search")
    group.add_argument("--beam-size", type=beams, default=5, help="width of the beam (default: 5)")
    group.add_argument(
        "--length-penalty",
        type=real_number(-10, 10),  # exponent of the caption length
        default=0.0,
        metavar="ALPHA",
        help="exponent of the length penalty; above 0 prefers longer captions (default: 0)",
    )
    group.add_argument(
        "--num-captions",
        type=beams,
        metavar="N",
        help=f"captions per image in the files (default: beam size, at most {_MAX_NUM_CAPTIONS})",
    )


def _add_places(parser: CommandParser) -> None:
    """Add the options of hard attention."""
    parser.group(TARGET).add_argument(
        "--places",
        choices=("argmax", "sample", "expectation"),
        help="for models with hard attention: read the most probable place before each word, a "
        "sampled one, or the expectation over all places (default: as configured, argmax)",
    )
    parser.group(RUN).add_argument(
        "--seed",
        type=whole_number(0, _LARGEST_SEED),
        default=0,
        help="seed of sampled places (default: 0)",
    )


def _add_maps(parser: CommandParser) -> None:
    """Add the choice of the maps of a transformer captioner."""
    parser.group(TARGET).add_argument(
        "--maps",
        type=_maps,
        metavar="MAPS",
        help="for transformer captioners: mean over the heads of the last layer (last), over all "
        "layers (mean), or one head, LAYER,HEAD from 0 (default: as configured, last)",
    )


def _maps(text: str) -> str:
    if not re.fullmatch(r"last|mean|[0-9]{1,4},[0-9]{1,4}", text):
        raise argparse.ArgumentTypeError(f"must be last, mean or LAYER,HEAD, got {text!r}")
    return text


def main(argv: Sequence[str]) -> int:
    """Caption images; return 0, or 1 if an image could not be read."""
    parser = build_parser()
    args = parser.parse_args(argv)
    resolve_model(parser, args, _NO_MODEL)
    foreign = is_transformers(args.model)
    resolve_images(parser, args)
    check_model_options(parser, args)
    refuse_unused(parser, args, "transformers" if foreign else "photos", _MODES)
    _check_options(parser, args)
    kind = TransformersJob if foreign else BeamSearchJob
    return run_job(kind, args, batch_size=args.batch_size or (1 if foreign else 16))


def _check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with a usage error if options contradict each other; fill in dependent defaults."""
    if args.out is None:
        refuse_without(parser, args, without_folder(args, _IN_FILES))
    check_boxes(parser, args)
    if is_transformers(args.model):
        return
    args.num_captions = args.num_captions or min(args.beam_size, _MAX_NUM_CAPTIONS)
    if args.num_captions > args.beam_size:
        parser.error(
            f"--num-captions {args.num_captions} needs a --beam-size at least as large, got "
            f"{args.beam_size}"
        )
