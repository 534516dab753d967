"""Parameters and multiply-accumulate operations (MACs) of a model and its attention blocks."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from visattn.blocks.registry import block_name
from visattn.insertion.sites import Example, default_example, modes_restored, run_model
from visattn.insertion.with_block import WithBlock, plain_modules


@dataclass(frozen=True)
class SiteCost:
    """Cost of the blocks at one site, or of the rest; MACs are per image."""

    site: str
    blocks: str
    num_parameters: int
    macs: int


@dataclass(frozen=True)
class ModelSummary:
    """Cost of a model: everything that is not attention first, then each site."""

    rows: tuple[SiteCost, ...]

    @property
    def num_parameters(self) -> int:
        """Number of all parameters."""
        return sum(row.num_parameters for row in self.rows)

    @property
    def macs(self) -> int:
        """MACs per image of the whole model."""
        return sum(row.macs for row in self.rows)

    def __str__(self) -> str:
        """Return a table."""
        rows = [*self.rows, SiteCost("total", "", self.num_parameters, self.macs)]
        head = f"{'site':<28}  {'blocks':<12}  {'parameters':>13}  {'MACs per image':>16}"
        cells = [(r.site, r.blocks, r.num_parameters, r.macs) for r in rows]
        return "\n".join([head, *(f"{s:<28}  {b:<12}  {p:>13,}  {m:>16,}" for s, b, p, m in cells)])


def summary(model: nn.Module, example: Example | None = None) -> ModelSummary:
    """Return parameters and MACs of a model, per block and in total; on any device, even `meta`.

    MACs are half the FLOPs of `torch.utils.flop_counter`, which counts convolutions, linear layers
    and attention, but not gates, norms, activations and pooling.

    Args:
        model: Model with or without blocks, inserted or its own; or a single block.
        example: Example input as for `insert`; the first axis is the batch.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False))
        >>> x = torch.zeros(1, 3, 5, 7)
        >>> _ = insert(model, "se", position="0", example=x, reduction=4)
        >>> print(summary(model, x))
        site                          blocks           parameters    MACs per image
        (the rest)                                            216             3,240
        0                             se                       43                32
        total                                                 259             3,272
    """
    example = default_example(model) if example is None else example
    blocks: dict[str, tuple[str, nn.Module]] = {}
    for name, module in plain_modules(model).items():
        inside = any(not outer or name.startswith(f"{outer}.") for outer in blocks)
        if isinstance(module, WithBlock):
            blocks[name] = " + ".join(module.visattn.names), module.visattn
        elif not inside and (own := block_name(module)):
            blocks[name] = own, module
    named = cast("Iterable[tuple[str, nn.Module]]", model.named_modules())
    paths = {id(module): f".{path}" if path else "" for path, module in named}
    with torch.no_grad(), modes_restored(model), FlopCounterMode(display=False) as counter:
        run_model(model, example)
    flops = {name: sum(each.values()) for name, each in counter.get_flop_counts().items()}
    first = next(x for x in tree_leaves(example) if isinstance(x, Tensor))
    batch = len(example) if isinstance(example, list) and first.ndim == 3 else len(first)
    rows = [
        SiteCost(
            name or "(the model)",
            kind,
            sum(parameter.numel() for parameter in module.parameters()),
            flops.get(type(model).__name__ + paths[id(module)], 0) // 2 // batch,
        )
        for name, (kind, module) in blocks.items()
    ]
    rest = sum(p.numel() for p in model.parameters()) - sum(row.num_parameters for row in rows)
    others = flops.get("Global", 0) // 2 // batch - sum(row.macs for row in rows)
    return ModelSummary((SiteCost("(the rest)", "", rest, others), *rows))
