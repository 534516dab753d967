"""`visattn glimpse`: classify images with a glimpse model, and draw its scan paths."""

import argparse
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from visattn.commands.image_options import add_images, resolve_images
from visattn.commands.index import Row, card_image
from visattn.commands.model_job import ModelJob
from visattn.commands.model_option import add_model, resolve_model
from visattn.commands.options import (
    BULK,
    FIGURES,
    RUN,
    TARGET,
    CommandParser,
    add_options,
    add_resize_mode,
    refuse_without,
    whole_number,
)
from visattn.commands.records import Part, Record
from visattn.commands.run import run_job
from visattn.results.cards import Card

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.images.reader import LoadedImage
    from visattn.results.values import ScanPath

_NO_MODEL = """\
--model is missing: glimpses need a trained model. Pass --model scenes-glimpses, which comes
with visattn and knows drawn shapes only, or train one:
  in a few minutes    visattn fit --config configs/ram_scenes.yaml
  then pass           --model FOLDER with its run directory, or visattn export --run FOLDER"""

_EPILOG = """\
Prints a row per image: its name, a tab, its class, a tab, the probability; of a model that reads
several objects all classes in order, and the probability of the sequence. With --out it also writes
  DIR/NAME.png    the scan path on the image, the glimpses, and the class probabilities
  DIR/NAME.json   locations, boxes in pixels of the image, and probabilities after each glimpse
and for several images DIR/coverage.png, the fixation density over all of them, and DIR/index.html,
an index of all files. Boxes show what the network received, the first glimpse included.
An interrupted run resumes: files that exist and were made in the same way are not written again.
Unreadable images are skipped and reported at the end; the exit code is then 1."""

_COVERAGE = "coverage"
_LARGEST_SEED = 2**31 - 1


_EXAMPLES = (
    "visattn glimpse shapes --model scenes-glimpses --out glimpses",
    "visattn glimpse shapes --model scenes-glimpses --policy saliency --out saliency",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn glimpse",
        description="Classify images with a glimpse model, and show where it looked.",
        epilog=_EPILOG,
    )
    add_images(parser)
    add_model(parser)
    add_options(parser, "out", out={"help": "output folder for figures and JSON"})
    parser.group(TARGET).add_argument(
        "--policy",
        choices=("greedy", "sampled", "random", "raster", "saliency"),
        default="greedy",
        help="glimpse locations: mean of the learned policy or samples of it; as baselines random "
        "locations, a grid, or the peaks of an Itti-Koch saliency map (default: greedy)",
    )
    parser.group(RUN).add_argument(
        "--seed",
        type=whole_number(0, _LARGEST_SEED),
        default=0,
        help="seed of random locations and samples (default: 0)",
    )
    add_resize_mode(parser, "crop")
    add_options(parser, "batch-size", *FIGURES, *BULK, "autocast", "dry-run")
    return parser


def main(argv: Sequence[str]) -> int:
    """Classify images; return 0, or 1 if some could not be read or some files not be written."""
    parser = build_parser()
    args = parser.parse_args(argv)
    resolve_model(parser, args, _NO_MODEL)
    resolve_images(parser, args)
    if args.out is None:
        refuse_without(parser, args, ("overwrite", *FIGURES))
    return run_job(GlimpseJob, args, batch_size=args.batch_size)


class GlimpseJob(ModelJob["ScanPath"]):
    """Classification of images by glimpses, each with its scan path."""

    command = "glimpse"
    title = "Glimpses"
    reserved = _COVERAGE
    work = "classifying"
    kind = "visattn.models.glimpses.ram:RecurrentAttentionModel"
    noun = "a glimpse model"
    options = ("policy", "seed", "resize_mode", "autocast")

    kinds = ("{}.png",)

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.has_coverage = args.out is not None and len(self.all_names) > 1

    def extra_files(self) -> list[str]:
        """Return the file of the coverage."""
        return [f"{_COVERAGE}.png"] if self.has_coverage else []

    def infer(self, images: "Sequence[LoadedImage]") -> "Sequence[ScanPath]":
        """Return the scan paths of images."""
        from visattn.pipelines.scanpath import glimpses

        options = {"policy": self.args.policy, "seed": self.args.seed}
        options["resize_mode"] = self.args.resize_mode
        return glimpses(self.model, images, batch_size=len(images), **options)

    def parts(self, name: str, image: "LoadedImage", result: "ScanPath") -> Iterable[Part]:
        """Return the scan path, and its panel."""
        from visattn.results.values import format_percent
        from visattn.viz.figures import png
        from visattn.viz.scanpaths import glimpse_figure, glimpse_overlay

        record = {
            "image": image.name,
            "class": result.prediction,
            "probability": result.probability,
        }
        record["labels"] = [label._asdict() for label in result.labels]
        record |= result.to_dict()
        if self.out is None:
            return [Part(name, record)]
        figure = glimpse_figure(image, result, width=self.args.width)
        panel = f"{name}.png"
        files = {panel: png(figure)}
        text = f"{record['class']}, {format_percent(record['probability'])}"
        thumbnail = card_image(glimpse_overlay(image, result))
        return [Part(name, record, files, Card(name, panel, text, thumbnail))]

    def rows(self, record: Record) -> Iterable[tuple[str, str]]:
        """Return class and probability."""
        return [(record["class"], f"{record['probability']:.3f}")]

    @staticmethod
    def table(record: Record) -> Iterable[Row]:
        """Return class and probability."""
        return [{name: record[name] for name in ("class", "probability")}]

    def finish(self, result: "ScanPath | None", records: Sequence[Record]) -> None:
        """Add an image to the coverage."""
        del records
        if result is None:
            self.resumed = True
        elif self.has_coverage:
            self.coverage.add(result)

    def run(self, *, batch_size: int = 1) -> int:
        """Process all images, and write the coverage of all that could be read."""
        from visattn.viz.figures import png
        from visattn.viz.scanpaths import Coverage

        self.coverage = Coverage()
        self.resumed = len(self.names) < len(self.all_names)
        code = super().run(batch_size=batch_size)
        if self.folder is not None and self.has_coverage and self.resumed:
            # Records do not hold what the network saw, of which the coverage is the mean.
            self.coverage = Coverage()
            exists = self.folder.exists
            missing = [name for name in self.all_names.values() if not exists(f"{name}.json")]
            if len(missing) <= len(self.skipped):  # else another command is at work
                self.overwrite = True
                for each in self._infer(self._batches(self.all_names, batch_size)):
                    self.coverage.add(each.result)
        if self.coverage.count > 1:
            figure = self.coverage.figure(width=self.args.width)
            self.write_shared(self.extra_files()[0], png(figure))
        return code
