"""`visattn blocks`: list the attention blocks, or describe one."""

import inspect

from tyro.conf import Positional

CHANNELS = 256
SIDE = 56


def blocks(name: Positional[str] = "") -> int:
    """List the attention blocks with their cost at 256 channels, or describe one of them.

    va.create_block(NAME, channels, ...) creates a block; va.insert(model, NAME, position=...,
    example=...) inserts it into a network. Blocks that your modules register are listed, too, if
    VISATTN_TRUST_MODULES names these modules.

    Args:
        name: the block to describe: equation, arguments, differences from the paper
    """
    from visattn.blocks.registry import list_blocks

    names = list_blocks()
    if name:
        print(_description(name))
        return 0
    rows = [("block", "kind", "parameters", "MACs", "paper"), *map(_row, names)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for each, kind, parameters, macs, paper in rows:
        print(
            f"{each:{widths[0]}}  {kind:{widths[1]}}  {parameters:>{widths[2]}}  "
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
