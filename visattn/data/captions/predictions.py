"""Generated captions, read from the files that captioning programs write."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from visattn.io.safe_text import (
    decode_utf8,
    parse_json,
    printable_name,
    read_bytes_bounded,
    short_repr,
)

PathLike = str | os.PathLike[str]
_ID_KEYS = ("image_id", "id", "file", "image")
_FORMATS = (
    '[{"image_id", "caption"}, ...] as for COCO, {"id", "caption"} on each line, '
    "or lines name<TAB>caption"
)
_FLICKR_NAME = re.compile(r"(?P<name>[^\t]+)#[0-9]{1,9}")


class CaptionResults(NamedTuple):
    """Generated captions, one per image.

    Example:
        >>> CaptionResults({"a.jpg": "a dog"}).duplicates
        ()
    """

    captions: dict[str, str]
    """Captions by image id or file name, as in the file."""
    duplicates: tuple[str, ...] = ()
    """Images that occur more than once with the same caption."""


class _Prediction(NamedTuple):
    location: str
    id: str
    caption: str


def read_caption_results(path: PathLike) -> CaptionResults:
    r"""Return the captions of a results file; its format is detected.

    Args:
        path: UTF-8 text: a JSON list of objects with `image_id` and `caption` (the COCO results
            format); a JSON object with `id` and `caption` on each line; lines `name<TAB>caption`,
            as `visattn caption` prints them; or lines `name#0<TAB>caption`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it has none of these formats, holds no caption, or has two different captions
            for one image; the message names the location.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "predictions.tsv").write_text("a.jpg\ta dog\nb.jpg\ta cat\n")
        >>> read_caption_results(folder / "predictions.tsv").captions
        {'a.jpg': 'a dog', 'b.jpg': 'a cat'}
    """
    predictions: dict[str, _Prediction] = {}
    duplicates: list[str] = []
    content = _read_bytes(Path(path))
    try:
        for prediction in _parse(decode_utf8(content)):
            first = predictions.setdefault(prediction.id, prediction)
            if first.caption.split() != prediction.caption.split():
                raise ValueError(
                    f"{prediction.location}: {printable_name(prediction.id)} has another caption "
                    f"at {first.location}; results have one caption per image"
                )
            if first is not prediction:
                duplicates.append(prediction.id)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    if not predictions:
        raise ValueError(f"{path} holds no caption; supported formats: {_FORMATS}")
    captions = {image: prediction.caption for image, prediction in predictions.items()}
    return CaptionResults(captions, tuple(dict.fromkeys(duplicates)))


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; give the captions of a model")
    return read_bytes_bounded(path)


def _parse(text: str) -> Iterator[_Prediction]:
    start = text.lstrip()[:1]
    if start == "[":
        return _parse_list(text)
    # Not splitlines: captions may contain its other line separators.
    all_lines = text.replace("\r\n", "\n").split("\n")
    lines = [(number, line) for number, line in enumerate(all_lines, 1) if line.strip()]
    return _parse_json_lines(lines) if start == "{" else _parse_tsv(lines)


def _parse_list(text: str) -> Iterator[_Prediction]:
    for number, entry in enumerate(parse_json(text), 1):
        yield _parse_entry(entry, f"entry {number}")


def _parse_json_lines(lines: list[tuple[int, str]]) -> Iterator[_Prediction]:
    for number, line in lines:
        yield _parse_entry(parse_json(line, number), f"line {number}")


def _parse_tsv(lines: list[tuple[int, str]]) -> Iterator[_Prediction]:
    rows = [(f"line {number}", *line.partition("\t")) for number, line in lines]
    numbered = all(_FLICKR_NAME.fullmatch(name.strip()) for _, name, _, _ in rows)
    for location, name, tab, caption in rows:
        if not tab or not name.strip():
            raise ValueError(f"{location}: {short_repr(name)} has none of the formats {_FORMATS}")
        image = name.strip().rpartition("#")[0] if numbered else name.strip()
        yield _Prediction(location, image, caption)


def _parse_entry(entry: Any, location: str) -> _Prediction:
    """Return an image and its caption; integer image ids become text."""
    fields = entry if isinstance(entry, dict) else {}
    image = next((fields[key] for key in _ID_KEYS if key in fields), None)
    caption = fields.get("caption")
    if isinstance(image, int) and not isinstance(image, bool):
        image = str(image)
    if not (isinstance(image, str) and image.strip() and isinstance(caption, str)):
        raise ValueError(f"{location}: {short_repr(entry)} has none of the formats {_FORMATS}")
    try:
        f"{image} {caption}".encode()
    except UnicodeEncodeError:
        raise ValueError(f"{location}: an unpaired surrogate character") from None
    return _Prediction(location, image.strip(), caption)
