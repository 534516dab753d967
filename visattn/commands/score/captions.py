"""`visattn score captions`: how good captions are, as the field measures it."""

import argparse
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.folders import prepare_folder, write_whole
from visattn.commands.options.output_streams import print_lines, print_remark
from visattn.commands.options.parser import CommandParser

if TYPE_CHECKING:  # loaded when the command runs, not for its help
    from visattn.metrics.captioning.scores import CaptionScores
import re
from collections.abc import Mapping
from typing import NamedTuple

from visattn.data.captions.files import CaptionEntry

_CAPTIONS = """\
Score the captions of a model against what people wrote: BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D as
the evaluation code of COCO computes them, with its tokens, on the raw texts."""

_EPILOG = """\
RESULTS has one caption per image and is one of
  [{"image_id": 37, "caption": "a dog"}, ...]   JSON as COCO wants it
  {"id": "a.jpg", "caption": "a dog"}           JSON, a line for each image
  a.jpg<TAB>a dog                               what visattn caption prints
  a.jpg#0<TAB>a dog                             what Flickr8k calls a token file
REFERENCES is a Flickr token file, a table image,caption, Karpathy's JSON, captions of COCO, or
lines of JSON. Images are the same if their names are; folders, endings and, for COCO, the words
before the number may be missing on one side.

Printed are scores x 100, as papers print them, and one line that says how they were computed;
with --out, FILE holds the plain scores, of all and of each image."""


