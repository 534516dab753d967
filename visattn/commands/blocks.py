"""`visattn blocks`: list the attention blocks, or describe one."""

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from visattn.commands.options import CommandParser
from visattn.io.safe_text import print_message

if TYPE_CHECKING:  # torch is imported when the command runs, not for its help
    from torch import nn

CHANNELS = 256
SIDE = 56
PAPER = 37
"""Width of the column with authors, year and reference of a paper."""

_DESCRIPTION = f"""\
List the attention blocks with their cost at {CHANNELS} channels, or describe one block: equation,
arguments, deviations from the paper."""

_EPILOG = """\
va.create_block(NAME, channels, ...) creates a block; va.insert(model, NAME, position=...,
example=...) inserts it into a network. NAME can also be your own class, package.module.Class.
Blocks that your modules register are listed, too, if VISATTN_TRUST_MODULES names these modules."""


_EXAMPLES = (
    "visattn blocks",
    "visattn blocks cbam",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES, prog="visattn blocks", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="block to describe (default: list all blocks)"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the table of all blocks, or the description of one; return 0."""
    parser = build_parser()
    args = parser.parse_args(argv)
    from visattn.blocks.registry import block_info

    columns = shutil.get_terminal_size((120, 24)).columns
    try:
        _import_trusted_modules()
        if args.name is None:
            print("\n".join(_table(columns)))
            return 0
        block_info(args.name)
        lines = _describe(args.name, min(columns, 100))
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    print("\n".join(lines))
    return 0


def _import_trusted_modules() -> None:
    """Import the modules of VISATTN_TRUST_MODULES, which may register blocks.

    A module that cannot be imported is reported on stderr; the other blocks are shown.
    """
    from visattn.blocks.registry import import_module
    from visattn.io.trusted_modules import user_trusted_modules

    for module in user_trusted_modules():
        try:
            import_module(module)
        except ValueError as error:
            print_message(f"{error}; its blocks are not shown")


# ------------------------------------------------------------------ all blocks


def _table(columns: int) -> list[str]:
    """Return a row per block, with its title if the terminal is wide enough."""
    from visattn.blocks.registry import block_info, list_blocks

    rows = [("block", "kind", "parameters", "MACs", "title", "paper")]
    for name in list_blocks():
        info = block_info(name)
        try:
            parameters, macs = _costs(name)
            count = f"{parameters:,}"
            operations = _short(macs)
        except ValueError:  # a user's block; its description gives the reason
            count, operations = "-", "-"
        rows.append((name, info.kind, count, operations, info.title, info.paper))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    room = columns - sum(widths) - 2 * len(widths)
    lines = [
        f"{_aligned(row[:4], widths)}  {_title_and_paper(*row[4:], room)}".rstrip() for row in rows
    ]
    legend = (
        f"parameters at {CHANNELS} channels; MACs for one feature map of {SIDE} x {SIDE}, without "
        "gates and pools. visattn blocks NAME describes a block."
    )
    return [*lines, "", *textwrap.wrap(legend, min(columns, 100))]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.rjust(width) if column >= 2 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _title_and_paper(title: str, paper: str, room: int) -> str:
    """Return title and paper in `room` columns; the paper alone if they are too few.

    Example:
        >>> _title_and_paper("Energies (SimAM)", "Yang et al. 2021, ICML, a.long/address", 72)
        'Energies                           Yang et al. 2021, ICML'
        >>> _title_and_paper("Energies (SimAM)", "Yang et al. 2021, ICML, a.long/address", 24)
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
    """Return parameters and MACs of a block, counted on the meta device.

    Raises:
        ValueError: If the block raises an error.
    """
    import torch

    from visattn.blocks.registry import create_block
    from visattn.insertion.cost import summary

    try:
        with torch.device("meta"):
            model = torch.nn.Sequential(create_block(name, CHANNELS))
            costs = summary(model, torch.empty(1, CHANNELS, SIDE, SIDE))
    except Exception as error:  # a user's block may raise anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"not counted: {type(error).__name__}: {reason}") from error
    return costs.num_parameters, costs.macs


def _short(count: int) -> str:
    """Return a count with three significant digits.

    Example:
        >>> [_short(count) for count in (0, 812, 8_464, 1_605_632, 12_300_000_000)]
        ['0', '812', '8.46 k', '1.61 M', '12.3 G']
    """
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:#.3g} {unit}".replace(". ", " ")
    return str(count)


# ------------------------------------------------------------------ one block


def _describe(name: str, columns: int) -> list[str]:
    """Return the description of a block."""
    from visattn.blocks.registry import block_class, block_info

    block = block_class(name)
    info = block_info(name)
    try:
        parameters, macs = _costs(name)
        costs = f"{parameters:,} at C = {CHANNELS}; {_short(macs)} MACs on {SIDE} x {SIDE}"
    except ValueError as error:
        costs = str(error)
    name = info.name
    lines = [f"{name}: {info.title}"]
    lines += _wrapped(f"{info.paper}; {_attended(info.kind)}", "", columns)
    lines += ["", *_wrapped(info.equation, "  ", columns)]
    lines += ["  (x: input, y: output, s: sigmoid)", ""]
    lines += _entry("parameters", [info.parameters, costs], columns)
    lines += _entry("arguments", _arguments(block) or ["none"], columns)
    lines += _entry("deviations", info.deviations or ["none known"], columns)
    lines += ["", f'va.create_block("{name}", {CHANNELS})']
    return [*lines, f'va.insert(model, "{name}", position="residual", example=x)']


def _attended(kind: str) -> str:
    return {
        "channel": "attends over channels",
        "spatial": "attends over positions",
        "combined": "attends over channels and positions",
        "branch": "attends over convolution branches",
        "self_attention": "attends among positions",
        "other": "user-defined block",
    }[kind]


def _entry(title: str, texts: Iterable[str], columns: int) -> list[str]:
    """Return texts in a column next to their title."""
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


def _arguments(block: "type[nn.Module]") -> list[str]:
    """Return the arguments of a block with their defaults and descriptions."""
    descriptions = _documented_arguments(inspect.getdoc(block) or "")
    return [
        f"{name}={argument.default!r}: {descriptions.get(name, '')}".removesuffix(": ")
        for name, argument in list(inspect.signature(block).parameters.items())[1:]
        if argument.default is not argument.empty
    ]


def _documented_arguments(docstring: str) -> dict[str, str]:
    """Return the descriptions of the arguments in a docstring."""
    section = re.search(r"^Args:\n((?:[ ].*\n?|\n(?=[ ]))*)", docstring, re.MULTILINE)
    body = section.group(1) if section else ""
    entries = re.findall(r"^ {4}(\w+): ((?:.*\n?)(?:^ {8}.*\n?)*)", body, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}
