"""What a model said of images, from the files that programs write."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from visattn.io.safe_text import bounded_bytes, named, parsed_json, plain_text, shown

PathLike = str | os.PathLike[str]
_IDS = ("image_id", "id", "file", "image")
_KNOWN = (
    '[{"image_id", "caption"}, ...] as for COCO, {"id", "caption"} on each line, '
    "or lines name<TAB>caption"
)
_NUMBERED = re.compile(r"(?P<name>[^\t]+)#[0-9]{1,9}")


class Results(NamedTuple):
    """One caption per image.

    Example:
        >>> Results({"a.jpg": "a dog"}).repeated
        ()
    """

    captions: dict[str, str]
    """By image: its number, or its name as the file has it."""
    repeated: tuple[str, ...] = ()
    """Images that stood there again with the same caption, which counts once."""


class _Said(NamedTuple):
    place: str
    id: str
    caption: str


def read_results(path: PathLike) -> Results:
    r"""Return the captions of a file of results, whichever form it has.

    Args:
        path: UTF-8 text: a JSON list of objects with `image_id` and `caption`, as COCO wants it;
            a JSON object with `id` and `caption` on each line; lines `name<TAB>caption`, as
            `visattn caption` prints them; or lines `name#0<TAB>caption`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it has none of these forms, holds no caption, or says two different things
            of one image; with the place.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "said.tsv").write_text("a.jpg\ta dog\nb.jpg\ta cat\n")
        >>> read_results(folder / "said.tsv").captions
        {'a.jpg': 'a dog', 'b.jpg': 'a cat'}
    """
    captions: dict[str, _Said] = {}
    repeated: list[str] = []
    content = _content(Path(path))
    try:
        for said in _read(plain_text(content)):
            first = captions.setdefault(said.id, said)
            if first.caption.split() != said.caption.split():
                raise ValueError(
                    f"{said.place}: {named(said.id)} has another caption at {first.place}; "
                    "results have one caption per image"
                )
            if first is not said:
                repeated.append(said.id)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    if not captions:
        raise ValueError(f"{path} holds no caption; known are {_KNOWN}")
    told = {name: said.caption for name, said in captions.items()}
    return Results(told, tuple(dict.fromkeys(repeated)))


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; give the captions of a model")
    return bounded_bytes(path)


def _read(text: str) -> Iterator[_Said]:
    start = text.lstrip()[:1]
    if start == "[":
        return _listed(text)
    # Not splitlines: what else counts as the end of a line may stand inside a caption.
    whole = text.replace("\r\n", "\n").split("\n")
    lines = [(number, line) for number, line in enumerate(whole, 1) if line.strip()]
    return _json_lines(lines) if start == "{" else _tabbed(lines)


def _listed(text: str) -> Iterator[_Said]:
    for number, entry in enumerate(parsed_json(text), 1):
        yield _said(entry, f"entry {number}")


def _json_lines(lines: list[tuple[int, str]]) -> Iterator[_Said]:
    for number, line in lines:
        yield _said(parsed_json(line, number), f"line {number}")


def _tabbed(lines: list[tuple[int, str]]) -> Iterator[_Said]:
    rows = [(f"line {number}", *line.partition("\t")) for number, line in lines]
    numbered = all(_NUMBERED.fullmatch(name.strip()) for _, name, _, _ in rows)
    for place, name, tab, caption in rows:
        if not tab or not name.strip():
            raise ValueError(f"{place}: {shown(name)} is none of {_KNOWN}")
        image = name.strip().rpartition("#")[0] if numbered else name.strip()
        yield _Said(place, image, caption)


def _said(entry: Any, place: str) -> _Said:
    """Return an image and its caption; numbers of images become text."""
    fields = entry if isinstance(entry, dict) else {}
    image = next((fields[key] for key in _IDS if key in fields), None)
    caption = fields.get("caption")
    if isinstance(image, int) and not isinstance(image, bool):
        image = str(image)
    if not (isinstance(image, str) and image.strip() and isinstance(caption, str)):
        raise ValueError(f"{place}: {shown(entry)} is none of {_KNOWN}")
    try:
        f"{image} {caption}".encode()
    except UnicodeEncodeError:
        raise ValueError(f"{place}: half a character (a surrogate without its pair)") from None
    return _Said(place, image.strip(), caption)
