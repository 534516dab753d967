"""Configs are looked through before they are believed: length, what they unfold to, keys.

YAML lets a few lines unfold to more than a machine can hold, and lets the later of two equal keys
win without a word. Here a text is read event by event, so that neither costs more than
milliseconds.
"""

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

LONGEST = 1_000_000  # bytes of a config
LARGEST = 100_000  # keys and values, with every alias unfolded
DEEPEST = 100  # lists and mappings inside one another
_DIGITS = 1_000  # of a number
_SHARE = 64  # characters of a text that count as one more value
_PLAIN_TAGS = "tag:yaml.org,2002:"
_SUFFIXES = (".yaml", ".yml")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class _Collection:
    """A list or a mapping that is being read."""

    anchor: str | None
    keys: dict[str, int] | None
    """The lines of its keys; None for a list."""
    size: int = 1
    at_key: bool = True


@dataclass
class _Reading:
    """What is known of a config so far."""

    source: str
    open: list[_Collection] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


def check_configs(words: Sequence[str]) -> list[Path]:
    r"""Look through the configs that a command line names, and through those that they name.

    Args:
        words: Of the command line; a config is what follows `--config` or `-c`, and every .yaml
            file.

    Returns:
        The other files that are named: data and weights, none of which is a config.

    Raises:
        ValueError: If a config is too long, unfolds to too much, is nested too deeply, holds a key
            twice or a tag of Python's, is no YAML in UTF-8, or lies on another machine; or if a
            config names a pipe or a device.

    Example:
        >>> file = getfixture("tmp_path") / "twice.yaml"
        >>> _ = file.write_text("data:\n  batch: 3\n  batch: 5\n")
        >>> check_configs(["fit", "--config", str(file)])
        Traceback (most recent call last):
        ValueError: ...twice.yaml, line 3: the key batch stands there again, after line 2; keep one
    """
    others: dict[Path, None] = {}
    waiting = list(_named_by(words, others))
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if (place := path.resolve()) in seen:
            continue
        seen.add(place)
        for text in checked_texts(_read(path), source=str(path)):
            named = _file(text, path.parent)
            if named is None:
                continue
            if not named.is_file():
                raise ValueError(f"{path} names {text}, a pipe or a device: only files are read")
            if named.suffix in _SUFFIXES:
                waiting.append(named)
            else:
                others[named] = None
    return list(others)


def checked_texts(config: str, *, source: str) -> list[str]:
    """Return all texts that stand in a config, after looking through it.

    Args:
        config: YAML; a text in it that holds aliases is looked through too.
        source: Where it comes from; errors name it.

    Raises:
        ValueError: As `check_configs` says.

    Example:
        >>> checked_texts("{data: ScenesDataModule, model: [a, b]}", source="memory")
        ['data', 'ScenesDataModule', 'model', 'a', 'b']
    """
    if len(config) > LONGEST:
        raise ValueError(f"{source} is longer than {LONGEST:,} bytes, too long for a config")
    reading = _Reading(source)
    try:
        for event in yaml.parse(config, Loader=_LOADER):
            _take(reading, event)
    except yaml.YAMLError as error:
        raise ValueError(f"{source} is no YAML: {_reason(error)}") from error
    for text in reading.texts:
        # The parser reads a text once more as YAML where no text is wanted.
        if "&" in text and "*" in text and text != config:
            _check_inner(text, source)
    return reading.texts


def _check_inner(text: str, source: str) -> None:
    """Look through YAML that stands in a text; what is no YAML is nothing but a text."""
    try:
        events = list(yaml.parse(text, Loader=_LOADER))
    except yaml.YAMLError:
        return
    reading = _Reading(f"a text in {source}")
    for event in events:
        _take(reading, event)


def _take(reading: _Reading, event: yaml.Event) -> None:
    """Take one more piece of a config."""
    line = event.start_mark.line + 1
    if isinstance(event, yaml.CollectionEndEvent):
        done = reading.open.pop()
        if done.anchor:
            reading.sizes[done.anchor] = done.size
        _grow(reading, done.size - 1, line)  # its own place is counted where it begins
        return
    if not isinstance(event, yaml.NodeEvent):
        return
    if isinstance(event, yaml.AliasEvent):
        if event.anchor not in reading.sizes:
            raise ValueError(f"{_at(reading, line)}: *{event.anchor} holds itself, or is not there")
        _note_key(reading, f"*{event.anchor}", line)
        _grow(reading, reading.sizes[event.anchor], line)
        return
    _check_tag(reading, event, line)
    if isinstance(event, yaml.ScalarEvent):
        _check_number(reading, event, line)
        _note_key(reading, event.value, line)
        reading.texts.append(event.value)
        size = 1 + len(event.value) // _SHARE
        if event.anchor:
            reading.sizes[event.anchor] = size
        _grow(reading, size, line)
    else:
        _open(reading, event, line)


