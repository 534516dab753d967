"""`visattn caption`: images into words, and where the network looked for each word."""

import argparse
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.caption.gallery import INDEX, SUFFIXES, Gallery, earlier_entries
from visattn.commands.options.devices import move_to_device
from visattn.commands.options.dry_run import add_dry_run, foresee, told_images, told_model
from visattn.commands.options.folders import file_names, spare_images
from visattn.commands.options.images import (
    PIXELS_PER_BATCH,
    batched,
    input_images,
    readable,
    report,
    telling_how_far,
)
from visattn.commands.options.output_streams import print_row
from visattn.commands.options.parser import CommandParser
from visattn.commands.options.progress import progress_bar
from visattn.commands.options.runs import add_model_source, model_file, trained_model
from visattn.commands.options.values import batch_size, real_number, whole_number

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from visattn.data.images.reader import LoadedImage
    from visattn.data.phrases.phrases import Phrase
    from visattn.models.captioner import Captioner

_NO_WEIGHTS = """\
--weights is missing: captions come from a trained model. Make one:
  in a few minutes    make demo, then --weights runs/demo/model.safetensors
  as you like it      visattn fit --config FILE.yaml, then --run FOLDER, where it lies"""

_EPILOG = """\
An image gives a line on stdout: its name, a tab, its caption. With --out it also gives
  DIR/NAME.html   a page for the browser: choose a word, see where the network looked
  DIR/NAME.png    the image and one overlay per word, all on one color scale
  DIR/NAME.json   words, log-probabilities, gates, maps, and where these lie on the image
  DIR/NAME.npz    the same as arrays of NumPy
and DIR/index.html leads to all pages. Each file is whole: open it from the disk, send it, keep it.
Images that cannot be read are passed over and listed at the end; the exit code is then 1."""

_BEST = 5  # captions that a page offers, if nobody says how many

_PIXELS_PER_BATCH = PIXELS_PER_BATCH


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = CommandParser(
        prog="visattn caption",
        description="Say what is on images, and show where the network looked for each word.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "images", nargs="+", type=Path, metavar="IMAGE_OR_FOLDER", help="folders are searched"
    )
    add_model_source(made)
    made.add_argument("--out", type=Path, metavar="DIR", help="folder for pages, panels, numbers")
    _add_search(made)
    made.add_argument("--gif", action="store_true", help="also write a GIF, word after word")
    made.add_argument(
        "--regions",
        type=Path,
        metavar="FILE",
        help="phrases with boxes (JSON, also as gzip), to show where a word should have looked",
    )
    made.add_argument(
        "--fit",
        choices=("crop", "squash", "pad"),
        default="crop",
        help="what the network sees of a long image: its middle, all of it out of shape, "
        "all of it with margins (crop)",
    )
    made.add_argument("--batch", type=batch_size, default=16, help="images at once (16)")
    made.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (cpu)")
    made.add_argument("--strict", action="store_true", help="stop at the first unreadable image")
    add_dry_run(made)
    return made


def _add_search(made: argparse.ArgumentParser) -> None:
    """Add how captions are searched for."""
    beams = whole_number(1, 1000)  # more have never helped, and take memory for each
    made.add_argument("--beam", type=beams, default=5, help="captions searched at once (5)")
    made.add_argument(
        "--length-penalty",
        type=real_number(-10, 10),  # an exponent of the caption's length
        default=0.0,
        metavar="ALPHA",
        help="above 0, longer captions are found; try 0.7 (0)",
    )
    made.add_argument(
        "--best", type=beams, metavar="N", help="captions per image in its files (up to 5)"
    )


def main(argv: Sequence[str]) -> int:
    """Caption images; return 0, or 1 if some of them could not be read.

    Raises:
        FileNotFoundError: If an image, a folder, the weights or the run do not exist.
        ValueError: If the weights are no captioner of ours, the device is not there, a file
            would overwrite an image or an index that is not ours, the regions are of other
            images, or, with `--strict`, an image cannot be read.
        OSError: If the output folder cannot be written.
    """
    options = parser()
    asked = options.parse_args(argv)
    if asked.weights is None and asked.run is None:
        options.error(_NO_WEIGHTS)
    _check(options, asked)
    bad: list[str] = []
    names = file_names(input_images(asked.images, asked.out, bad))
    if asked.dry_run:
        return _rehearse(asked, names)
    gallery = _gallery(asked, names)
    model = _captioner(asked)
    lost: list[str] = []
    done: list[str] = []
    with (
        telling_how_far(done, len(names)),
        gallery or nullcontext(),
        progress_bar(len(names)) as progress,
    ):
        shown = progress.track(names) if progress else names
        for batch in _batches(shown, names, asked.batch, bad, strict=asked.strict):
            lost += _caption(model, batch, asked, gallery)
            done += [name for name, _ in batch]
    return report(bad, lost, len(names))