def parser() -> argparse.ArgumentParser:
    """Return the options of the command, to be put below `visattn score`."""
    made = CommandParser(
        description=_CAPTIONS,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    made.add_argument("results", type=Path, metavar="RESULTS", help="captions of a model")
    made.add_argument("references", type=Path, metavar="REFERENCES", help="captions of people")
    made.add_argument(
        "--split",
        metavar="FILE_OR_NAME",
        help="only these references: a list of images, or a split that REFERENCES names",
    )
    made.add_argument(
        "--format",
        choices=("flickr", "csv", "karpathy", "coco", "jsonl"),
        help="form of REFERENCES (as it looks)",
    )
    made.add_argument(
        "--common",
        action="store_true",
        help="score the images that stand in both files, instead of refusing files that differ",
    )
    made.add_argument(
        "--java",
        action="store_true",
        help="also METEOR and SPICE, where Java and pycocoevalcap are installed",
    )
    made.add_argument("--out", type=Path, metavar="FILE", help="JSON of all that was found")
    return made


def score(asked: argparse.Namespace) -> int:
    """Score captions and print a table; return 0.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file cannot be understood, or the two are not of the same images.
        OSError: If `--out` cannot be written.
    """
    from visattn.metrics.captioning.scores import caption_scores

    pairs, remarks = _paired(asked)
    if asked.out is not None:
        _prepare(asked)
    scores = caption_scores(pairs.captions, pairs.references, java=asked.java)
    for remark in (*remarks, *scores.warnings):
        print_remark(remark)
    if asked.out is not None:
        _write(asked.out, scores, remarks)
    print_lines(_table(scores, pairs))
    return 0


def _prepare(asked: argparse.Namespace) -> None:
    """Find out before scoring whether `--out` can be written, and takes nobody's place."""
    asked.out = asked.out.resolve()  # a link stays, and what it leads to is written
    if asked.out in (asked.results.resolve(), asked.references.resolve()):
        raise ValueError(f"--out {asked.out} would replace what is scored; choose another file")
    if asked.out.exists() and not asked.out.is_file():  # a folder, but also /dev/null
        raise ValueError(f"--out {asked.out} is there and no file; choose another name")
    prepare_folder(asked.out.parent)


def _paired(asked: argparse.Namespace) -> "tuple[Pairs, list[str]]":
    """Read both files; return what is of the same images, and what is to be said of the rest."""
    from visattn.data.captions.files import in_split, of_split, read_captions, read_split
    from visattn.data.captions.predictions import read_results

    results = read_results(asked.results)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entries = read_captions(asked.references, format=asked.format)
    if asked.split is not None:
        a_list = Path(asked.split).is_file()
        entries = (
            of_split(entries, read_split(asked.split)) if a_list else in_split(entries, asked.split)
        )
    pairs = paired(results.captions, entries, common=asked.common)
    remarks = [*(str(warning.message) for warning in caught), *pairs.left]
    if count := len(results.repeated):
        images = f"{count:,} image{'' if count == 1 else 's'}"
        remarks.append(f"{asked.results}: {images} more than once, with the same caption")
    return pairs, remarks


def _write(path: Path, scores: "CaptionScores", remarks: Sequence[str]) -> None:
    found = {
        "scores": scores.corpus,
        "signature": scores.signature,
        "not_computed": scores.not_computed,
        "warnings": [*remarks, *scores.warnings],
        "per_image": scores.per_image,
    }
    write_whole(path, (json.dumps(found, indent=1, allow_nan=False) + "\n").encode())


def _table(scores: "CaptionScores", pairs: "Pairs") -> Iterator[str]:
    """Yield the lines that are printed."""
    yield "  ".join(f"{name:>7}" for name in scores.corpus)
    yield "  ".join(f"{100 * score:7.1f}" for score in scores.corpus.values())
    yield ""
    counts = {len(told) for told in pairs.references.values()}
    least, most = min(counts), max(counts)
    each = f"{least}" if least == most else f"{least} to {most}"
    images = f"{len(pairs.captions):,} image{'' if len(pairs.captions) == 1 else 's'}"
    yield f"x 100; {images}, {each} reference{'' if most == 1 else 's'} each"
    for name, reason in scores.not_computed.items():
        yield f"{name}: not computed ({reason})"
    yield scores.signature


_ENDING = re.compile(r"\.(?:jpe?g|png|webp|gif|bmp|tiff?)$", re.IGNORECASE)
_COCO = re.compile(r"(?:COCO_[a-z]+20[0-9]{2}_)?([0-9]{12})")


class Pairs(NamedTuple):
    """Captions of a model and of people, by the ids of the latter.

    Example:
        >>> Pairs({"a.jpg": "a dog"}, {"a.jpg": ("One dog .",)}).left
        ()
    """

    captions: dict[str, str]
    references: dict[str, tuple[str, ...]]
    left: tuple[str, ...] = ()
    """What was left out, in sentences."""


def paired(
    captions: Mapping[str, str], entries: Sequence[CaptionEntry], *, common: bool = False
) -> Pairs:
    """Return captions and references of the same images.

    Names are the same if they are so without folder, without ending, or, for COCO, as the number
    that the name ends with; a name that would fit several images fits none.

    Args:
        captions: By image.
        entries: What people said, of the images that are to be scored.
        common: Leave out what stands on one side only, and say so, instead of refusing.

    Raises:
        ValueError: If two captions are of one image, no image is on both sides, or, unless
            `common`, one is on one side only.

    Example:
        >>> told = [CaptionEntry("790", "train/000000000790.jpg", ("A dog .",))]
        >>> paired({"000000000790": "a dog"}, told).captions
        {'790': 'a dog'}
    """
    owners = _owners(entries)
    found: dict[str, str] = {}  # image of the references: image of the results
    unknown: list[str] = []
    for name in captions:
        owner = next((owners[known] for known in _names(name) if known in owners), None)
        if owner is None:
            unknown.append(name)
        elif found.setdefault(owner, name) != name:
            raise ValueError(
                f"{found[owner]} and {name} of the results are both the image {owner} of the "
                "references; results have one caption per image"
            )
    silent = [entry.id for entry in entries if entry.id not in found]
    if not found:
        raise ValueError(
            "no image of the results is in the references: they name theirs "
            f"{_some(list(captions))} against {_some([entry.id for entry in entries])}"
        )
    if (unknown or silent) and not common:
        raise ValueError("; ".join(_refusals(unknown, silent, entries)))
    chosen = [entry for entry in entries if entry.id in found]
    return Pairs(
        {entry.id: captions[found[entry.id]] for entry in chosen},
        {entry.id: entry.captions for entry in chosen},
        tuple(f"left out, {line}" for line in _differences(unknown, silent)),
    )


def _owners(entries: Sequence[CaptionEntry]) -> dict[str, str]:
    """Return the image that each name means; exact ids first, shared names not at all."""
    owners: dict[str, set[str]] = {}
    for entry in entries:
        for name in {*_names(entry.id), *_names(entry.file)}:
            owners.setdefault(name, set()).add(entry.id)
    known = {name: next(iter(ids)) for name, ids in owners.items() if len(ids) == 1}
    return {**known, **{entry.id: entry.id for entry in entries}}


def _names(name: str) -> Iterator[str]:
    """Yield what an image may be called, the fullest name first."""
    yield name
    last = name.replace("\\", "/").rpartition("/")[2]
    yield last
    stem = _ENDING.sub("", last)
    yield stem
    if number := _COCO.fullmatch(stem):
        yield str(int(number[1]))


def _differences(unknown: Sequence[str], silent: Sequence[str]) -> Iterator[str]:
    if unknown:
        yield f"in the results without references: {_some(unknown)}"
    if silent:
        yield f"in the references without a result: {_some(silent)}"


def _refusals(
    unknown: Sequence[str], silent: Sequence[str], entries: Sequence[CaptionEntry]
) -> Iterator[str]:
    yield from _differences(unknown, silent)
    if silent:
        splits = sorted({entry.split for entry in entries if entry.split})
        known = f" ({', '.join(splits)})" if len(splits) > 1 else ""
        yield f"--split chooses among the references{known}"
    yield "--common scores only the images that both hold"


def _some(ids: Sequence[str]) -> str:
    count = f"{len(ids):,} image{'' if len(ids) == 1 else 's'}"
    return f"{count} ({', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''})"
