"""Values on a command line, read and refused alike by all commands."""

import argparse
import json
import math
import re
from collections.abc import Callable
from typing import Any

LONGEST_SIDE = 8000  # pixels: a square has as many as the largest image that is read
LARGEST_SEED = 2**63 - 1  # what generators of torch and NumPy take alike


def whole_number(lowest: int, highest: int) -> Callable[[str], int]:
    """Return a reader of whole numbers of a range; every number of a command line has one.

    Args:
        lowest: The least that makes sense.
        highest: The most that does, or that memory and files bear.

    Raises:
        argparse.ArgumentTypeError: By what is returned, if a text is none, or out of the range.

    Example:
        >>> whole_number(1, 1000)("16")
        16
        >>> whole_number(1, 1000)("100000000000000000000")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: must be a whole number from 1 to 1,000, got '1000000000000...
    """

    def read(text: str) -> int:
        plain = re.fullmatch(r"[+-]?[0-9]{1,20}", text)
        if plain is None or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(
                f"must be a whole number from {lowest:,} to {highest:,}, got {quoted(text)}"
            )
        return int(text)

    return read


def real_number(lowest: float, highest: float) -> Callable[[str], float]:
    """Return a reader of numbers of a range, NaN and infinity left out.

    Args:
        lowest: The least that makes sense.
        highest: The most that does.

    Raises:
        argparse.ArgumentTypeError: By what is returned, if a text is none, or out of the range.

    Example:
        >>> real_number(-10, 10)("0.7")
        0.7
        >>> real_number(-10, 10)("nan")
        Traceback (most recent call last):
        argparse.ArgumentTypeError: must be a number from -10 to 10, got 'nan'
    """

    def read(text: str) -> float:
        try:
            value = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(
                f"must be a number from {lowest:g} to {highest:g}, got {quoted(text)}"
            )
        return value

    return read


# Of images that are worked on at once, and of things that are counted out: beyond these no
# memory, and no folder, would be large enough.
batch_size = whole_number(1, 65_536)
count = whole_number(1, 1_000_000)
seed = whole_number(0, LARGEST_SEED)


def quoted(text: str) -> str:
    """Return what was typed as an answer repeats it: between quotation marks, and not all of it.

    Example:
        >>> quoted("7" * 5000)
        "'7777777777777777777777777777777777777...'"
    """
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


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
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    y, x = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(y, x) < 1 or max(y, x) > LONGEST_SIDE:
        raise argparse.ArgumentTypeError(
            f"must be N or HEIGHTxWIDTH, each from 1 to {LONGEST_SIDE:,}, got {quoted(text)}"
        )
    return y, x
