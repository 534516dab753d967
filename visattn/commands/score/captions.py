"""`visattn score captions`: BLEU, ROUGE-L, CIDEr-D and more of captions against references."""

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from tyro.conf import Positional, arg

from visattn.commands.arguments import File, Flag, Word
from visattn.commands.files import create_folder
from visattn.commands.loop import MADE, finished_records
from visattn.commands.streams import activity, print_lines, print_where
from visattn.io.atomic import atomic_write
from visattn.io.safe_text import print_message

if TYPE_CHECKING:  # imported when the command runs, not for its help
    from visattn.data.captions.files import CaptionEntry
    from visattn.metrics.captions import CaptionScores


def score_captions(
    results: Annotated[Positional[Path], arg(metavar="RESULTS")],
    references: Annotated[Positional[Path], arg(metavar="REFERENCES")],
    *,
    split: Annotated[Word, arg(metavar="FILE_OR_NAME")] = "",
    intersection: Flag = False,
    java: Flag = False,
    out: File = None,
) -> int:
    """Score the captions of a model against reference captions.

    BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D with the tokenizer and the values of the official COCO
    code, times 100 as in papers, and a signature line that says how they were computed. Images are
    matched by name; folders, suffixes and, for COCO, the text before the number may be missing on
    one side.

    Args:
        results: captions of a model: the folder of visattn caption, or a file with one caption per
            image: its printed rows, JSON of COCO results, JSON lines of id and caption, or a
            Flickr8k token file
        references: a Flickr token file, a CSV table image,caption, Karpathy's JSON, a COCO caption
            file, or JSON lines
        split: score these references only: a list of images, or a split named in REFERENCES
        intersection: score the images that are in both files; otherwise, differing files are an
            error
        java: also compute METEOR and SPICE; needs Java and pycocoevalcap
        out: JSON file for the unscaled scores of the corpus and of each image
    """
    from visattn.metrics.captions import caption_scores

    pairs, notes = _read_pairs(results, references, split, intersection=intersection)
    if out is not None:
        out = _check_output(out, results, references)
    with activity("scoring"):
        scores = caption_scores(pairs.captions, pairs.references, java=java)
    for note in (*notes, *scores.warnings):
        print_message(note)
    print_lines(_table(scores, pairs))
    if out is not None:
        _write_json(out, scores, notes)
        print_where(out)
    return 0


def _check_output(out: Path, *inputs: Path) -> Path:
    """Return the path of `--out` after checking that it is writable and replaces no input."""
    out = out.resolve()  # a link is kept, its target is written
    if out in [path.resolve() for path in inputs]:
        raise ValueError(f"--out {out} would replace an input file; choose another file")
    if out.exists() and not out.is_file():  # a folder or a device
        raise ValueError(f"--out {out} is not a regular file; choose another name")
    create_folder(out.parent)
    return out


def _read_pairs(
    results: Path, references: Path, split: str, *, intersection: bool
) -> "tuple[CaptionPairs, list[str]]":
    """Read both files; return captions and references of the same images, and notes."""
    from visattn.data.captions.files import (
        CaptionResults,
        entries_of_split,
        read_caption_results,
        read_captions,
    )

    folder = results.is_dir()
    known = CaptionResults(_read_folder(results)) if folder else read_caption_results(results)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entries = read_captions(references)
    if split:
        entries = entries_of_split(entries, split)
    pairs = match_captions(known.captions, entries, intersection=intersection)
    notes = [*(str(warning.message) for warning in caught), *pairs.notes]
    if count := len(known.duplicates):
        images = f"{count:,} image{'' if count == 1 else 's'}"
        notes.append(f"{results}: {images} more than once, with the same caption")
    return pairs, notes


def _read_folder(folder: Path) -> dict[str, str]:
    """Return the captions in the output folder of `visattn caption`, by photo.

    Raises:
        ValueError: If it has none.
    """
    records = finished_records(folder, "caption")
    captions = {str(record[MADE]["photo"]): record["caption"] for record in records}
    if not captions:
        raise ValueError(
            f"{folder} holds no results of visattn caption: give the folder of its --out, or a "
            "file of captions"
        )
    return captions


