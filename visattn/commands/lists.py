"""`visattn models`, `configs`, `blocks`: list what comes with visattn, or describe one of them."""

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping

from tyro.conf import Positional

from visattn.commands.streams import print_lines
from visattn.io.messages import did_you_mean
from visattn.models.model_files import BUNDLED, bundled_models

CHANNELS = 256
SIDE = 56  # image size for the cost of blocks


def models(name: Positional[str] = "") -> int:
    """List the trained models that come with visattn, or print the card of one.

    va.load(NAME) loads a model; --model NAME uses it in a command.

    Args:
        name: the card to print: data, training config, test scores, limits

    Example:
        >>> models("scenes-captioner")
        ---
        library_name: visattn
        ...
        0
    """
    summaries = bundled_models()
    if not name:
        _print_summaries({each: f"{_terms(each)}  {text}" for each, text in summaries.items()})
        return 0
    if name not in summaries:
        raise FileNotFoundError(f"no model is named {name!r}; {did_you_mean(name, summaries)}")
    print((BUNDLED / f"{name}.md").read_text(encoding="utf-8"), end="")
    return 0


def _terms(name: str) -> str:
    """Return size and license of a model.

    Example:
        >>> _terms("scenes-captioner")
        '1.7 MB, apache-2.0'
    """
    size = (BUNDLED / f"{name}.safetensors").stat().st_size / 1e6
    card = (BUNDLED / f"{name}.md").read_text(encoding="utf-8")
    found = re.search("^license: (.+)$", card, re.MULTILINE)
    return f"{size:.1f} MB, {found[1] if found else 'license unknown'}"


def configs(name: Positional[str] = "") -> int:
    """List the configs that come with visattn, each one an experiment, or print one to edit.

    visattn fit --config NAME trains one of them from any folder.

    Args:
        name: the config to print

    Example:
        >>> configs("scenes_demo")
        # Captioning on rendered scenes: ...
        0
    """
    from visattn.training.command import find_config, list_configs

    if name:
        print(find_config(name).read_text(), end="")
    else:
        _print_summaries(list_configs())
    return 0


def _print_summaries(summaries: Mapping[str, str]) -> None:
    """Print names with summaries: wrapped in a column on a terminal, else one per line.

    Example:
        >>> _print_summaries({"eca": "three weights", "cbam": "two gates"})
        eca   three weights
        cbam  two gates
    """
    width = max(map(len, summaries)) + 2
    room = max(shutil.get_terminal_size().columns - width, 20) if sys.stdout.isatty() else None
    for name, summary in summaries.items():
        lines = [summary] if room is None else textwrap.wrap(summary, room)
        names = [name, *[""] * len(lines)]
        print_lines(f"{first:{width}}{line}" for first, line in zip(names, lines, strict=False))


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

    They are counted on the meta device, where a block of the user may not run.
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