def _check(options: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    """End with a usage error if options contradict each other; fill in what follows from others."""
    if asked.out is None:
        for name in ("best", "gif", "regions"):
            if getattr(asked, name):
                options.error(f"--{name} is about what is written; --out DIR says where")
    model_file(asked)  # or says at once that there is no such run
    asked.best = asked.best or min(asked.beam, _BEST)
    if asked.best > asked.beam:
        options.error(f"--best {asked.best} captions need a --beam as wide, it is {asked.beam}")


def _rehearse(asked: argparse.Namespace, names: dict[Path, str]) -> int:
    """Say what would be done, after all checks that precede it; return 0."""
    files: list[str] = []
    if asked.out is not None:
        endings = [end for end in SUFFIXES if asked.gif or end != ".gif"]
        files = [f"{name}{end}" for name in names.values() for end in endings] + [INDEX]
        spare_images(asked.out, files, names)
        earlier_entries(asked.out / INDEX)
        _regions(asked.regions, names)
    model = _captioner(asked)
    return foresee([told_images([*names]), told_model(model, model_file(asked))], asked.out, files)


def _gallery(asked: argparse.Namespace, names: dict[Path, str]) -> "Gallery | None":
    """Return the output folder, unless there is none or a file would take an image's place."""
    if asked.out is None:
        return None
    written = (f"{name}{suffix}" for name in names.values() for suffix in SUFFIXES)
    spare_images(asked.out, written, names)
    return Gallery(asked.out, moving=asked.gif, regions=_regions(asked.regions, names))


def _regions(file: Path | None, names: Iterable[Path]) -> "dict[str, tuple[Phrase, ...]]":
    """Return the phrases of the photos that a file knows by name, whoever said them."""
    if file is None:
        return {}
    from visattn.data.phrases.phrases import read_phrases

    told = read_phrases(file)
    known = {name: told[name] for name in {path.name for path in names} & told.keys()}
    if not known:
        raise ValueError(
            f"{file} knows none of the images by their file names; it has "
            f"{', '.join(itertools.islice(told, 3))} ..."
        )
    return {name: tuple(chain.from_iterable(said.values())) for name, said in known.items()}


def _captioner(asked: argparse.Namespace) -> "Captioner":
    """Return the model that is asked for, ready to look, on its device."""
    from visattn.models.captioner import Captioner

    model, file = trained_model(asked)
    if not isinstance(model, Captioner):
        kind = type(model).__name__
        raise ValueError(f"{file} holds a {kind}, which says no words")  # noqa: TRY004 (a file's fault)
    move_to_device(model, asked.device)
    return model


def _batches(
    paths: Iterable[Path], names: dict[Path, str], size: int, bad: list[str], *, strict: bool
) -> Iterator[list[tuple[str, "LoadedImage"]]]:
    """Read images and hand them on by the batch, noting in `bad` those that cannot be read."""
    named = ((names[path], image) for path, image in readable(paths, bad, strict=strict))
    return batched(named, size, pixels=_PIXELS_PER_BATCH)


def _caption(
    model: "Captioner",
    batch: list[tuple[str, "LoadedImage"]],
    asked: argparse.Namespace,
    gallery: "Gallery | None",
) -> list[str]:
    """Caption one batch, print its lines and write its files; return which files were not written.

    What goes wrong with the files of one image costs the others nothing.
    """
    from visattn.pipelines.captioning import caption as caption_images

    images = [image for _, image in batch]
    best = asked.best if gallery else 1
    captions = caption_images(
        model,
        images,
        beam=asked.beam,
        best=best,
        length_penalty=asked.length_penalty,
        fit=asked.fit,
    )
    lost: list[str] = []
    for (name, image), caption in zip(batch, captions, strict=True):
        print_row(name, caption.text)
        if gallery is not None:
            try:
                gallery.add(name, image, caption)
            except (OSError, ValueError) as error:
                lost.append(f"{image.name}: {error}")
    return lost
