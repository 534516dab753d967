"""Parameters and multiply-accumulate operations (MACs) of a model and its attention blocks."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from visattn.blocks.registry import block_name
from visattn.insertion.inserted_block import CHILD_NAME, InsertedBlock, named_modules
from visattn.insertion.trace import (
    Example,
    check_example,
    is_image_list,
    modes_restored,
    run_model,
)


@dataclass
class MACs:
    """Number of multiplications by kind of operation.

    Args:
        weighted: Products with weights: convolutions, linear layers, matrix products.
        attention: Products of features with features: batched matrix products, attention.
        elementwise: One per element of a product of two tensors, neither of them a scalar.
    """

    weighted: int = 0
    attention: int = 0
    elementwise: int = 0

    @property
    def total(self) -> int:
        """Number of all multiplications."""
        return self.weighted + self.attention + self.elementwise

    def add(self, other: "MACs") -> None:
        """Add other counts to these."""
        self.weighted += other.weighted
        self.attention += other.attention
        self.elementwise += other.elementwise


def count_macs(
    model: nn.Module, example: Example, sites: Mapping[str, nn.Module]
) -> dict[str, MACs]:
    """Return the MACs of one run, per site, and of the rest under the name "".

    If the model itself is a site, which then has that name, there is no rest. Any device works,
    including `meta`, on which nothing is computed.

    Example:
        >>> count_macs(nn.Linear(3, 5), torch.zeros(2, 3), {})
        {'': MACs(weighted=30, attention=0, elementwise=0)}
    """
    counter = _MACCounter(model)
    counted = {"": counter.macs}
    with torch.no_grad(), modes_restored(model), _count_by_site(sites, counter, counted), counter:
        run_model(model, example)
    return counted


@contextmanager
def _count_by_site(
    sites: Mapping[str, nn.Module], counter: "_MACCounter", counted: dict[str, MACs]
) -> Generator[None]:
    def watcher(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(*_: object) -> None:
            counter.macs = counted[name]

        def leave(*_: object) -> None:
            counter.macs = counted[""]  # sites lie in no other site

        return enter, leave

    handles: list[Any] = []
    try:
        for name, module in sites.items():
            counted[name] = MACs()
            enter, leave = watcher(name)
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave))
        yield
    finally:
        for handle in handles:
            handle.remove()


class _MACCounter(TorchDispatchMode):
    """Count the multiplications of all dispatched operations."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.macs = MACs()
        self.weights = {_storage_id(weight) for weight in model.parameters()}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation and count its multiplications."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).removeprefix("aten.")
        if isinstance(result, Tensor) or "scaled_dot_product" in name:
            self.macs.add(_count_operation(name, args, result, self.weights))
        return result


def _storage_id(x: Tensor) -> int:
    """Return an identifier of the storage, shared by views, also on the meta device."""
    return cast("Any", StorageWeakRef(x.untyped_storage())).cdata


def _count_operation(name: str, args: tuple[Any, ...], result: Any, weights: set[int]) -> MACs:
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if name in ("convolution", "_convolution"):
        moved = tensors[0] if args[6] else result  # transposed: once per input
        return MACs(weighted=moved.numel() * tensors[1].shape[1:].numel())
    if name in ("mm", "addmm", "mv", "addmv", "linear"):
        inner = tensors[0 if name in ("mm", "mv", "linear") else 1].shape[-1]
        return MACs(weighted=result.numel() * inner)
    if name in ("bmm", "baddbmm"):
        products = result.numel() * tensors[-1].shape[-2]
        # A weight that is expanded to a batch is a view: it has the storage of the parameter.
        weighted = any(_storage_id(x) in weights for x in tensors[-2:])
        return MACs(weighted=products) if weighted else MACs(attention=products)
    if "scaled_dot_product" in name:
        query, key, value = tensors[:3]
        rows = query.shape[:-1].numel() * key.shape[-2]
        return MACs(attention=rows * (query.shape[-1] + value.shape[-1]))
    if name in ("mul", "mul_") and len(tensors) == 2 and min(t.numel() for t in tensors) > 1:
        return MACs(elementwise=result.numel())
    return MACs()


WHOLE_MODEL = "(the model)"
"""Site name of a model that is a single block."""

CONVENTION = (
    "MACs are multiply-accumulate operations per image (twice as many FLOPs).\n"
    "conv+linear: products with weights. "
    "attention: products of features with features. gates: one\n"
    "per element of a product of two tensors. Normalization, activations, pooling, sums and\n"
    "identity scales are not counted."
)


@dataclass(frozen=True)
class SiteCost:
    """Cost of one site.

    Args:
        site: Name of the site; empty for everything that is not attention.
        num_identity_scales: Number of identity scales, which no paper has.
    """

    site: str
    blocks: str
    num_parameters: int
    num_identity_scales: int
    macs: MACs


