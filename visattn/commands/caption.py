"""`visattn caption`: pictures into words, and where the network looked for each word."""

import argparse
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.folders import prepare_folder

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from rich.progress import Progress

    from visattn.data.pictures import Picture
    from visattn.models.captioners import Captioner
    from visattn.seeing import Caption

_NO_WEIGHTS = """\
--weights is missing: captions come from a trained model. Make one:
  in a few minutes    make demo, then --weights runs/demo/model.safetensors
  as you like it      visattn fit --config FILE.yaml
                      visattn export CHECKPOINT --out M.safetensors"""

_EPILOG = """\
A picture gives a line on stdout: its name, a tab, its caption. With --out it also gives
DIR/NAME.png, the picture and one overlay per word, all on one colour scale, and DIR/NAME.json,
the words with their log-probabilities, gates and maps, and where the maps lie on the picture.
Pictures that cannot be read are passed over and listed at the end; the exit code is then 1."""

# Pictures wait decoded until their batch is full: at most about this many pixels at a time.
_PIXELS_PER_BATCH = 64_000_000


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = argparse.ArgumentParser(
        prog="visattn caption",
        description="Say what is on pictures, and show where the network looked for each word.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "pictures", nargs="+", type=Path, metavar="PICTURE_OR_FOLDER", help="folders are searched"
    )
    made.add_argument(
        "--weights", type=Path, metavar="FILE", help="model, as visattn export writes it"
    )
    made.add_argument("--out", type=Path, metavar="DIR", help="folder for panels and JSON")
    made.add_argument("--beam", type=_positive, default=5, help="captions searched at once (5)")
    made.add_argument(
        "--fit",
        choices=("crop", "squash", "pad"),
        default="crop",
        help="what the network sees of a long picture: its middle, all of it out of shape, "
        "all of it with margins (crop)",
    )
    made.add_argument("--batch", type=_positive, default=16, help="pictures at once (16)")
    made.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (cpu)")
    made.add_argument("--strict", action="store_true", help="stop at the first unreadable picture")
    return made


def main(argv: Sequence[str]) -> int:
    """Caption pictures; return 0, or 1 if some of them could not be read.

    Raises:
        FileNotFoundError: If a picture, a folder or the weights do not exist.
        ValueError: If the weights are no captioner of ours, the device is not there, a panel
            would overwrite a picture, or, with `--strict`, a picture cannot be read.
        OSError: If the output folder cannot be written.
    """
    options = parser()
    asked = options.parse_args(argv)
    if asked.weights is None:
        options.error(_NO_WEIGHTS)
    from visattn.data.pictures import find_pictures

    names = _names(find_pictures(asked.pictures))
    if asked.out is not None:
        _prepare(asked.out, names)
    model = _captioner(asked.weights, asked.device)
    bad: list[str] = []
    with _progress(len(names)) as progress:
        shown = progress.track(names) if progress else names
        for batch in _batches(shown, names, asked.batch, bad, strict=asked.strict):
            _caption(model, batch, asked)
    for reason in bad:
        print(f"visattn: skipped {reason}", file=sys.stderr)
    if bad:
        print(f"visattn: {len(bad)} of {len(names)} pictures skipped", file=sys.stderr)
    return 1 if bad else 0


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return value


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """Return a name for each picture, without suffix, that no other has.

    Pictures of the same name are told apart by their folders; where these do not help (a.jpg
    beside a.png, or names that only differ in capitals), by a number.
    """
    whole = {path: path.absolute() for path in paths}  # not resolved: links keep their own names
    names = {path: _plain(place.stem) for path, place in whole.items()}
    for depth in range(1, max(len(place.parts) for place in whole.values())):
        for path in _shared(names):
            folders = [part for part in whole[path].parts[1:-1] if part != ".."][-depth:]
            names[path] = "_".join(map(_plain, [*folders, whole[path].stem]))
    taken: set[str] = set()
    for path, name in names.items():
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        names[path] = next(
            new for new in itertools.chain([name], numbered) if new.casefold() not in taken
        )
        taken.add(names[path].casefold())
    return names


