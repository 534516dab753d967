r"""Caption files in all common formats, and their training, validation and test splits.

Flickr token file    a.jpg#0<TAB>a dog                        a line for each caption
table                image,caption[,split]                    with a header; also ; | or tabs
JSON, JSON lines     {"image": "a.jpg", "caption": "a dog"}   or "captions": [...]
COCO                 {"images": [...], "annotations": [...]}
Karpathy             {"images": [{"filename", "split", "sentences": [{"raw"}]}]}
results              a.jpg<TAB>a dog                          as visattn caption prints them
"""

import csv
import hashlib
import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from visattn.data.captions.batch import CaptionSample
from visattn.data.source import Source
from visattn.io.safe_paths import file_below, relative_path
from visattn.io.safe_text import (
    decode_utf8,
    parse_json,
    printable_name,
    read_bytes_bounded,
    reading,
)
from visattn.results.kinds import Split

PathLike = str | os.PathLike[str]
_PHOTO_KEYS = (
    "file", "image", "file_name", "filename", "image_name", "image_path", "path", "photo", "id",
    "image_id",
)  # fmt: skip
_CAPTION_KEYS = ("caption", "captions", "comment", "text")
_NUMBERED = re.compile(r"(?P<name>[^\t]+)#[0-9]{1,9}")
_NO_CAPTION = {"", "nan", "none", "null"}  # written for a missing text


class CaptionEntry(NamedTuple):
    """A photo with its captions.

    `id` identifies the photo in predictions and scores, `file` is its path relative to the folder
    of photos, `split` the split that the file assigns.
    """

    id: str
    file: str
    captions: tuple[str, ...]
    split: str | None = None


def read_captions(path: PathLike) -> list[CaptionEntry]:
    r"""Read a captions file: photos in the order of the file, each with its captions.

    The format is detected from the content. Captions that are empty, `nan`, `none` or `null`, and
    photos without captions, are dropped with a warning.

    Args:
        path: UTF-8, at most 1 GiB.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the format is unknown (the message names the line or entry), two photos share
            an id, a photo is in two splits, or a path leaves the folder of photos.

    Example:
        >>> file = getfixture("tmp_path") / "captions.csv"
        >>> _ = file.write_text("image,caption\na.jpg,a dog\na.jpg,one dog\n")
        >>> read_captions(file)
        [CaptionEntry(id='a.jpg', file='a.jpg', captions=('a dog', 'one dog'), split=None)]
    """
    photos: dict[str, CaptionEntry] = {}
    dropped: list[str] = []
    for where, entry in _read_entries(Path(path)):
        with reading(path, where):
            first = photos.setdefault(entry.id, entry._replace(captions=()))
            if (entry.file, entry.split) != (first.file, first.split):
                raise ValueError(
                    "each photo needs its own id and one split, but "
                    f"{printable_name(entry.file)} (split {entry.split}) has the id of "
                    f"{printable_name(first.file)} (split {first.split})"
                )
            texts = [" ".join((text or "").split()) for text in entry.captions]
            kept = [text for text in texts if text.lower() not in _NO_CAPTION]
            " ".join((entry.id, *kept)).encode()  # an unpaired surrogate raises
        dropped += [where] * (len(texts) - len(kept))
        photos[entry.id] = first._replace(captions=(*first.captions, *kept))
    bare = [name for name, entry in photos.items() if not entry.captions]
    if len(bare) == len(photos):
        raise ValueError(f"{path} has no captions")
    for left, what in ((dropped, "empty captions"), (bare, "photos without a caption")):
        if left:
            warnings.warn(f"{path}: dropped {_summary(left, what)}", UserWarning, stacklevel=2)
    return [entry for entry in photos.values() if entry.captions]


class CaptionResults(NamedTuple):
    """Generated captions, one per image."""

    captions: dict[str, str]
    """Captions by image id, in the order of the file."""
    duplicates: tuple[str, ...] = ()
    """Images that occur more than once, with the same caption."""


def read_caption_results(path: PathLike) -> CaptionResults:
    r"""Return the captions of a results file, in the formats of `read_captions`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the format is unknown, or an image has two different captions.

    Example:
        >>> file = getfixture("tmp_path") / "results.txt"
        >>> _ = file.write_text("a.jpg\ta dog\nb.jpg\ta cat\n")
        >>> read_caption_results(file).captions
        {'a.jpg': 'a dog', 'b.jpg': 'a cat'}
    """
    captions: dict[str, str] = {}
    duplicates: dict[str, None] = {}
    for where, entry in _read_entries(Path(path)):
        with reading(path, where):
            [caption] = entry.captions
            if captions.setdefault(entry.id, caption).split() != caption.split():
                raise ValueError(f"{printable_name(entry.id)} must have one caption, got two")
            f"{entry.id} {caption}".encode()  # an unpaired surrogate raises
        if captions[entry.id] is not caption:
            duplicates[entry.id] = None
    return CaptionResults(captions, tuple(duplicates))


