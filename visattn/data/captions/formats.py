"""Parsers of caption formats: annotations with several captions per photo, results with one."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from visattn.io.safe_paths import check_relative_path
from visattn.io.safe_text import parse_json, printable_name, short_repr
from visattn.results.kinds import CaptionFormat

_PHOTO_KEYS = ("file", "image", "file_name", "filename", "image_name", "photo")
_CAPTION_KEYS = ("caption", "captions", "comment", "text")
_FLICKR = re.compile(r"(?P<file>[^\t]+)#(?P<number>[0-9]{1,9})\t(?P<caption>.*)", re.DOTALL)
_RESULT_KEYS = ("image_id", "id", "file", "image")
_FLICKR_NAME = re.compile(r"(?P<name>[^\t]+)#[0-9]{1,9}")
RESULT_FORMATS = (
    '[{"image_id", "caption"}, ...] as for COCO, {"id", "caption"} on each line, '
    "or lines name<TAB>caption"
)


class CaptionRecord(NamedTuple):
    """One caption of one photo, and its location in the file; None if the photo has none."""

    location: str
    id: str
    file: str
    caption: str | None
    split: str | None = None


class FormatRow(NamedTuple):
    """A format of caption files; a row of `FORMATS`."""

    expected: str
    """What a file has, for messages."""
    fits: Callable[[str, str], bool]
    """Whether a text has the format, of its first line and the whole text."""
    parse: Callable[[str], Iterator[CaptionRecord]]
    """Yields the captions; those of one photo keep their order."""


def detect_format(text: str) -> CaptionFormat:
    r"""Detect the format of a captions file from its content.

    Raises:
        ValueError: If no format matches.

    Example:
        >>> detect_format("a.jpg#0\tA dog .")
        'flickr'
        >>> detect_format("image,caption")
        'csv'
    """
    first = text.lstrip().partition("\n")[0]
    for name, row in FORMATS.items():
        if row.fits(first, text):
            return name
    formats = "; ".join(f"{name}: {row.expected}" for name, row in FORMATS.items())
    raise ValueError(f"first line {_shorten(first)}: unknown captions format; supported: {formats}")


def parse_captions(text: str, caption_format: CaptionFormat) -> Iterator[CaptionRecord]:
    r"""Yield the captions in a text; those of one photo keep their order.

    Raises:
        ValueError: At the first location that does not match the format.

    Example:
        >>> [record.caption for record in parse_captions("a.jpg#1\tso\na.jpg#0\tand", "flickr")]
        ['and', 'so']
    """
    return FORMATS[caption_format].parse(text)


def _parse_flickr(text: str) -> Iterator[CaptionRecord]:
    photos: dict[str, dict[int, CaptionRecord]] = {}
    for line_number, line in _lines(text):
        location = f"line {line_number}"
        match = _FLICKR.fullmatch(line)
        if match is None:
            raise ValueError(f"{location}: expected {_expected('flickr')}, got {_shorten(line)}")
        file = _check_path(match["file"], location)
        number = int(match["number"])
        numbered = photos.setdefault(file, {})
        if number in numbered:
            raise ValueError(
                f"{location}: {printable_name(file)}#{number} is already on "
                f"{numbered[number].location}"
            )
        numbered[number] = CaptionRecord(location, _basename(file), file, match["caption"])
    for numbered in photos.values():
        yield from (numbered[number] for number in sorted(numbered))


def _parse_csv(text: str) -> Iterator[CaptionRecord]:
    delimiter = _delimiter(text.lstrip().partition("\n")[0])
    rows = _csv_rows(text, delimiter)
    location, header = next(rows, ("line 1", []))
    columns = _columns(header)
    if columns is None:
        raise ValueError(
            f"{location}: expected {_expected('csv')}, got {_shorten(delimiter.join(header))}"
        )
    for location, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{location}: {len(row)} cells, but the header has {len(header)}; "
                "quote captions that contain the delimiter"
            )
        file, caption, *split = (row[column] for column in columns)
        name = _basename(_check_path(file, location))
        yield CaptionRecord(location, name, file, caption, "".join(split) or None)


def _csv_rows(text: str, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the nonempty rows; quotes are special only with commas and semicolons."""
    quoting = csv.QUOTE_MINIMAL if delimiter in ",;" else csv.QUOTE_NONE
    rows = csv.reader(io.StringIO(text), delimiter=delimiter, quoting=quoting, strict=True)
    while True:
        location = f"line {rows.line_num + 1}"
        try:
            row = [cell.strip() for cell in next(rows)]
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{location}: {error}; close each quote, and double quotes inside of a cell"
            ) from None
        if any(row):
            yield location, row


