"""Safe YAML: limits on length, nesting and alias expansion, plain tags, no duplicate keys.

A few lines of YAML can expand to more than fits into memory, and PyYAML silently keeps the last of
two equal keys. Both are refused before a value is built.
"""

from pathlib import Path
from typing import Any

import yaml

MAX_LENGTH = 1_000_000
"""Characters of a config."""
MAX_SIZE = 100_000
"""Keys and values of a config, with every alias expanded."""
MAX_DEPTH = 100
"""Nested lists and mappings."""
_MAX_DIGITS = 1_000  # Python needs minutes for a number of many thousand digits
_TEXT_UNIT = 64  # a text counts as one value per so many characters
_PLAIN_TAGS = "tag:yaml.org,2002:"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_config(path: Path) -> str:
    """Return the text of a config file after checking it."""
    with path.open("rb") as file:
        content = file.read(MAX_LENGTH + 1)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason}, byte {error.start}") from error
    check_yaml(text, source=str(path))
    return text


def check_yaml(text: str, *, source: str) -> None:
    r"""Refuse YAML that is too large or deep, repeats a key, or holds a tag that is not plain.

    Example:
        >>> check_yaml("data:\n  seed: 3\n  seed: 5\n", source="twice.yaml")
        Traceback (most recent call last):
        ValueError: twice.yaml, line 3: duplicate key 'seed', first defined on line 2; keep one
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{source} is longer than {MAX_LENGTH:,} bytes, the limit for a config")
    depth = 0
    try:
        # First the events, which build nothing, within bounds; then the nodes, in which an alias is
        # a reference. Their expanded size is summed up before a value exists. Each line doubles the
        # last:
        #
        #     a: &a [x, x]       3 keys and values
        #     b: &b [*a, *a]     7
        #     c: [*b, *b]       15, and 2,147,483,647 in the 30th line
        for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
            # A list or a mapping has two events, its start and its end.
            if count > 2 * MAX_SIZE:
                raise _error(event, source, f"more than {MAX_SIZE:,} keys and values")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise _error(event, source, f"more than {MAX_DEPTH} levels of nesting")
            if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
                _check_event(event, source)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = f", line {mark.line + 1}" if mark else ""
        if mark and "cannot start any token" in reason and "\t" in text.split("\n")[mark.line]:
            reason = "a tab cannot indent; use spaces"
        raise ValueError(f"{source} is not valid YAML: {reason}{line}") from error
    if root is not None:
        _expanded_size(root, source, {})


def _check_event(event: Any, source: str) -> None:
    """Refuse tags of Python or of other languages, and numbers that take minutes to parse."""
    tag = event.tag or ""
    if tag not in ("", "!") and (not tag.startswith(_PLAIN_TAGS) or "python" in tag):
        reason = f"the tag {tag:.80} is refused; a config holds plain values and names a class by "
        raise _error(event, source, f"{reason}class_path")
    if isinstance(event, yaml.ScalarEvent) and len(event.value) > _MAX_DIGITS:
        number = not event.style or tag.startswith(_PLAIN_TAGS)
        if number and event.value[0] in "+-.0123456789":
            raise _error(event, source, f"a number of {len(event.value):,} characters")


def _expanded_size(node: yaml.Node, source: str, sizes: dict[int, int | None]) -> int:
    """Return the number of keys and values of a node with its aliases expanded."""
    # Each node is counted once; to follow every alias would take as long as to expand them.
    if id(node) in sizes:
        size = sizes[id(node)]
        if size is None:
            raise _error(node, source, "an alias refers to the value that contains it")
        return size
    sizes[id(node)] = None  # until its children are counted
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, source)
        children = [child for pair in node.value for child in pair]
    else:
        children = node.value if isinstance(node, yaml.SequenceNode) else []
    text = len(node.value) // _TEXT_UNIT if isinstance(node, yaml.ScalarNode) else 0
    size = 1 + text + sum(_expanded_size(child, source, sizes) for child in children)
    if size > MAX_SIZE:
        reason = f"expands to more than {MAX_SIZE:,} keys and values; write out what its aliases "
        raise _error(node, source, f"{reason}repeat")
    sizes[id(node)] = size
    return size


def _check_keys(mapping: yaml.MappingNode, source: str) -> None:
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else ""
        if name in lines:
            reason = f"duplicate key {name[:80]!r}, first defined on line {lines[name]}; keep one"
            raise _error(key, source, reason)
        if name:
            lines[name] = key.start_mark.line + 1


def _error(place: Any, source: str, reason: str) -> ValueError:
    return ValueError(f"{source}, line {place.start_mark.line + 1}: {reason}")
