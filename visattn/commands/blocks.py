"""`visattn blocks`: list the attention blocks, or describe one."""

import argparse
import inspect
from collections.abc import Sequence

from visattn.commands.options import CommandParser

CHANNELS = 256
SIDE = 56

_DESCRIPTION = f"""\
List the attention blocks with their cost at {CHANNELS} channels, or describe one block: equation,
arguments, differences from the paper."""

_EPILOG = """\
va.create_block(NAME, channels, ...) creates a block; va.insert(model, NAME, position=...,
example=...) inserts it into a network. Blocks that your modules register are listed, too, if
VISATTN_TRUST_MODULES names these modules."""

_EXAMPLES = ("visattn blocks", "visattn blocks cbam")


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
    from visattn.blocks.registry import block_class, list_blocks

    try:
        names = list_blocks()
        if args.name is not None:
            block_class(args.name)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    if args.name is not None:
        print(_description(args.name))
        return 0
    rows = [("block", "kind", "parameters", "MACs", "paper"), *map(_row, names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, kind, parameters, macs, paper in rows:
        print(
            f"{name:{widths[0]}}  {kind:{widths[1]}}  {parameters:>{widths[2]}}  "
            f"{macs:>{widths[3]}}  {paper}"
        )
    print(
        f"\nparameters at {CHANNELS} channels, multiply-accumulates of matrix products and "
        f"convolutions on {SIDE} x {SIDE}; visattn blocks NAME describes a block"
    )
    return 0


def _row(name: str) -> tuple[str, ...]:
    """Return name, kind, number of parameters, multiply-accumulates and paper of a block.

    They are counted on the meta device; a user's block may not run there.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from visattn.blocks.registry import block_class, block_info, create_block

    info = block_info(block_class(name))
    try:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            block = create_block(name, CHANNELS).eval()
            block(torch.empty(1, CHANNELS, SIDE, SIDE))
    except (NotImplementedError, RuntimeError):
        return name, info.kind, "-", "-", info.paper
    parameters = sum(parameter.numel() for parameter in block.parameters())
    macs = counter.get_total_flops() / 2
    return name, info.kind, f"{parameters:,}", f"{macs / 1e6:,.2f} M", info.paper


def _description(name: str) -> str:
    """Return the docstring of a block, its cost, and how it is used."""
    from visattn.blocks.registry import block_class

    block = block_class(name)
    _, kind, parameters, macs, paper = _row(name)
    return f"""\
{name} ({kind}): {paper}

{inspect.getdoc(block)}

At {CHANNELS} channels: {parameters} parameters, {macs} multiply-accumulates on {SIDE} x {SIDE}.

va.create_block("{name}", {CHANNELS})
va.insert(model, "{name}", position="residual", example=x)"""