def _parse_karpathy(text: str) -> Iterator[CaptionRecord]:
    locations: dict[str, str] = {}
    for index, image in enumerate(_list(_load_json(text, "karpathy"), "images", "karpathy")):
        location = f"images[{index}]"
        name = _text(image, "filename", location, "karpathy")
        _check_unique(locations, name, location)
        folder = _text(image, "filepath", location, "karpathy") if image.get("filepath") else ""
        file = _check_path(f"{folder}/{name}" if folder else name, location)
        split = _text(image, "split", location, "karpathy")
        # Karpathy's name for the rest of COCO's validation photos, with which models are trained.
        split = "train" if split == "restval" else split
        sentences = _list(image, "sentences", "karpathy", location)
        captions = [_text(sentence, "raw", location, "karpathy") for sentence in sentences]
        for caption in captions or [None]:
            yield CaptionRecord(location, name, file, caption, split)


def _parse_coco(text: str) -> Iterator[CaptionRecord]:
    document = _load_json(text, "coco")
    photos: dict[str, CaptionRecord] = {}
    records: dict[str, list[CaptionRecord]] = {}
    locations: dict[str, str] = {}
    files: dict[str, str] = {}
    for index, image in enumerate(_list(document, "images", "coco")):
        location = f"images[{index}]"
        image_id = _text(image, "id", location, "coco")
        _check_unique(locations, image_id, location)
        file = _check_path(_text(image, "file_name", location, "coco"), location)
        _check_unique(files, file, location)
        photos[image_id] = CaptionRecord(location, image_id, file, None)
        records[image_id] = []
    locations = {}
    for index, annotation in enumerate(_list(document, "annotations", "coco")):
        location = f"annotations[{index}]"
        image_id = _text(annotation, "image_id", location, "coco")
        if image_id not in photos:
            raise ValueError(f"{location}: no image has the id {printable_name(image_id)}")
        if "id" in annotation:
            _check_unique(locations, _text(annotation, "id", location, "coco"), location)
        caption = _text(annotation, "caption", location, "coco")
        records[image_id].append(photos[image_id]._replace(location=location, caption=caption))
    for image_id, photo in photos.items():
        yield from records[image_id] or [photo]


def _parse_jsonl(text: str) -> Iterator[CaptionRecord]:
    locations: dict[str, str] = {}
    for line_number, line in _lines(text):
        location = f"line {line_number}"
        record = _load_json(line, "jsonl", line_number)
        keys = set(record) if isinstance(record, dict) else set[str]()
        photo_key = next((key for key in _PHOTO_KEYS if key in keys), None)
        caption_key = next((key for key in _CAPTION_KEYS if key in keys), None)
        if photo_key is None or caption_key is None:
            raise ValueError(f"{location}: expected {_expected('jsonl')}, got {_shorten(line)}")
        file = _check_path(_text(record, photo_key, location, "jsonl"), location)
        name = _text(record, "id", location, "jsonl") if "id" in keys else file
        split = _text(record, "split", location, "jsonl") if record.get("split") else None
        captions = record[caption_key]
        if isinstance(captions, list):
            _check_unique(locations, name, location)
        else:
            captions = [captions]
        if not all(isinstance(caption, str) for caption in captions):
            raise ValueError(
                f"{location}: {caption_key} must be a string or a list of strings, "
                f"got {short_repr(captions)}"
            )
        for caption in captions or [None]:
            yield CaptionRecord(location, name, file, caption, split)


FORMATS: Mapping[CaptionFormat, FormatRow] = {
    "jsonl": FormatRow(
        'on each line {"file", "captions": [...]} or {"image", "caption"}',
        lambda first, text: first[:1] in ("{", "[") and '"images"' not in text,
        _parse_jsonl,
    ),
    "coco": FormatRow(
        '{"images": [{"id", "file_name"}, ...], "annotations": [{"image_id", "caption"}, ...]}',
        lambda first, text: first[:1] in ("{", "[") and '"annotations"' in text,
        _parse_coco,
    ),
    "karpathy": FormatRow(
        '{"images": [{"filename", "split", "sentences": [{"raw"}, ...]}, ...]}',
        # What is left of JSON: it has images and no annotations.
        lambda first, _: first[:1] in ("{", "["),
        _parse_karpathy,
    ),
    "flickr": FormatRow(
        "name#number<TAB>caption",
        lambda first, _: _FLICKR.fullmatch(first) is not None,
        _parse_flickr,
    ),
    "csv": FormatRow(
        "a header with image, caption and perhaps split, then a row for each caption",
        lambda first, _: _columns(first.split(_delimiter(first))) is not None,
        _parse_csv,
    ),
}
"""Formats of annotations, in the order in which they are tried."""