def _write_json(path: Path, scores: "CaptionScores", notes: Sequence[str]) -> None:
    record = {
        "scores": scores.corpus,
        "signature": scores.signature,
        "not_computed": scores.not_computed,
        "warnings": [*notes, *scores.warnings],
        "per_image": scores.per_image,
    }
    atomic_write(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def _table(scores: "CaptionScores", pairs: "CaptionPairs") -> Iterator[str]:
    """Yield the lines that are printed."""
    yield "  ".join(f"{name:>7}" for name in scores.corpus)
    yield "  ".join(f"{100 * score:7.1f}" for score in scores.corpus.values())
    yield ""
    counts = {len(references) for references in pairs.references.values()}
    least, most = min(counts), max(counts)
    per_image = f"{least}" if least == most else f"{least} to {most}"
    images = f"{len(pairs.captions):,} image{'' if len(pairs.captions) == 1 else 's'}"
    yield f"x 100; {images}, {per_image} reference{'' if most == 1 else 's'} each"
    for name, reason in scores.not_computed.items():
        yield f"{name}: not computed ({reason})"
    yield scores.signature


# ------------------------------------------------------------------ matching of images

_SUFFIX = re.compile(r"\.(?:jpe?g|png|webp|gif|bmp|tiff?)$", re.IGNORECASE)
_COCO_NAME = re.compile(r"(?:COCO_[a-z]+20[0-9]{2}_)?([0-9]{12})")


class CaptionPairs(NamedTuple):
    """Captions and references of the same images, by the image ids of the references.

    Example:
        >>> CaptionPairs({"a.jpg": "a dog"}, {"a.jpg": ("One dog .",)}).notes
        ()
    """

    captions: dict[str, str]
    references: dict[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    """Excluded images, in sentences."""


def match_captions(
    captions: Mapping[str, str], entries: "Sequence[CaptionEntry]", *, intersection: bool = False
) -> CaptionPairs:
    """Return captions and references of the same images.

    Names match without folder, without suffix, or, for COCO, by the number at the end of the name;
    a name that fits several images matches none.

    Args:
        captions: Captions by image name.
        entries: Reference captions of the images to score.
        intersection: Exclude images that are on one side only, instead of raising an error.

    Raises:
        ValueError: If two captions belong to one image, no image is on both sides, or, without
            `intersection`, an image is on one side only.

    Example:
        >>> from visattn.data.captions.files import CaptionEntry
        >>> entries = [CaptionEntry("790", "train/000000000790.jpg", ("A dog .",))]
        >>> match_captions({"000000000790": "a dog"}, entries).captions
        {'790': 'a dog'}
    """
    ids = _ids_by_name(entries)
    matches: dict[str, str] = {}  # id in the references: name in the results
    unmatched: list[str] = []
    for name in captions:
        image_id = next((ids[alias] for alias in _aliases(name) if alias in ids), None)
        if image_id is None:
            unmatched.append(name)
        elif matches.setdefault(image_id, name) != name:
            raise ValueError(
                f"{matches[image_id]} and {name} of the results are both the image {image_id} of "
                "the references; results have one caption per image"
            )
    without_caption = [entry.id for entry in entries if entry.id not in matches]
    if not matches:
        raise ValueError(
            "no image of the results is in the references: the results name "
            f"{_summarize(list(captions))}, the references "
            f"{_summarize([entry.id for entry in entries])}"
        )
    if (unmatched or without_caption) and not intersection:
        raise ValueError("; ".join(_mismatch_lines(unmatched, without_caption, entries)))
    chosen = [entry for entry in entries if entry.id in matches]
    return CaptionPairs(
        {entry.id: captions[matches[entry.id]] for entry in chosen},
        {entry.id: entry.captions for entry in chosen},
        tuple(f"excluded, {line}" for line in _differences(unmatched, without_caption)),
    )


def _ids_by_name(entries: "Sequence[CaptionEntry]") -> dict[str, str]:
    """Return the image id for each name; exact ids first, ambiguous names not at all."""
    candidates: dict[str, set[str]] = {}
    for entry in entries:
        for name in {*_aliases(entry.id), *_aliases(entry.file)}:
            candidates.setdefault(name, set()).add(entry.id)
    unique = {name: next(iter(ids)) for name, ids in candidates.items() if len(ids) == 1}
    return {**unique, **{entry.id: entry.id for entry in entries}}


def _aliases(name: str) -> Iterator[str]:
    """Yield the names that may refer to an image, the longest first."""
    yield name
    file_name = name.replace("\\", "/").rpartition("/")[2]
    yield file_name
    stem = _SUFFIX.sub("", file_name)
    yield stem
    if number := _COCO_NAME.fullmatch(stem):
        yield str(int(number[1]))


def _differences(unmatched: Sequence[str], without_caption: Sequence[str]) -> Iterator[str]:
    if unmatched:
        yield f"in the results without references: {_summarize(unmatched)}"
    if without_caption:
        yield f"in the references without a result: {_summarize(without_caption)}"


def _mismatch_lines(
    unmatched: Sequence[str], without_caption: Sequence[str], entries: "Sequence[CaptionEntry]"
) -> Iterator[str]:
    yield from _differences(unmatched, without_caption)
    if without_caption:
        splits = sorted({entry.split for entry in entries if entry.split})
        names = f" ({', '.join(splits)})" if len(splits) > 1 else ""
        yield f"--split selects references{names}"
    yield "--intersection scores only the images that are in both"


def _summarize(ids: Sequence[str]) -> str:
    count = f"{len(ids):,} image{'' if len(ids) == 1 else 's'}"
    return f"{count} ({', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''})"
