"""Five ways to write captions down, each read into the same remarks."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from visattn.io.safe_paths import check_name
from visattn.io.safe_text import named, parsed_json, shown

Format = Literal["flickr", "csv", "karpathy", "coco", "jsonl"]
EXPECTED: Mapping[Format, str] = {
    "flickr": "name#number<TAB>caption",
    "csv": "a header with image and caption, then a row for each caption",
    "karpathy": '{"images": [{"filename", "split", "sentences": [{"raw"}, ...]}, ...]}',
    "coco": '{"images": [{"id", "file_name"}, ...], "annotations": [{"image_id", "caption"}, ...]}',
    "jsonl": 'on each line {"file", "captions": [...]} or {"image", "caption"}',
}
_PHOTO = ("file", "image", "file_name", "filename", "image_name")
_CAPTION = ("caption", "captions", "comment", "text")
_FLICKR = re.compile(r"(?P<file>[^\t]+)#(?P<number>[0-9]{1,9})\t(?P<caption>.*)", re.DOTALL)


class Remark(NamedTuple):
    """One caption of one photo, and where it stands; without a caption nothing is said."""

    place: str
    id: str
    file: str
    caption: str | None
    split: str | None = None


def recognized(text: str) -> Format:
    r"""Return the format of a text, by what it holds.

    Raises:
        ValueError: If it is none of them.

    Example:
        >>> recognized("a.jpg#0\tA dog .")
        'flickr'
        >>> recognized("image,caption")
        'csv'
    """
    first = text.lstrip().partition("\n")[0]
    if first[:1] in ("{", "["):
        if '"images"' not in text:
            return "jsonl"
        return "coco" if '"annotations"' in text else "karpathy"
    if _FLICKR.fullmatch(first):
        return "flickr"
    if _columns(first.split(_mark(first))) is not None:
        return "csv"
    known = "; ".join(f"{name}: {look}" for name, look in EXPECTED.items())
    raise ValueError(f"first line {_short(first)}: no known form of captions; known are {known}")


def remarks(text: str, form: Format) -> Iterator[Remark]:
    r"""Yield what a text says of photos; captions of one photo keep their order.

    Raises:
        ValueError: At the first place that does not have this form.

    Example:
        >>> [remark.caption for remark in remarks("a.jpg#1\tso\na.jpg#0\tand", "flickr")]
        ['and', 'so']
    """
    return _READERS[form](text)


def _flickr(text: str) -> Iterator[Remark]:
    photos: dict[str, dict[int, Remark]] = {}
    for number, line in _lines(text):
        place = f"line {number}"
        match = _FLICKR.fullmatch(line)
        if match is None:
            raise ValueError(f"{place}: expected {EXPECTED['flickr']}, got {_short(line)}")
        file, count = _inside(match["file"], place), int(match["number"])
        said = photos.setdefault(file, {})
        if count in said:
            raise ValueError(
                f"{place}: {named(file)}#{count} stands already on {said[count].place}"
            )
        said[count] = Remark(place, _name(file), file, match["caption"])
    for said in photos.values():
        yield from (said[number] for number in sorted(said))


def _csv(text: str) -> Iterator[Remark]:
    mark = _mark(text.lstrip().partition("\n")[0])
    rows = _rows(text, mark)
    place, header = next(rows, ("line 1", []))
    columns = _columns(header)
    if columns is None:
        raise ValueError(f"{place}: expected {EXPECTED['csv']}, got {_short(mark.join(header))}")
    for place, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{place}: {len(row)} cells below a header of {len(header)}; "
                "a caption with a comma must stand in quotes"
            )
        file, caption = (row[column] for column in columns)
        yield Remark(place, _name(_inside(file, place)), file, caption)


def _rows(text: str, mark: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows that hold something; quotes mean something where commas part the cells."""
    quoting = csv.QUOTE_MINIMAL if mark in ",;" else csv.QUOTE_NONE
    rows = csv.reader(io.StringIO(text), delimiter=mark, quoting=quoting, strict=True)
    while True:
        place = f"line {rows.line_num + 1}"
        try:
            row = [cell.strip() for cell in next(rows)]
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(
                f"{place}: {error}; a quote that is opened must be closed, and one inside doubled"
            ) from None
        if any(row):
            yield place, row