def _open(reading: _Reading, event: Any, line: int) -> None:
    _note_key(reading, None, line)
    _grow(reading, 1, line)
    mapping = isinstance(event, yaml.MappingStartEvent)
    reading.open.append(_Collection(event.anchor, {} if mapping else None))
    if event.anchor:
        reading.sizes.pop(event.anchor, None)  # until it ends, it may not stand in itself
    if len(reading.open) > DEEPEST:
        raise ValueError(f"{_at(reading, line)}: more than {DEEPEST} levels inside one another")


def _note_key(reading: _Reading, key: str | None, line: int) -> None:
    """Go on from a key to its value or back, and refuse a key that stood there before."""
    inside = reading.open[-1] if reading.open else None
    if inside is None or inside.keys is None:
        return
    if inside.at_key and key is not None:
        if key in inside.keys:
            raise ValueError(
                f"{_at(reading, line)}: the key {key:.80} stands there again, after line "
                f"{inside.keys[key]}; keep one"
            )
        inside.keys[key] = line
    inside.at_key = not inside.at_key


def _grow(reading: _Reading, size: int, line: int) -> None:
    if not reading.open:
        return
    reading.open[-1].size += size
    if reading.open[-1].size > LARGEST:
        raise ValueError(
            f"{_at(reading, line)}: unfolds to more than {LARGEST:,} keys and values; write out "
            "what its aliases repeat"
        )


def _check_tag(reading: _Reading, event: Any, line: int) -> None:
    tag = event.tag or ""
    if tag not in ("", "!") and (not tag.startswith(_PLAIN_TAGS) or "python" in tag):
        raise ValueError(
            f"{_at(reading, line)}: the tag {tag:.80} is refused; a config holds plain values, and "
            "names a class by class_path"
        )


def _check_number(reading: _Reading, event: yaml.ScalarEvent, line: int) -> None:
    """Refuse what would be a number of so many digits that reading it takes minutes."""
    plain = not event.style or (event.tag or "").startswith(_PLAIN_TAGS)
    if plain and len(event.value) > _DIGITS and event.value[0] in "+-.0123456789":
        raise ValueError(f"{_at(reading, line)}: a number of {len(event.value):,} characters")


def _at(reading: _Reading, line: int) -> str:
    return f"{reading.source}, line {line}"


def _reason(error: yaml.YAMLError) -> str:
    """Return what is wrong and in which line, without the lines around it."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f", line {mark.line + 1}" if mark else ""
    return f"{problem or str(error).splitlines()[0]}{where}"


def _named_by(words: Sequence[str], others: dict[Path, None]) -> Iterator[Path]:
    """Yield the configs among the words of a command line, and note the other files."""
    config = False
    for word in words:
        option, _, rest = word.partition("=") if word.startswith("-") else ("", "", word)
        value, named = rest, config or option in ("--config", "-c")
        config = word in ("--config", "-c")
        if config or not value:
            continue
        if named and "://" in value:
            raise ValueError(
                f"{value} lies on another machine; download it, look at it, and name the file"
            )
        path = _file(value, Path())
        if path is None or not path.is_file():  # a pipe of the shell's is read when its turn comes
            continue
        if named or path.suffix in _SUFFIXES:
            yield path
        else:
            others[path] = None


def _file(text: str, folder: Path) -> Path | None:
    """Return the file, pipe or device that a text names, as seen from a folder."""
    if not text or "\n" in text or len(text) > 4096:
        return None
    if text.startswith("file://"):
        text = "/" + text.removeprefix("file://").lstrip("/")
    try:
        path = folder / Path(text).expanduser()
        mode = path.stat().st_mode
    except (OSError, RuntimeError, ValueError):  # too long a name, no such user, a zero byte
        return None
    return None if stat.S_ISDIR(mode) else path


def _read(path: Path) -> str:
    """Return the text of a config, of which no more is read than a config may hold."""
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(f"{path} is longer than {LONGEST:,} bytes, too long for a config")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no text in UTF-8: {error.reason}, byte {error.start}"
        ) from error