@dataclass(frozen=True)
class ModelSummary:
    """Cost of a model; printed, a table that states its counting convention.

    Args:
        rows: The model without attention first, then each site.
    """

    rows: tuple[SiteCost, ...]
    image_shape: tuple[int, ...]

    @property
    def num_parameters(self) -> int:
        """Number of all parameters."""
        return sum(row.num_parameters for row in self.rows)

    @property
    def num_identity_scales(self) -> int:
        """Number of identity scales."""
        return sum(row.num_identity_scales for row in self.rows)

    @property
    def macs(self) -> MACs:
        """MACs per image of the whole model."""
        total = MACs()
        for row in self.rows:
            total.add(row.macs)
        return total

    def __str__(self) -> str:
        """Return the table, the number of parameters and the counting convention."""
        head = ("site", "blocks", "parameters", "conv+linear", "attention", "gates", "MACs")
        total = SiteCost("in all", "", self.num_parameters, self.num_identity_scales, self.macs)
        lines = [head, *(_format_cells(row) for row in self.rows), _format_cells(total)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = ["  ".join(_pad_cells(line, widths)).rstrip() for line in lines]
        return "\n".join(
            [
                *text,
                f"parameters: {self.num_parameters:,} = {self.num_parameters / 10**6:.3f} x 10^6 = "
                f"{self.num_parameters / 2**20:.3f} x 2^20; "
                f"{self.num_identity_scales} of them are identity scales",
                f"image: {' x '.join(map(str, self.image_shape))}; "
                f"{self.macs.total / 10**9:.4f} x 10^9 MACs, "
                f"{self.macs.weighted / 10**9:.4f} x 10^9 of them in conv+linear",
                CONVENTION,
            ]
        )


def summary(model: nn.Module, example: Example) -> ModelSummary:
    """Return parameters and MACs of a model, per block and in total.

    Args:
        model: Model with or without blocks, baked or not; or a single block.
        example: Example input: a tensor, or a tuple or list of all arguments; the first axis is the
            batch.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False))
        >>> x = torch.zeros(1, 3, 5, 7)
        >>> _ = insert(model, "se", position="0", example=x, reduction=4)
        >>> print(str(summary(model, x)).partition("image")[0])
        site        blocks  parameters  conv+linear  attention  gates   MACs
        (the rest)                 216        3,240          0      0  3,240
        0           se              43           32          0    120    152
        in all                     259        3,272          0    120  3,392
        parameters: 259 = 0.000 x 10^6 = 0.000 x 2^20; 1 of them are identity scales
    """
    check_example(example)
    blocks = _find_blocks(model)
    counted = count_macs(model, example, blocks)
    shapes = [leaf.shape for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    listed = is_image_list(example)
    batch, image_shape = (len(shapes), shapes[0]) if listed else (shapes[0][0], shapes[0][1:])
    rows = [
        _site_cost(name, block, _per_image(counted[name], batch)) for name, block in blocks.items()
    ]
    rest = sum(p.numel() for p in model.parameters()) - sum(row.num_parameters for row in rows)
    elsewhere = MACs() if "" in blocks else counted[""]  # a single block has no rest
    bare = SiteCost("", "", rest, 0, _per_image(elsewhere, batch))
    return ModelSummary((bare, *rows), tuple(image_shape))


def _find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return what was inserted, and blocks that a model was built with, by name."""
    blocks: dict[str, nn.Module] = {}
    for name, module in named_modules(model).items():
        inside = any(name.startswith(f"{outer}.") or not outer for outer in blocks)
        if not inside and (isinstance(module, InsertedBlock) or block_name(module)):
            blocks[name] = module
    return blocks


def _site_cost(name: str, block: nn.Module, share: MACs) -> SiteCost:
    site = name.removesuffix(f".{CHILD_NAME}") or WHOLE_MODEL
    num_parameters = sum(p.numel() for p in block.parameters())
    if not isinstance(block, InsertedBlock):
        return SiteCost(site, block_name(block) or "", num_parameters, 0, share)
    num_scales = sum(scale.numel() for scale in block.identity_scales)
    return SiteCost(site, " + ".join(block.names), num_parameters, num_scales, share)


def _per_image(total: MACs, batch: int) -> MACs:
    return MACs(*(count // batch for count in astuple(total)))


def _format_cells(row: SiteCost) -> tuple[str, ...]:
    counts = (row.num_parameters, *astuple(row.macs), row.macs.total)
    return (row.site or "(the rest)", row.blocks, *(f"{count:,}" for count in counts))


def _pad_cells(line: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
