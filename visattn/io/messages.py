"""Helpers for error messages: similar names, and the user's code that raised an exception."""

import traceback
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

_PACKAGE = f"{Path(__file__).parent.parent}/"
_FOREIGN = ("site-packages", "dist-packages", f"{Path(traceback.__file__).parent}/", _PACKAGE)
_MAX_LISTED = 20


def did_you_mean(
    name: str,
    choices: Iterable[str],
    *,
    n: int = 3,
    cutoff: float = 0.6,
    canonical: Mapping[str, str] | None = None,
    otherwise: str | None = None,
) -> str:
    """Return a hint with the names that are most similar to an unknown one.

    Args:
        n: Largest number of names.
        cutoff: How similar names must be, in [0, 1], as `difflib.get_close_matches` takes it.
        canonical: The names to suggest instead of some choices, which are their aliases.
        otherwise: The hint if no name is similar; by default a list of the choices.

    Example:
        >>> did_you_mean("rise1", ["rise", "rollout"])
        'did you mean rise?'
        >>> did_you_mean("x", ["rise", "rollout"])
        'choose from rise, rollout'
        >>> did_you_mean("x", ["rise", "rollout"], otherwise="see the list")
        'see the list'
    """
    names = list(choices)
    canonical = canonical or {}
    matches = get_close_matches(name, names, n=n, cutoff=cutoff)
    if matches:
        *others, last = dict.fromkeys(canonical.get(match, match) for match in matches)
        return f"did you mean {' or '.join(filter(None, [', '.join(others), last]))}?"
    if otherwise is not None:
        return otherwise
    listed = ", ".join(names[:_MAX_LISTED])
    return f"choose from {listed}{', ...' if len(names) > _MAX_LISTED else ''}"


def format_names(names: Sequence[str], limit: int = 3) -> str:
    """Return the first names of a list and the number of the others.

    Example:
        >>> format_names(["a", "b", "c", "d", "e"]), format_names(["a", "b"], limit=1)
        ('a, b, c and 2 more', 'a and 1 more')
    """
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def user_code_location(error: BaseException) -> str:
    """Return file, line and function of the user's own code that raised an exception; "" for none.

    Frames of this package, of Python and of installed packages are skipped.

    Example:
        >>> user_code_location(SyntaxError("a typo", ("net.py", 3, 1, "x =")))
        'net.py, line 3'
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        file = frame.filename
        if not file.startswith("<") and not any(folder in file for folder in _FOREIGN):
            return f"{file}, line {frame.lineno}, in {frame.name}"
    return ""
