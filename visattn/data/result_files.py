"""What a model said of pictures, from the files that programs write."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PathLike = str | os.PathLike[str]
_IDS = ("image_id", "id", "file", "image")
_KNOWN = (
    '[{"image_id", "caption"}, ...] as for COCO, {"id", "caption"} on each line, '
    "or lines name<TAB>caption"
)
_NUMBERED = re.compile(r"(?P<name>[^\t]+)#[0-9]{1,9}")


class Results(NamedTuple):
    """One caption per picture.

    Example:
        >>> Results({"a.jpg": "a dog"}).repeated
        ()
    """

    captions: dict[str, str]
    """By picture: its number, or its name as the file has it."""
    repeated: tuple[str, ...] = ()
    """Pictures that stood there again with the same caption, which counts once."""


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
            of one picture; with the place.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> _ = (folder / "said.tsv").write_text("a.jpg\ta dog\nb.jpg\ta cat\n")
        >>> read_results(folder / "said.tsv").captions
        {'a.jpg': 'a dog', 'b.jpg': 'a cat'}
    """
    captions: dict[str, _Said] = {}
    repeated: list[str] = []
    try:
        for said in _read(_content(Path(path))):
            first = captions.setdefault(said.id, said)
            if first.caption.split() != said.caption.split():
                raise ValueError(
                    f"{said.place}: {said.id} has another caption at {first.place}; "
                    "results have one caption per picture"
                )
            if first is not said:
                repeated.append(said.id)
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    if not captions:
        raise ValueError(f"{path} holds no caption; known are {_KNOWN}")
    told = {name: said.caption for name, said in captions.items()}
    return Results(told, tuple(dict.fromkeys(repeated)))


def _content(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; give the captions of a model")
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line}: not UTF-8; write the file as UTF-8") from None


def _read(text: str) -> Iterator[_Said]:
    start = text.lstrip()[:1]
    if start == "[":
        return _listed(text)
    # Not splitlines: what else counts as the end of a line may stand inside a caption.
    whole = text.replace("\r\n", "\n").split("\n")
    lines = [(f"line {number}", line) for number, line in enumerate(whole, 1) if line.strip()]
    return _json_lines(lines) if start == "{" else _tabbed(lines)


def _listed(text: str) -> Iterator[_Said]:
    for number, entry in enumerate(_loaded(text, ""), 1):
        yield _said(entry, f"entry {number}")


def _json_lines(lines: list[tuple[str, str]]) -> Iterator[_Said]:
    for place, line in lines:
        yield _said(_loaded(line, f"{place}: "), place)


def _tabbed(lines: list[tuple[str, str]]) -> Iterator[_Said]:
    rows = [(place, *line.partition("\t")) for place, line in lines]
    numbered = all(_NUMBERED.fullmatch(name.strip()) for _, name, _, _ in rows)
    for place, name, tab, caption in rows:
        if not tab or not name.strip():
            raise ValueError(f"{place}: {_short(name)} is none of {_KNOWN}")
        picture = name.strip().rpartition("#")[0] if numbered else name.strip()
        yield _Said(place, picture, caption)


def _loaded(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = place or f"line {error.lineno}: "
        reason = error.msg.removesuffix(" starting at")
        raise ValueError(f"{where}no JSON at column {error.colno} ({reason})") from None
    except RecursionError:
        raise ValueError(f"{place}JSON within JSON without end") from None


def _said(entry: Any, place: str) -> _Said:
    """Return a picture and its caption; numbers of pictures become text."""
    fields = entry if isinstance(entry, dict) else {}
    picture = next((fields[key] for key in _IDS if key in fields), None)
    caption = fields.get("caption")
    if isinstance(picture, int) and not isinstance(picture, bool):
        picture = str(picture)
    if not (isinstance(picture, str) and picture.strip() and isinstance(caption, str)):
        raise ValueError(f"{place}: {_short(json.dumps(entry))} is none of {_KNOWN}")
    try:
        f"{picture} {caption}".encode()
    except UnicodeEncodeError:
        raise ValueError(f"{place}: half a character (a surrogate without its pair)") from None
    return _Said(place, picture.strip(), caption)


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."