def _read_entries(path: Path) -> Iterator[tuple[str, CaptionEntry]]:
    """Yield the location in the file and the content of each entry."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    with reading(path):
        text = decode_utf8(read_bytes_bounded(path)).replace("\r\n", "\n").replace("\r", "\n")
        if not text.strip():
            raise ValueError("the file is empty")
        rows = _json_rows(text) if text.lstrip()[0] in "[{" else _table_rows(text)
        for where, row in rows:
            with reading(path, where):
                entry = _entry(row)
            yield where, entry


def _json_rows(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        document = parse_json(text)
    except ValueError:
        lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        parse_json(lines[0][1], lines[0][0])  # raises unless each line is a document
        yield from ((f"line {number}", parse_json(line, number)) for number, line in lines)
        return
    if isinstance(document, dict) and "annotations" in document:
        photos = {str(image["id"]): image["file_name"] for image in document["images"]}
        for number, annotation in enumerate(document["annotations"]):
            name = str(annotation["image_id"])
            row = {"file": photos[name], "id": name, "caption": annotation["caption"]}
            yield f"annotations[{number}]", row
    elif isinstance(document, dict) and "images" in document:
        for number, image in enumerate(document["images"]):
            # Karpathy's restval is the rest of COCO's validation photos, which is used for
            # training.
            yield (
                f"images[{number}]",
                {
                    "id": image["filename"],
                    "file": str(PurePosixPath(image.get("filepath") or "", image["filename"])),
                    "captions": [sentence["raw"] for sentence in image["sentences"]],
                    "split": "train" if image["split"] == "restval" else image["split"],
                },
            )
    else:
        entries = document if isinstance(document, list) else [document]
        yield from ((f"entry {number}", entry) for number, entry in enumerate(entries, 1))


def _table_rows(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    lines = text.split("\n")
    header = lines[0].lower()
    delimiter = max(",|\t;", key=header.count)
    names = [cell.strip(' "') for cell in header.split(delimiter)]
    fault = ""
    if {*names} & {*_PHOTO_KEYS} and {*names} & {*_CAPTION_KEYS}:
        # With tabs or bars, quotation marks are literal unless all cells are quoted.
        quotings = (
            (csv.QUOTE_MINIMAL, csv.QUOTE_NONE) if delimiter in "\t|" else (csv.QUOTE_MINIMAL,)
        )
        for quoting in quotings:
            reader = csv.reader(
                io.StringIO(text), delimiter=delimiter, quoting=quoting, strict=True
            )
            try:
                rows = [(f"line {reader.line_num}", [c.strip() for c in row]) for row in reader]
            except csv.Error as error:
                fault = f"line {reader.line_num}: {error}"
                continue
            wrong = [where for where, row in rows if any(row) and len(row) != len(names)]
            fault = f"{wrong[0]}: must have {len(names)} cells, like the header" if wrong else ""
            if not fault:
                filled = ((where, row) for where, row in rows[1:] if any(row))
                yield from ((where, dict(zip(names, row, strict=True))) for where, row in filled)
                return
        raise ValueError(f"{fault}; quote captions that contain the delimiter or quotation marks")
    pairs = [
        (f"line {n}", *line.partition("\t")) for n, line in enumerate(lines, 1) if line.strip()
    ]
    # File names may end in #1; it is the number of the caption only if all names do.
    numbered = all(_NUMBERED.fullmatch(name) for _, name, _, _ in pairs)
    for where, name, tab, caption in pairs:
        if not tab:
            raise ValueError(
                f"{where}: captions must be a table with a header (image and caption), JSON, or "
                "lines NAME<TAB>CAPTION"
            )
        yield where, {"file": name.rpartition("#")[0] if numbered else name, "caption": caption}


def _entry(row: Mapping[str, Any]) -> CaptionEntry:
    file = relative_path(str(_first(row, _PHOTO_KEYS)).strip())
    name = str(row.get("id", row.get("image_id", file))).strip()
    captions = _first(row, _CAPTION_KEYS)
    captions = captions if isinstance(captions, list) else [captions]
    return CaptionEntry(name or file, file, tuple(captions), row.get("split") or None)


def _first(row: Mapping[str, Any], keys: Sequence[str]) -> Any:
    for key in keys:
        if key in row:
            return row[key]
    raise KeyError(" or ".join(keys))


def entries_of_split(entries: Sequence[CaptionEntry], name: str) -> list[CaptionEntry]:
    """Return the entries of a split that the captions file assigns, or that a list file names.

    A list has one photo per line, with or without its suffix.

    Raises:
        ValueError: If there is no such split or file, or the list names a photo without captions.
    """
    if selected := [entry for entry in entries if entry.split == name]:
        return selected
    if not Path(name).is_file():
        assigned = sorted({entry.split for entry in entries if entry.split})
        raise ValueError(
            f"{name} must be a split of the captions file ({', '.join(assigned) or 'it has none'}) "
            "or a file that lists photos"
        )
    with reading(name):
        lines = decode_utf8(read_bytes_bounded(Path(name))).splitlines()
    listed = dict.fromkeys(line.strip() for line in lines if line.strip())
    stems: dict[str, CaptionEntry | None] = {}
    for entry in entries:  # without its suffix a name must be unambiguous
        stem = PurePosixPath(entry.file).stem
        stems[stem] = None if stem in stems else entry
    by_name = stems | {key: entry for entry in entries for key in (entry.id, entry.file)}
    found = [by_name.get(photo) for photo in listed]
    if missing := [photo for photo, entry in zip(listed, found, strict=True) if entry is None]:
        raise ValueError(f"{name}: {_summary(missing, 'names')} without captions; remove them")
    return [entry for entry in found if entry is not None]


def _summary(items: Sequence[str], noun: str) -> str:
    shown = ", ".join(map(printable_name, items[:3]))
    return f"{len(items):,} {noun} ({shown}{', ...' if len(items) > 3 else ''})"


@dataclass
class CaptionFile(Source):
    """Photos with captions, from files in any format of `read_captions`.

    A single file without splits is split at random, unless `train` and `val` are lists of photos.
    All captions of a photo are in the same split.

    Args:
        captions: A captions file, or a mapping from `train`, `val` and `test` to files.
        photos: Folder of the photos, or a mapping from splits to folders.
        train: The training photos: a split that the file assigns, or a list file.
        val: The validation photos; null for none.
        test: The test photos; by default the validation photos.
        val_fraction: Fraction of the photos for validation, if there are no splits.
        test_fraction: Fraction of the photos for test, if there are no splits.
        split_seed: Seed of the random split; adding photos moves few others to another split.

    Raises:
        FileNotFoundError: If a file or photos are missing.
        ValueError: If a file is invalid.
    """

    captions: str | dict[str, str]
    photos: str | dict[str, str]
    train: str = "train"
    val: str | None = "val"
    test: str | None = None
    val_fraction: float = 0.1
    test_fraction: float = 0.0
    split_seed: int = 0

    def __post_init__(self) -> None:
        names: dict[str, str | None] = {"train": self.train, "val": self.val, "test": self.test}
        files, folders = _by_split(self.captions), _by_split(self.photos)
        read = {file: read_captions(file) for file in dict.fromkeys(files.values())}
        parts: dict[str, Sequence[CaptionEntry]] = {}
        undivided = isinstance(self.captions, str) and self.train == "train"
        if undivided and not any(entry.split for entry in read[str(self.captions)]):
            parts = self._divide(read[str(self.captions)])
        else:
            for key, file in files.items():
                name = names[key]
                # A file per split is used as a whole, unless it assigns this split itself, as
                # Karpathy's files do, or the user names a list.
                own = isinstance(self.captions, dict) and name in (key, None)
                if own and not any(entry.split == name for entry in read[file]):
                    parts[key] = read[file]
                elif name is not None:
                    parts[key] = entries_of_split(read[file], name)
        self._splits = {key: _samples(part, folders[key]) for key, part in parts.items()}

    def __call__(self, split: Split) -> list[CaptionSample]:
        """Return the photos of a split."""
        validation = self._splits.get("val", [])
        return {"validation": validation, "test": self._splits.get("test", validation)}.get(
            split, self._splits["train"]
        )

    def _divide(self, entries: Sequence[CaptionEntry]) -> dict[str, Sequence[CaptionEntry]]:
        """Split photos at random, by a hash of their names."""
        content = {e.file: f"{self.split_seed} {e.file}".encode() for e in entries}
        order = sorted(entries, key=lambda e: hashlib.sha256(content[e.file]).hexdigest())
        counts = [
            max(1, round(fraction * len(order))) if fraction else 0
            for fraction in (self.val_fraction, self.test_fraction)
        ]
        if not 0 < sum(counts) < len(order):
            raise ValueError(
                f"val_fraction {self.val_fraction} and test_fraction {self.test_fraction} must "
                f"leave some of {len(order)} photos for training and for validation or test"
            )
        ends = {"val": order[: counts[0]], "test": order[counts[0] : sum(counts)]}
        chosen = {entry.file for part in ends.values() for entry in part}
        self.notes = (
            f"{self.captions} assigns no splits: {self.val_fraction:.0%} of the photos are for "
            "validation (val_fraction)",
        )
        parts = {"train": [entry for entry in entries if entry.file not in chosen], **ends}
        return {key: part for key, part in parts.items() if part}


def _by_split(value: str | dict[str, str]) -> dict[str, str]:
    return value if isinstance(value, dict) else dict.fromkeys(("train", "val", "test"), value)


def _samples(entries: Iterable[CaptionEntry], folder: str) -> list[CaptionSample]:
    """Return the photos of a folder with their captions; raise if files are missing or empty."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; set photos to the folder of the photos")
    samples: list[CaptionSample] = []
    missing: list[str] = []
    for entry in entries:
        path = file_below(folder, entry.file)
        missing += [] if path.is_file() and path.stat().st_size else [entry.file]
        samples.append(
            CaptionSample(entry.id, str(path), entry.captions, references=entry.captions)
        )
    if missing:
        raise FileNotFoundError(
            f"{_summary(missing, 'photos')} are missing or empty in {folder}; add them, or remove "
            "their captions"
        )
    return samples
