"""`visattn blocks`: what there is to put into a network, and what each block is."""

import argparse
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from visattn.commands.options.parser import CommandParser

if TYPE_CHECKING:  # torch is imported when the command runs, not for its help
    from torch import nn

CHANNELS = 256
SIDE = 56
PAPER = 37
"""Columns that authors, year and address of a paper take."""

_DESCRIPTION = f"""\
List the attention blocks that can be put into a network, with what each costs at {CHANNELS}
channels, or tell all that is known of one: equation, options, where it differs from the paper,
whose weights it takes."""

_EPILOG = """\
A block is made by va.create(NAME, channels, ...) and put into a network by
va.insert(model, NAME, at=..., example=...). NAME may be a class of your own, as
package.module.Class, and what modules of yours register is listed too, if
VISATTN_TRUST_MODULES names these modules."""


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = CommandParser(
        prog="visattn blocks",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("name", nargs="?", metavar="NAME", help="of one block (all)")
    return made


def main(argv: Sequence[str]) -> int:
    """Print the table of all blocks, or the card of one; return 0."""
    options = parser()
    asked = options.parse_args(argv)
    from visattn.blocks.registry import info

    columns = shutil.get_terminal_size((120, 24)).columns
    try:
        _import_users_modules()
        if asked.name is None:
            print("\n".join(_table(columns)))
            return 0
        info(asked.name)
        lines = _card(asked.name, min(columns, 100))
    except (ValueError, TypeError) as error:
        options.error(str(error))
    print("\n".join(lines))
    return 0


def _import_users_modules() -> None:
    """Import what the user trusts, so that the blocks that are registered there are known.

    A module that cannot be imported is named on stderr; the other blocks are shown all the same.
    """
    from visattn.blocks.external import imported_module
    from visattn.io.trusted_modules import users_modules

    for module in users_modules():
        try:
            imported_module(module)
        except ValueError as error:
            print(f"visattn blocks: {error}; what it registers is not shown", file=sys.stderr)


# ------------------------------------------------------------------ all blocks


def _table(columns: int) -> list[str]:
    """Return a row for each block; its title too, where there is room."""
    from visattn.blocks.registry import info, names

    rows = [("block", "kind", "parameters", "MACs", "title", "paper")]
    for name in names():
        card = info(name)
        try:
            parameters, macs = _costs(name)
            count, products = f"{parameters:,}", _short(macs)
        except ValueError:  # a registered block; its card says why
            count, products = "-", "-"
        rows.append((name, card.kind, count, products, card.title, card.paper))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    room = columns - sum(widths) - 2 * len(widths)
    lines = [f"{_aligned(row[:4], widths)}  {_told(*row[4:], room)}".rstrip() for row in rows]
    below = (
        f"parameters at {CHANNELS} channels; MACs of one image of {SIDE} x {SIDE} cells, gates "
        "and attention products included. visattn blocks NAME tells more of one."
    )
    return [*lines, "", *textwrap.wrap(below, min(columns, 100))]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.rjust(width) if column >= 2 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _told(title: str, paper: str, room: int) -> str:
    """Return title and paper in so many columns; the paper alone if there are too few.

    Example:
        >>> _told("Energies (SimAM)", "Yang et al. 2021, ICML, a.long/address", 72)
        'Energies                           Yang et al. 2021, ICML'
        >>> _told("Energies (SimAM)", "Yang et al. 2021, ICML, a.long/address", 24)
        'Yang et al. 2021, ICML'
    """
    width = min(room - PAPER - 2, 50)
    left = room if width < PAPER - 8 else PAPER
    while len(paper) > left and ", " in paper:
        paper = paper.rpartition(", ")[0]
    if left == room:
        return paper
    short = textwrap.shorten(re.sub(r" \(.*?\)", "", title), width, placeholder=" ...")
    return f"{short:{width}}  {paper}"


def _costs(name: str) -> tuple[int, int]:
    """Return parameters and MACs of a block; nothing is computed for it.

    Raises:
        ValueError: If it fails.
    """
    import torch

    from visattn.blocks.registry import create
    from visattn.insertion.summary import table

    try:
        with torch.device("meta"):
            model = torch.nn.Sequential(create(name, CHANNELS))
            costs = table(model, torch.empty(1, CHANNELS, SIDE, SIDE))
    except Exception as error:  # whatever a user's block raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"not counted: {type(error).__name__}: {reason}") from error
    return costs.parameters, costs.work.macs


def _short(count: int) -> str:
    """Return a count with three digits.

    Example:
        >>> [_short(count) for count in (0, 812, 8_464, 1_605_632, 12_300_000_000)]
        ['0', '812', '8.46 k', '1.61 M', '12.3 G']
    """
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:#.3g} {unit}".replace(". ", " ")
    return str(count)


# ------------------------------------------------------------------ one block


def _card(name: str, columns: int) -> list[str]:
    """Return all that is known of a block, under one margin."""
    from visattn.blocks.registry import block_class, info

    block, card = block_class(name), info(name)
    try:
        parameters, macs = _costs(name)
        costs = f"{parameters:,} at C = {CHANNELS}; {_short(macs)} MACs on {SIDE} x {SIDE} cells"
    except ValueError as error:
        costs = str(error)
    name = card.name
    lines = [f"{name}: {card.title}"]
    lines += _wrapped(f"{card.paper}; {_weighs(card.kind)}", "", columns)
    lines += ["", *_wrapped(card.equation, "  ", columns)]
    lines += ["  (x: input, y: output, s: sigmoid)", ""]
    lines += _entry("parameters", [card.parameters, costs], columns)
    lines += _entry("options", _options(block) or ["none"], columns)
    if card.aliases:
        lines += _entry("also called", [", ".join(card.aliases)], columns)
    lines += _entry("deviations", card.deviations or ["none known"], columns)
    lines += _entry("weights", card.weights or ["of this block only"], columns)
    lines += ["", f'va.create("{name}", {CHANNELS})']
    return [*lines, f'va.insert(model, "{name}", at="residual", example=x)']


def _weighs(kind: str) -> str:
    return {
        "channel": "weighs channels",
        "spatial": "weighs places",
        "both": "weighs channels and places",
        "branches": "weighs branches of convolutions",
        "grid": "each place takes from others",
        "other": "a block from outside",
    }[kind]


def _entry(title: str, texts: Iterable[str], columns: int) -> list[str]:
    """Return texts in a column beside their title."""
    margin = 12
    lines: list[str] = []
    for text in texts:
        lines += _wrapped(text, " " * margin, columns, hanging="  ")
    return [f"{title:{margin}}{lines[0].lstrip()}", *lines[1:]]


def _wrapped(text: str, margin: str, columns: int, *, hanging: str = "") -> list[str]:
    return [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(
            part,
            columns,
            initial_indent=margin,
            subsequent_indent=margin + hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _options(block: "type[nn.Module]") -> list[str]:
    """Return the options of a block with their defaults and what its docstring says of them."""
    told = _arguments(inspect.getdoc(block) or "")
    return [
        f"{name}={option.default!r}: {told.get(name, '')}".removesuffix(": ")
        for name, option in list(inspect.signature(block).parameters.items())[1:]
        if option.default is not option.empty
    ]


def _arguments(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each argument."""
    section = re.search(r"^Args:\n((?:[ ].*\n?|\n(?=[ ]))*)", docstring, re.MULTILINE)
    body = section.group(1) if section else ""
    entries = re.findall(r"^ {4}(\w+): ((?:.*\n?)(?:^ {8}.*\n?)*)", body, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