def _karpathy(text: str) -> Iterator[Remark]:
    seen: dict[str, str] = {}
    for index, image in enumerate(_list(_loaded(text, "karpathy"), "images", "karpathy")):
        place = f"images[{index}]"
        name = _text(image, "filename", place, "karpathy")
        _once(seen, name, place)
        folder = _text(image, "filepath", place, "karpathy") if image.get("filepath") else ""
        file = _inside(f"{folder}/{name}" if folder else name, place)
        split = _text(image, "split", place, "karpathy")
        split = "train" if split == "restval" else split
        sentences = _list(image, "sentences", "karpathy", place)
        captions = [_text(said, "raw", place, "karpathy") for said in sentences]
        for caption in captions or [None]:
            yield Remark(place, name, file, caption, split)


def _coco(text: str) -> Iterator[Remark]:
    document = _loaded(text, "coco")
    photos: dict[str, Remark] = {}
    said: dict[str, list[Remark]] = {}
    seen: dict[str, str] = {}
    files: dict[str, str] = {}
    for index, image in enumerate(_list(document, "images", "coco")):
        place = f"images[{index}]"
        number = _text(image, "id", place, "coco")
        _once(seen, number, place)
        file = _inside(_text(image, "file_name", place, "coco"), place)
        _once(files, file, place)
        photos[number] = Remark(place, number, file, None)
        said[number] = []
    seen = {}
    for index, annotation in enumerate(_list(document, "annotations", "coco")):
        place = f"annotations[{index}]"
        number = _text(annotation, "image_id", place, "coco")
        if number not in photos:
            raise ValueError(f"{place}: no image has the id {named(number)}")
        if "id" in annotation:
            _once(seen, _text(annotation, "id", place, "coco"), place)
        caption = _text(annotation, "caption", place, "coco")
        said[number].append(photos[number]._replace(place=place, caption=caption))
    for number, photo in photos.items():
        yield from said[number] or [photo]


def _jsonl(text: str) -> Iterator[Remark]:
    seen: dict[str, str] = {}
    for number, line in _lines(text):
        place, record = f"line {number}", _loaded(line, "jsonl", number)
        keys = set(record) if isinstance(record, dict) else set[str]()
        photo = next((key for key in _PHOTO if key in keys), None)
        saying = next((key for key in _CAPTION if key in keys), None)
        if photo is None or saying is None:
            raise ValueError(f"{place}: expected {EXPECTED['jsonl']}, got {_short(line)}")
        file = _inside(_text(record, photo, place, "jsonl"), place)
        name = _text(record, "id", place, "jsonl") if "id" in keys else file
        split = _text(record, "split", place, "jsonl") if record.get("split") else None
        captions = record[saying]
        if isinstance(captions, list):
            _once(seen, name, place)
        else:
            captions = [captions]
        if not all(isinstance(caption, str) for caption in captions):
            raise ValueError(
                f"{place}: {saying} must be a text or a list of texts, got {shown(captions)}"
            )
        for caption in captions or [None]:
            yield Remark(place, name, file, caption, split)


_READERS: dict[Format, Callable[[str], Iterator[Remark]]] = {
    "flickr": _flickr,
    "csv": _csv,
    "karpathy": _karpathy,
    "coco": _coco,
    "jsonl": _jsonl,
}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that hold something; only a line feed ends one: captions hold other ends."""
    return ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())


def _mark(header: str) -> str:
    return max(",|\t;", key=header.count)


def _columns(header: list[str]) -> tuple[int, int] | None:
    names = [cell.strip(' "').lower() for cell in header]
    photo = next((names.index(name) for name in _PHOTO if name in names), None)
    caption = next((names.index(name) for name in _CAPTION if name in names), None)
    return None if photo is None or caption is None else (photo, caption)


def _loaded(text: str, form: Format, line: int = 1) -> Any:
    try:
        return parsed_json(text, line)
    except ValueError as error:
        raise ValueError(f"{error}; expected {EXPECTED[form]}") from None


def _list(record: Any, key: str, form: Format, place: str = "the whole") -> list[dict[str, Any]]:
    held = record.get(key) if isinstance(record, dict) else None
    if not isinstance(held, list) or not all(isinstance(one, dict) for one in held):
        raise ValueError(f"{place}: {key} must be a list of objects; expected {EXPECTED[form]}")
    return held


def _text(record: dict[str, Any], key: str, place: str, form: Format) -> str:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"{place}: {key} must be a text, got {shown(value)}; expected {EXPECTED[form]}"
        )
    return str(value)


def _once(seen: dict[str, str], name: str, place: str) -> None:
    if name in seen:
        raise ValueError(f"{place}: {named(name)} stands already at {seen[name]}")
    seen[name] = place


def _inside(file: str, place: str) -> str:
    """Return the name of a file, once it is known to lie below the folder of photos."""
    try:
        check_name(file)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    return file


def _name(file: str) -> str:
    return file.rpartition("/")[2]


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
