"""`visattn glimpse`: what images show, and the way the eye took to find out."""

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.caption.gallery import INDEX, ImageIndex, earlier_entries
from visattn.commands.options.devices import move_to_device
from visattn.commands.options.dry_run import add_dry_run, foresee, told_images, told_model
from visattn.commands.options.folders import (
    file_names,
    png,
    prepare_folder,
    spare_images,
    write_whole,
)
from visattn.commands.options.images import input_images, readable, report, telling_how_far
from visattn.commands.options.output_streams import print_row
from visattn.commands.options.parser import CommandParser
from visattn.commands.options.progress import progress_bar
from visattn.commands.options.runs import add_model_source, model_file, trained_model
from visattn.commands.options.values import whole_number

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from visattn.data.images.reader import LoadedImage
    from visattn.models.ram.ram import RecurrentAttentionModel
    from visattn.pipelines.draw_scanpaths import Coverage
    from visattn.pipelines.scanpath import ScanPath

_NO_WEIGHTS = """\
--weights is missing: glimpses come from a trained model. Make one:
  in a few minutes    visattn fit --config configs/ram_scenes.yaml
  then                --run FOLDER, where it lies, or visattn export --run FOLDER"""

_EPILOG = """\
An image gives a line on stdout: its name, a tab, its class, a tab, the probability. With --out it
also gives
  DIR/NAME.png    the path of the eye on the image, what was seen, and what was thought
  DIR/NAME.gif    the same as it went on
  DIR/NAME.json   places, boxes in pixels of the image, and probabilities after each glimpse
and several images give DIR/coverage.png: where the eye was on all of them together, and
DIR/index.html, which leads to all of them. The boxes
show what the network really saw, the first glimpse included.
Images that cannot be read are passed over and listed at the end; the exit code is then 1."""

_SUFFIXES = (".png", ".gif", ".json")
_COVERAGE = "coverage"
_LARGEST_SEED = 2**31 - 1


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = CommandParser(
        prog="visattn glimpse",
        description="Say what images show, and show where a glimpse model looked to find out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "images", nargs="+", type=Path, metavar="IMAGE_OR_FOLDER", help="folders are searched"
    )
    add_model_source(made)
    made.add_argument("--out", type=Path, metavar="DIR", help="folder for images and numbers")
    made.add_argument(
        "--policy",
        choices=("mean", "sampled", "random", "raster", "saliency"),
        default="mean",
        help="who leads the eye: the model at its mean or sampled, or, to compare, nobody, a grid, "
        "what stands out (mean)",
    )
    made.add_argument(
        "--seed",
        type=whole_number(0, _LARGEST_SEED),
        default=0,
        help="of a random start and of what is sampled (0)",
    )
    made.add_argument(
        "--fit",
        choices=("crop", "squash", "pad"),
        default="crop",
        help="what the network sees of a long image: its middle, all of it out of shape, "
        "all of it with margins (crop)",
    )
    made.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (cpu)")
    made.add_argument("--strict", action="store_true", help="stop at the first unreadable image")
    add_dry_run(made)
    return made


def main(argv: Sequence[str]) -> int:
    """Look at images; return 0, or 1 if some of them could not be read or written.

    Raises:
        FileNotFoundError: If an image, a folder, the weights or the run do not exist.
        ValueError: If the weights are no glimpse model of ours, the device is not there, a file
            would overwrite an image, or, with `--strict`, an image cannot be read.
        OSError: If the output folder cannot be written.
    """
    options = parser()
    asked = options.parse_args(argv)
    if asked.weights is None and asked.run is None:
        options.error(_NO_WEIGHTS)
    model_file(asked)  # or says at once that there is no such run
    bad: list[str] = []
    names = file_names(input_images(asked.images, asked.out, bad), taken=_COVERAGE)
    files = [f"{name}{suffix}" for name in names.values() for suffix in _SUFFIXES]
    files += [f"{_COVERAGE}.png", INDEX] if len(names) > 1 else []
    if asked.out is not None:
        spare_images(asked.out, files, names)
        if len(names) > 1:
            earlier_entries(asked.out / INDEX)
    if asked.dry_run:
        model = _glimpse_model(asked)
        reads = [told_images([*names]), told_model(model, model_file(asked))]
        return foresee(reads, asked.out, files)
    if asked.out is not None:
        prepare_folder(asked.out)
    return _look_at_all(_glimpse_model(asked), asked, names, bad)


