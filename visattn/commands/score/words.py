"""`visattn score words`: word maps of captioners against the boxes of phrases, with controls."""

import argparse
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.model_option import (
    add_model,
    is_transformers,
    load_trained_model,
    model_settings,
    move_to_device,
    resolve_model,
    transformers_directory,
)
from visattn.commands.options import (
    MODEL,
    RUN,
    TARGET,
    WORD_METHODS,
    CommandParser,
    add_options,
    add_resize_mode,
    count,
    refuse_without,
)
from visattn.commands.run import run_job
from visattn.commands.score.job import Row, ScoredImage, ScoreJob
from visattn.commands.streams import print_lines
from visattn.io.safe_text import print_message
from visattn.io.sources import Source
from visattn.results.kinds import TRANSFORMERS_WORD_METHODS

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from torch import nn

    from visattn.commands.score.evaluate_words import WordModel
    from visattn.data.phrases import PhrasedPhoto
    from visattn.images.reader import LoadedImage

_DESCRIPTION = """\
Score the maps of words: do they lie in the boxes of what the words name? Each score stands beside
its controls: the same words on another photo (swapped), and a model with random weights
(untrained). Uniform and central maps are always scored, too."""

_EPILOG = """\
DATA is one of
  scenes:NAME           drawn scenes of a config such as scenes_demo, or of FILE.yaml (test split)
  FILE.json[.gz]        phrases with boxes by photo, as for caption --phrase-boxes; needs --images
  DIRECTORY             Flickr30k Entities: holds Sentences/ and Annotations/; needs --images
  instances_NAME.json   COCO: categories named in the captions of captions_NAME.json beside it;
                        needs --images

  pointing   share of phrases whose maximum lies in a box
  mass       share of the map in the boxes of the phrase, mean over its words
  lift       mass minus the share of the area, which is what a uniform map has there
A map that is zero everywhere counts as uniform. With --out, DIR holds rows/ (the
scores of each photo; an interrupted run is resumed from them), rows.jsonl (a line per phrase) and
scores.json. Commands with --shard share the photos; each reports those that are finished."""

_SETTINGS = ("captions", "methods", "contrast", "prompt", "resize_mode")
_EXAMPLES = (
    "visattn score words --model scenes-captioner --data scenes:scenes_demo --limit 100",
    "visattn score words --model runs/mine/1 --data phrases.json --images photos --out scores",
)


