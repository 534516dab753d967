"""Parameters and multiply-accumulate operations (MACs) of a model and its attention blocks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from visattn.blocks.registry import block_name
from visattn.insertion.sites import Example, default_example, modes_restored, run_model
from visattn.insertion.with_block import WithBlock, plain_modules


@dataclass(frozen=True)
class SiteCost:
    """Cost of the blocks at one site; without a name, that of everything else.

    Args:
        macs: Multiply-accumulate operations per image.
    """

    site: str
    blocks: str
    num_parameters: int
    macs: int


@dataclass(frozen=True)
class ModelSummary:
    """Cost of a model: everything that is not attention first, then each site."""

    rows: tuple[SiteCost, ...]
    image_shape: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Number of all parameters."""
        return sum(row.num_parameters for row in self.rows)

    @property
    def macs(self) -> int:
        """MACs per image of the whole model."""
        return sum(row.macs for row in self.rows)

    def __str__(self) -> str:
        """Return the table and what is counted."""
        rows = [*self.rows, SiteCost("in all", "", self.num_parameters, self.macs)]
        cells = [("site", "blocks", "parameters", "MACs")]
        cells += [
            (r.site or "(the rest)", r.blocks, f"{r.num_parameters:,}", f"{r.macs:,}") for r in rows
        ]
        a, b, c, d = (max(map(len, column)) for column in zip(*cells, strict=True))
        lines = [f"{i:<{a}}  {j:<{b}}  {k:>{c}}  {m:>{d}}" for i, j, k, m in cells]
        lines += [
            f"for one image of {' x '.join(map(str, self.image_shape))}. MACs are multiplications "
            "and additions",
            "(half as many as FLOPs) of convolutions, linear layers and attention, as counted by",
            "torch.utils.flop_counter; gates, norms, activations and pools are not counted.",
        ]
        return "\n".join(lines)


def summary(model: nn.Module, example: Example | None = None) -> ModelSummary:
    """Return parameters and MACs of a model, per block and in total; any device, also `meta`.

    Args:
        model: Model with or without blocks, inserted or its own; or a single block.
        example: Example input as for `insert`; the first axis is the batch.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False))
        >>> x = torch.zeros(1, 3, 5, 7)
        >>> _ = insert(model, "se", position="0", example=x, reduction=4)
        >>> print(str(summary(model, x)).partition("for one")[0])
        site        blocks  parameters   MACs
        (the rest)                 216  3,240
        0           se              43     32
        in all                     259  3,272
    """
    example = default_example(model) if example is None else example
    blocks: dict[str, tuple[str, nn.Module]] = {}
    for name, module in plain_modules(model).items():
        inside = any(not outer or name.startswith(f"{outer}.") for outer in blocks)
        if isinstance(module, WithBlock):
            blocks[name] = " + ".join(module.visattn.names), module.visattn
        elif not inside and (own := block_name(module)):
            blocks[name] = own, module
    counter = FlopCounterMode(display=False)
    macs = dict.fromkeys(blocks, 0)

    def count(name: str, sign: int) -> Callable[..., None]:
        def hook(*_: object) -> None:  # what was counted until it returned, less until it started
            macs[name] += sign * counter.get_total_flops() // 2

        return hook

    hooks = [module.register_forward_pre_hook(count(n, -1)) for n, (_, module) in blocks.items()]
    hooks += [module.register_forward_hook(count(n, 1)) for n, (_, module) in blocks.items()]
    try:
        with torch.no_grad(), modes_restored(model), counter:
            run_model(model, example)
    finally:
        for hook in hooks:
            hook.remove()
    shapes = [x.shape for x in tree_leaves(example) if isinstance(x, Tensor)]
    images = isinstance(example, list) and len(shapes[0]) == 3
    batch, image_shape = (len(shapes), shapes[0]) if images else (shapes[0][0], shapes[0][1:])
    rows = [
        SiteCost(name or "(the model)", kind, _count_parameters(module), macs[name] // batch)
        for name, (kind, module) in blocks.items()
    ]
    rest = _count_parameters(model) - sum(row.num_parameters for row in rows)
    others = counter.get_total_flops() // 2 // batch - sum(row.macs for row in rows)
    return ModelSummary((SiteCost("", "", rest, others), *rows), tuple(image_shape))


def _count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
