"""`visattn score captions`: how good captions are, as the field measures it."""

import argparse
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.folders import prepare_folder, write_whole
from visattn.commands.parsers import CommandParser
from visattn.commands.streams import print_lines, print_remark

if TYPE_CHECKING:  # loaded when the command runs, not for its help
    from visattn.commands.pairings import Pairs
    from visattn.metrics.caption_metrics import CaptionScores

_CAPTIONS = """\
Score the captions of a model against what people wrote: BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D as
the evaluation code of COCO computes them, with its tokens, on the raw texts."""

_EPILOG = """\
RESULTS has one caption per picture and is one of
  [{"image_id": 37, "caption": "a dog"}, ...]   JSON as COCO wants it
  {"id": "a.jpg", "caption": "a dog"}           JSON, a line for each picture
  a.jpg<TAB>a dog                               what visattn caption prints
  a.jpg#0<TAB>a dog                             what Flickr8k calls a token file
REFERENCES is a Flickr token file, a table image,caption, Karpathy's JSON, captions of COCO, or
lines of JSON. Pictures are the same if their names are; folders, endings and, for COCO, the words
before the number may be missing on one side.

Printed are scores x 100, as papers print them, and one line that says how they were computed;
with --out, FILE holds the plain scores, of all and of each picture."""


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
        help="only these references: a list of pictures, or a split that REFERENCES names",
    )
    made.add_argument(
        "--format",
        choices=("flickr", "csv", "karpathy", "coco", "jsonl"),
        help="form of REFERENCES (as it looks)",
    )
    made.add_argument(
        "--common",
        action="store_true",
        help="score the pictures that stand in both files, instead of refusing files that differ",
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
        ValueError: If a file cannot be understood, or the two are not of the same pictures.
        OSError: If `--out` cannot be written.
    """
    from visattn.metrics.caption_metrics import caption_scores

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
    """Read both files; return what is of the same pictures, and what is to be said of the rest."""
    from visattn.commands.pairings import paired
    from visattn.data.caption_files import in_split, of_split, read_captions, read_split
    from visattn.data.result_files import read_results

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
        pictures = f"{count:,} picture{'' if count == 1 else 's'}"
        remarks.append(f"{asked.results}: {pictures} more than once, with the same caption")
    return pairs, remarks


def _write(path: Path, scores: "CaptionScores", remarks: Sequence[str]) -> None:
    found = {
        "scores": scores.corpus,
        "signature": scores.signature,
        "not_computed": scores.not_computed,
        "warnings": [*remarks, *scores.warnings],
        "per_picture": scores.per_picture,
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
    pictures = f"{len(pairs.captions):,} picture{'' if len(pairs.captions) == 1 else 's'}"
    yield f"x 100; {pictures}, {each} reference{'' if most == 1 else 's'} each"
    for name, reason in scores.not_computed.items():
        yield f"{name}: not computed ({reason})"
    yield scores.signature
