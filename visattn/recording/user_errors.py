"""Where in somebody's own code an error was raised."""

import traceback
from pathlib import Path

_OURS = f"{Path(__file__).parent.parent}/"
_FOREIGN = ("site-packages", "dist-packages", f"{Path(traceback.__file__).parent}/", _OURS)


def raised_at(error: BaseException) -> str:
    """Return the file and line of somebody's own code in which an error was raised; "" for none.

    Frames of this package, of Python and of installed packages are passed over.

    Args:
        error: As it was caught.

    Example:
        >>> raised_at(SyntaxError("a slip", ("net.py", 3, 1, "x =")))
        'net.py, line 3'
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)]
    return f"{own[-1].filename}, line {own[-1].lineno}, in {own[-1].name}" if own else ""


def _is_own(file: str) -> bool:
    return not file.startswith("<") and not any(part in file for part in _FOREIGN)
