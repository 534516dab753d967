"""Values on a command line, read and refused alike by all commands."""

import argparse
import json
import re
from typing import Any


def positive(text: str) -> int:
    """Return a whole number from 1.

    Raises:
        argparse.ArgumentTypeError: If the text is none.

    Example:
        >>> positive("16")
        16
    """
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return value


def named_value(text: str) -> tuple[str, Any]:
    """Return the name and the value of NAME=VALUE.

    A value is a number, true, false, null, a list, with or without its brackets, or else the text.

    Raises:
        argparse.ArgumentTypeError: If there is no name.

    Example:
        >>> named_value("mean=0.5,0.5"), named_value("pad_type=same")
        (('mean', [0.5, 0.5]), ('pad_type', 'same'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    for form in (value, f"[{value}]") if "," in value else (value,):
        try:
            return name, json.loads(form)
        except ValueError:
            continue
    return name, value


def sides(text: str) -> tuple[int, int]:
    """Return height and width, of which one number is both.

    Raises:
        argparse.ArgumentTypeError: If the text is none.

    Example:
        >>> sides("32"), sides("48x64")
        ((32, 32), (48, 64))
    """
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    y, x = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(y, x) < 1:
        raise argparse.ArgumentTypeError(f"must be N or HEIGHTxWIDTH, got {text!r}")
    return y, x
