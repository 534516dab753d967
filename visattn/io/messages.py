"""Helpers for error messages: similar names, and the user's code that raised an exception."""

import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

_PACKAGE = f"{Path(__file__).parent.parent}/"
_FOREIGN = ("site-packages", "dist-packages", f"{Path(traceback.__file__).parent}/", _PACKAGE)
_MAX_LISTED = 20


def did_you_mean(
    name: str, choices: Iterable[str], *, n: int = 3, otherwise: str | None = None
) -> str:
    """Return a hint with the names most similar to an unknown one.

    Args:
        n: Maximum number of names.
        otherwise: The hint if no name is similar; by default a list of the choices.

    Example:
        >>> did_you_mean("rise1", ["rise", "rollout"])
        'did you mean rise?'
        >>> did_you_mean("x", ["rise", "rollout"])
        'choose from rise, rollout'
    """
    names = list(choices)
    known = {each.lower(): each for each in names}  # GradCAM is gradcam
    if matches := get_close_matches(name.lower(), known, n=n):
        *others, last = (known[match] for match in matches)
        return f"did you mean {' or '.join(filter(None, [', '.join(others), last]))}?"
    if otherwise is not None:
        return otherwise
    listed = ", ".join(names[:_MAX_LISTED])
    return f"choose from {listed}{', ...' if len(names) > _MAX_LISTED else ''}"


_OTHER_NAMES = {
    "cmap": "colormap", "alpha": "opacity", "layer": "layers", "target_layers": "layers",
    **dict.fromkeys(("imgsz", "img_size", "image_size"), "input_size"),
}  # fmt: skip


def own_name(name: str) -> str:
    """Return a hint if an option has this name in other libraries; "" if not.

    Example:
        >>> own_name("imgsz"), own_name("--cmap"), own_name("opacity")
        ('; here imgsz is input_size', '; here --cmap is --colormap', '')
    """
    own = _OTHER_NAMES.get(name.lstrip("-").replace("-", "_"), "")
    own = f"--{own.replace('_', '-')}" if own and name.startswith("--") else own
    return f"; here {name} is {own}" if own else ""


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
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = frame.filename
        if not file.startswith("<") and not any(folder in file for folder in _FOREIGN):
            return f"{file}, line {frame.lineno}, in {frame.name}"
    return ""