def build_parser() -> CommandParser:
    """Return the argument parser of the subcommand."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn score words",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        add_help=False,
    )
    parser.set_defaults(parser=parser)  # for messages
    add_model(parser)
    data = parser.add_argument_group("data")
    parser.group(MODEL).add_argument(
        "--prompt", metavar="TEXT", help="text before the caption, for hf:DIRECTORY"
    )
    data.add_argument(
        "--data", required=True, metavar="DATA", help="captions with boxes, see below"
    )
    data.add_argument("--images", type=Path, metavar="DIR", help="folder of the photos of DATA")
    parser.group(TARGET).add_argument(
        "--methods",
        nargs="+",
        choices=(*WORD_METHODS, *TRANSFORMERS_WORD_METHODS),
        default=["attention"],
        metavar="METHOD",
        help=f"methods for words: {', '.join(WORD_METHODS)} (default: attention); for "
        f"hf:DIRECTORY also {', '.join(TRANSFORMERS_WORD_METHODS)}",
    )
    parser.group(TARGET).add_argument(
        "--contrast",
        metavar="TEXT",
        help="for hf:DIRECTORY: also score the attention divided by that behind this other prompt, "
        "as the method contrast",
    )
    parser.group(TARGET).add_argument(
        "--captions",
        choices=("reference", "generated"),
        default="reference",
        help="score the first reference caption of each photo, or the one that the model generates",
    )
    add_options(parser, "limit")
    parser.group(RUN).add_argument(
        "--control-limit",
        type=count,
        metavar="N",
        help="compute the controls for the first N photos that have phrases (default: all)",
    )
    add_resize_mode(parser, "crop")
    add_options(parser, "out", out={"help": "output folder for rows and scores"})
    add_options(parser, "strict", "shard", "overwrite")
    return parser


def score(args: argparse.Namespace) -> int:
    """Score word maps and print a table; return 0, or 1 if some photos could not be read."""
    resolve_model(args.parser, args, "--model is missing: name a captioner, as in visattn caption")
    if is_transformers(args.model):
        refuse_without(args.parser, args, ["resize_mode"], "a captioner of visattn")
    if args.data.startswith("scenes:"):
        refuse_without(args.parser, args, ["images"], "photos: scenes are drawn")
    if args.out is None:
        refuse_without(args.parser, args, ["overwrite"])
    return run_job(lambda args: WordScoreJob(args, list(islice(_photos(args), args.limit))), args)


class WordScoreJob(ScoreJob):
    """Scores of the maps of words against the boxes of phrases.

    Args:
        args: Options of `visattn score words`.
        photos: Photos with captions.
    """

    command = "score words"

    def __init__(self, args: argparse.Namespace, photos: "Sequence[PhrasedPhoto]") -> None:
        from visattn.pipelines.words.contrast import CONTRAST

        paths: list[Source] = [Path(photo.name) for photo in photos]
        self.photos = dict(zip(paths, photos, strict=True))
        # Each photo but the first has the one before it as a control.
        self.before = dict(zip(paths[1:], photos, strict=False))
        controlled = [photo.name for photo in photos if any(pair[1] for pair in photo.captions)]
        self.controlled = frozenset(controlled[: args.control_limit])
        methods = [*dict.fromkeys(args.methods), *([CONTRAST] if args.contrast else [])]
        names = {path: photo.name for path, photo in self.photos.items()}
        super().__init__(args, names, methods)

    def load(self) -> "tuple[nn.Module, str]":
        """Load the model, and make one of random weights."""
        self.model, self.weights = _word_model(self.args)
        self.untrained = self.model.untrained() if self.controlled else self.model
        return self.model.model, self.weights

    def settings(self) -> dict[str, Any]:
        """Return model and options."""
        options = {name: getattr(self.args, name) for name in _SETTINGS}
        return {**model_settings(self.args, self.weights), **options}

    def settings_of(self, name: str, stem: str) -> dict[str, Any]:
        """Return whether the controls of a photo are computed."""
        del stem
        return {"controls": self.image_of(name) in self.controlled}

    def digests(self, path: Source) -> dict[str, Any]:
        """Return a digest of a photo, its captions, and the photo before, which is a control."""
        photo = self.photos[path]
        control = self._control(path)
        digest = hashlib.sha256(repr(photo.captions).encode())
        digest.update(photo.load().pixels.tobytes())
        digest.update(b"" if control is None else control.pixels.tobytes())
        return {"content": digest.hexdigest()[:16]}

    def read(self, path: Source) -> ScoredImage:
        """Read a photo, and the one before as a control."""
        return ScoredImage(path, self.photos[path].load(), control=self._control(path))

    def _control(self, path: Source) -> "LoadedImage | None":
        """Return the photo before, if it is one of the controls and can be read."""
        from visattn.images.reader import ImageError

        before = self.before.get(path)
        if before is None or self.photos[path].name not in self.controlled:
            return None
        try:
            return before.load()
        except ImageError:  # reported for the photo itself
            return None

    def score(self, image: ScoredImage) -> list[Row]:
        """Return the scores of the phrases of a photo, and those of the controls."""
        from visattn.commands.score.evaluate_words import photo_rows

        photo = self.photos[image.path]
        pairs: dict[Any, Any] = {"none": (self.model, image.image)}
        if photo.name in self.controlled:
            if image.control is not None:
                pairs["swapped"] = self.model, image.control
            pairs["untrained"] = self.untrained, image.image
        generated = self.args.captions == "generated"
        rows = photo_rows(self.model, photo, image.image, self.methods, pairs, generated=generated)
        return [*rows]

    def report(self, rows: Sequence[Row], skipped: Sequence[str]) -> dict[str, Any]:
        """Print the table; return the means."""
        from visattn.commands.score.evaluate_words import mean_word_scores

        args = self.args
        means = mean_word_scores(rows)
        if not means:
            raise ValueError(
                f"no {args.captions} caption of {len(self.photos) - len(skipped)} photos has a "
                f"phrase with a box in {args.data}"
            )
        print_lines(_table(means, rows, args))
        return {
            "model": args.model,
            "data": args.data,
            "captions": args.captions,
            "limit": args.limit,
            "scores": means,
        }


def _word_model(args: argparse.Namespace) -> "tuple[WordModel, str]":
    from visattn.commands.score.evaluate_words import WordModel
    from visattn.models.captioning.captioner import Captioner
    from visattn.pipelines.caption_words import CaptionerWords

    if is_transformers(args.model):
        from visattn.pipelines.words.language_model import load_word_model
        from visattn.pipelines.words.methods import ReplayedWords

        directory = transformers_directory(args.model)
        model, processor, _ = load_word_model(directory)
        move_to_device(model, args.device)
        prompts = {"prompt": args.prompt, "contrast": args.contrast}
        read = partial(ReplayedWords.read, processor=processor, **prompts)
        return WordModel(model, read), str(directory)
    for name in ("prompt", "contrast"):
        if getattr(args, name) is not None:
            raise ValueError(
                f"--{name} belongs to --model hf:DIRECTORY; captioners of visattn take no prompt"
            )
    model, weights = load_trained_model(args, Captioner, "a captioner")
    return WordModel(model, partial(CaptionerWords.read, resize_mode=args.resize_mode)), weights


def _photos(args: argparse.Namespace) -> "Iterator[PhrasedPhoto]":
    """Yield the photos of DATA."""
    from visattn.data.phrases import annotated_photos, coco_photos, scene_photos

    kind, _, name = args.data.partition(":")
    if kind == "scenes" and name:
        yield from scene_photos(_scenes(name, args.limit))
        return
    if args.images is None:
        raise ValueError(f"--data {args.data} needs the folder of its photos, --images DIR")
    source = Path(args.data)
    if source.name.startswith("instances_"):
        captions = source.with_name(source.name.replace("instances_", "captions_", 1))
        yield from coco_photos(source, captions, args.images)
    else:
        yield from annotated_photos(source, args.images)


def _scenes(name: str, limit: int | None) -> Any:
    """Return the test scenes of a config."""
    import yaml

    from visattn.training.captioning.data import ScenesDataModule
    from visattn.training.cli.arguments import find_config

    path = Path(name) if name.endswith((".yaml", ".yml")) else find_config(name)
    data = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("data", {})
    if not str(data.get("class_path", "")).endswith("ScenesDataModule"):
        raise ValueError(f"{path} is no config of drawn scenes: its data must be ScenesDataModule")
    options = {**data.get("init_args", {}), **({} if limit is None else {"test": limit})}
    return ScenesDataModule(**options).scenes("test")


def _table(
    means: Mapping[str, Mapping[str, Mapping[str, float]]],
    rows: Sequence[Mapping[str, Any]],
    args: argparse.Namespace,
) -> Iterator[str]:
    """Yield the lines that are printed."""
    width = max(map(len, means)) + 2
    columns = "".join(f"{name:>9}" for name in ("pointing", "mass", "lift"))
    pair = "".join(f"{name:>9}" for name in ("pointing", "lift"))
    yield f"{'':{width}}{'':27}  |{'swapped':>18}  |{'untrained':>18}"
    yield f"{'':{width}}{columns}  |{pair}  |{pair}"
    for method, controls in means.items():
        own = controls.get("none", {})
        cells = "".join(_cell(own.get(name)) for name in ("pointing", "mass", "lift"))
        parts = [
            "".join(_cell(controls.get(control, {}).get(name)) for name in ("pointing", "lift"))
            for control in ("swapped", "untrained")
        ]
        yield f"{method:{width}}{cells}  |{parts[0]}  |{parts[1]}".rstrip()
    phrases = [row for row in rows if row["kind"] == "phrase"]
    images = len({row["image"] for row in phrases})
    count = int(next(iter(means.values()))["none"]["count"])
    yield ""
    yield f"{count:,} phrases of {images:,} {args.captions} captions, one per photo"
    if any(row["empty"] for row in phrases):
        for method, controls in means.items():
            if controls["none"]["empty"]:
                yield f"{method}: {controls['none']['empty']:.1%} of the maps are zero everywhere"
    if "swapped" not in next(iter(means.values())):
        print_message("swapped photos need at least two photos")


def _cell(value: float | None) -> str:
    return f"{'-':>9}" if value is None else f"{value:9.3f}"