def _look_at_all(
    model: "RecurrentAttentionModel",
    asked: argparse.Namespace,
    names: Mapping[Path, str],
    bad: list[str],
) -> int:
    """Look at one image after the other; return the exit code."""
    from visattn.pipelines.draw_scanpaths import Coverage

    coverage = Coverage(f"{asked.policy} policy")
    index = None
    if asked.out is not None and len(names) > 1:
        index = ImageIndex(asked.out, "Glimpses")
    lost: list[str] = []
    done: list[Path] = []
    with (
        telling_how_far(done, len(names)),
        index or nullcontext(),
        progress_bar(len(names)) as progress,
    ):
        shown = progress.track(names) if progress else names
        for path, image in readable(shown, bad, strict=asked.strict):
            lost += _look(model, names[path], image, asked, coverage, index)
            done.append(path)
    if asked.out is not None and coverage.count > 1:
        write_whole(asked.out / f"{_COVERAGE}.png", png(coverage.panel()))
    return report(bad, lost, len(names))


def _glimpse_model(asked: argparse.Namespace) -> "RecurrentAttentionModel":
    """Return the model that is asked for, ready to look, on its device."""
    from visattn.models.ram.ram import RecurrentAttentionModel

    model, file = trained_model(asked)
    if not isinstance(model, RecurrentAttentionModel):
        kind = type(model).__name__
        raise ValueError(f"{file} holds a {kind}, which takes no glimpses")  # noqa: TRY004 (a file's fault)
    move_to_device(model, asked.device)
    return model


def _look(
    model: "RecurrentAttentionModel",
    name: str,
    image: "LoadedImage",
    asked: argparse.Namespace,
    coverage: "Coverage",
    index: ImageIndex | None,
) -> list[str]:
    """Look at one image, print its line and write its files; return what was not written."""
    from visattn.pipelines.draw_scanpaths import glimpse_animation, glimpse_overlay, glimpse_panel
    from visattn.pipelines.scanpath import glimpses

    [scan] = glimpses(model, image, policy=asked.policy, seed=asked.seed, fit=asked.fit)
    print_row(name, scan.answer, f"{scan.probability:.3f}")
    if asked.out is None:
        return []
    coverage.add(scan)
    panel = png(glimpse_panel(image, scan, name=Path(image.name).name))
    try:
        write_whole(asked.out / f"{name}.png", panel)
        write_whole(asked.out / f"{name}.gif", glimpse_animation(image, scan))
        write_whole(asked.out / f"{name}.json", _json(image, scan))
        if index is not None:
            said = f"{scan.answer}, {100 * scan.probability:.0f} %"
            index.add(name, f"{name}.png", said, [glimpse_overlay(image, scan)])
    except OSError as error:
        return [f"{image.name}: {error}"]
    return []


def _json(image: "LoadedImage", scan: "ScanPath") -> bytes:
    """Return a scan as JSON: all that is needed to draw it again."""
    geometry = scan.maps.geometry
    told = {
        "image": image.name,
        "class": scan.answer,
        "probability": scan.probability,
        "classes": list(scan.classes),
        **scan.maps.made,
        "glimpse": scan.patches.shape[-1],
        "scales": scan.patches.shape[1],
        "places": scan.places.tolist(),
        "boxes": scan.boxes.tolist(),
        "probabilities": scan.probabilities.tolist(),
        "geometry": None if geometry is None else geometry.to_dict(),
    }
    return json.dumps(told, allow_nan=False).encode() + b"\n"