def _shared(names: dict[Path, str]) -> list[Path]:
    """Return the paths whose name is not theirs alone; capitals make no difference."""
    counts = Counter(name.casefold() for name in names.values())
    return [path for path, name in names.items() if counts[name.casefold()] > 1]


def _plain(part: str) -> str:
    """Return a part of a path as it can be printed on one line, in any terminal."""
    return "".join(letter if letter.isprintable() else "_" for letter in part)


def _prepare(folder: Path, names: dict[Path, str]) -> None:
    """Make the output folder, unless a panel would take the place of a picture."""
    pictures = {path.resolve() for path in names}
    for path, name in names.items():
        if (folder / f"{name}.png").resolve() in pictures:
            raise ValueError(
                f"--out {folder} would put a panel in place of the picture {name}.png; "
                f"choose another folder (this is about {path})"
            )
    prepare_folder(folder)


def _captioner(weights: Path, device: str) -> "Captioner":
    """Return the model in `weights`, ready to look, on `device`."""
    import torch

    from visattn.models.captioners import Captioner
    from visattn.seeing import load

    model = load(weights)
    if not isinstance(model, Captioner):
        kind = type(model).__name__
        raise ValueError(f"{weights} holds a {kind}, which says no words")  # noqa: TRY004 (a file's fault)
    try:
        return model.eval().to(torch.device(device))
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device {device} cannot be used here: {reason}") from error


def _progress(count: int) -> "Progress | nullcontext[None]":
    """Return a bar on stderr; none where nobody sees it or the captions themselves go by."""
    if count < 2 or not sys.stderr.isatty() or sys.stdout.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True, redirect_stdout=False)


def _batches(
    paths: Iterable[Path], names: dict[Path, str], size: int, bad: list[str], *, strict: bool
) -> Iterator[list[tuple[str, "Picture"]]]:
    """Read pictures and hand them on by the batch, noting in `bad` those that cannot be read."""
    from visattn.data.pictures import PictureError, read_picture

    batch: list[tuple[str, Picture]] = []
    for path in paths:
        try:
            batch.append((names[path], read_picture(path)))
        except PictureError as error:
            if strict:
                raise
            bad.append(str(error))
        pixels = sum(picture.size[0] * picture.size[1] for _, picture in batch)
        if len(batch) == size or pixels >= _PIXELS_PER_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _caption(
    model: "Captioner", batch: list[tuple[str, "Picture"]], asked: argparse.Namespace
) -> None:
    """Caption one batch, print its lines and write its files."""
    from visattn.seeing import caption as caption_pictures

    pictures = [picture for _, picture in batch]
    captions = caption_pictures(model, pictures, beam=asked.beam, fit=asked.fit)
    for (name, picture), caption in zip(batch, captions, strict=True):
        if asked.out is not None:
            _write(f"{asked.out / name}", picture, caption)
        print(f"{name}\t{caption.text}", flush=True)


def _write(stem: str, picture: "Picture", caption: "Caption") -> None:
    """Write the panel and the numbers of one picture."""
    from PIL import Image

    from visattn.seeing import panel

    Image.fromarray(panel(picture, caption)).save(f"{stem}.png")
    text = json.dumps(_numbers(picture, caption), allow_nan=False)
    Path(f"{stem}.json").write_text(text + "\n", encoding="utf-8")


def _numbers(picture: "Picture", caption: "Caption") -> dict[str, Any]:
    """Return a caption as JSON holds it; each map is a grid of shares that sum to one."""
    maps = caption.maps
    return {
        "picture": picture.name,
        "caption": caption.text,
        "tokens": list(caption.words),
        "log_probabilities": list(caption.log_probabilities),
        "gates": list(caption.gates),
        "finished": caption.finished,
        "score": caption.score,
        "maps": maps.values.tolist(),
        "geometry": None if maps.geometry is None else maps.geometry.to_dict(),
    }