def parse_results(text: str) -> Iterator[CaptionRecord]:
    r"""Yield the captions in a file of results, whose format is detected.

    Raises:
        ValueError: At the first location that does not match a format.

    Example:
        >>> [record.caption for record in parse_results("a.jpg\ta dog\nb.jpg\ta cat")]
        ['a dog', 'a cat']
    """
    start = text.lstrip()[:1]
    if start == "[":
        for number, entry in enumerate(parse_json(text), 1):
            yield _result(entry, f"entry {number}")
    elif start == "{":
        for number, line in _lines(text):
            yield _result(parse_json(line, number), f"line {number}")
    else:
        yield from _parse_result_table(text)


def _parse_result_table(text: str) -> Iterator[CaptionRecord]:
    rows = [(f"line {number}", *line.partition("\t")) for number, line in _lines(text)]
    # A file name may end in #1; only if all names do, it is the number of the caption.
    numbered = all(_FLICKR_NAME.fullmatch(name.strip()) for _, name, _, _ in rows)
    for location, name, tab, caption in rows:
        if not tab or not name.strip():
            raise ValueError(
                f"{location}: {short_repr(name)} has none of the formats {RESULT_FORMATS}"
            )
        image = name.strip().rpartition("#")[0] if numbered else name.strip()
        yield CaptionRecord(location, image, image, caption)


def _result(entry: Any, location: str) -> CaptionRecord:
    """Return an image and its caption; integer image ids become text."""
    fields = entry if isinstance(entry, dict) else {}
    image = next((fields[key] for key in _RESULT_KEYS if key in fields), None)
    caption = fields.get("caption")
    if isinstance(image, int) and not isinstance(image, bool):
        image = str(image)
    if not (isinstance(image, str) and image.strip() and isinstance(caption, str)):
        raise ValueError(
            f"{location}: {short_repr(entry)} has none of the formats {RESULT_FORMATS}"
        )
    return CaptionRecord(location, image.strip(), image.strip(), caption)


def _expected(caption_format: CaptionFormat) -> str:
    return FORMATS[caption_format].expected


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered nonempty lines, split at line feeds only: captions hold other separators."""
    return ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())


def _delimiter(header: str) -> str:
    return max(",|\t;", key=header.count)


def _columns(header: list[str]) -> tuple[int, ...] | None:
    """Return the columns of photo, caption and, if there is one, split."""
    names = [cell.strip(' "').lower() for cell in header]
    photo = next((names.index(name) for name in _PHOTO_KEYS if name in names), None)
    caption = next((names.index(name) for name in _CAPTION_KEYS if name in names), None)
    split = (names.index("split"),) if "split" in names else ()
    return None if photo is None or caption is None else (photo, caption, *split)


def _load_json(text: str, caption_format: CaptionFormat, line: int = 1) -> Any:
    try:
        return parse_json(text, line)
    except ValueError as error:
        raise ValueError(f"{error}; expected {_expected(caption_format)}") from None


def _list(
    record: Any, key: str, caption_format: CaptionFormat, location: str = "the file"
) -> list[dict[str, Any]]:
    entries = record.get(key) if isinstance(record, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(
            f"{location}: {key} must be a list of objects; expected {_expected(caption_format)}"
        )
    return entries


def _text(record: dict[str, Any], key: str, location: str, caption_format: CaptionFormat) -> str:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"{location}: {key} must be a string, got {short_repr(value)}; "
            f"expected {_expected(caption_format)}"
        )
    return str(value)


def _check_unique(locations: dict[str, str], name: str, location: str) -> None:
    if name in locations:
        raise ValueError(f"{location}: {printable_name(name)} is already at {locations[name]}")
    locations[name] = location


def _check_path(file: str, location: str) -> str:
    """Return a relative path after checking that it stays inside of the folder of photos."""
    try:
        check_relative_path(file)
    except ValueError as error:
        raise ValueError(f"{location}: {error}") from None
    return file


def _basename(file: str) -> str:
    return file.rpartition("/")[2]


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
