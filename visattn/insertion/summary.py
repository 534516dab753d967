"""What a model computes: multiplications, counted where torch makes them."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from visattn.blocks.registry import name_of
from visattn.insertion.graft import CHILD, InsertedBlock, modules_of
from visattn.insertion.tracer import Example, resting, run


@dataclass
class Work:
    """Multiplications, by what they are for.

    Args:
        weighted: With weights: in convolutions, linear layers, matrix products with a parameter.
        attention: Of features with features: in batched matrix products and scaled dot products.
        gates: One for each element of a product of two tensors, neither of them a single number.
    """

    weighted: int = 0
    attention: int = 0
    gates: int = 0

    @property
    def macs(self) -> int:
        """All of them."""
        return self.weighted + self.attention + self.gates

    def add(self, other: "Work") -> None:
        """Count the work of another here too."""
        self.weighted += other.weighted
        self.attention += other.attention
        self.gates += other.gates


def work(model: nn.Module, example: Example, sites: Mapping[str, nn.Module]) -> dict[str, Work]:
    """Return what is computed at sites in one run, and elsewhere, under the name "".

    If the model itself is a site, which then has that name, there is no elsewhere. Any device will
    do, `meta` among them, on which nothing is computed and all is counted.

    Example:
        >>> work(nn.Linear(3, 5), torch.zeros(2, 3), {})
        {'': Work(weighted=30, attention=0, gates=0)}
    """
    counter = _Counter(model)
    counted = {"": counter.work}
    with resting(model), _entered(sites, counter, counted), counter:
        run(model, example)
    return counted


@contextmanager
def _entered(
    sites: Mapping[str, nn.Module], counter: "_Counter", counted: dict[str, Work]
) -> Generator[None]:
    def watcher(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(*_: object) -> None:
            counter.work = counted[name]

        def leave(*_: object) -> None:
            counter.work = counted[""]

        return enter, leave

    handles: list[Any] = []
    try:
        for name, module in sites.items():
            counted[name] = Work()
            enter, leave = watcher(name)
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave))
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Counter(TorchDispatchMode):
    """Count the multiplications of all that is dispatched."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.work = Work()
        self.weights = {_memory(weight) for weight in model.parameters()}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation of torch and count it."""
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).removeprefix("aten.")
        if isinstance(result, Tensor) or "scaled_dot_product" in name:
            self.work.add(_counted(name, args, result, self.weights))
        return result


def _memory(x: Tensor) -> int:
    """Return what tells memory apart, on the meta device too; views share it."""
    return cast("Any", StorageWeakRef(x.untyped_storage())).cdata


def _counted(name: str, args: tuple[Any, ...], result: Any, weights: set[int]) -> Work:
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    if name in ("convolution", "_convolution"):
        moved = tensors[0] if args[6] else result  # a transposed one uses each input as often
        return Work(weighted=moved.numel() * tensors[1].shape[1:].numel())
    if name in ("mm", "addmm", "mv", "addmv", "linear"):
        inner = tensors[0 if name in ("mm", "mv", "linear") else 1].shape[-1]
        return Work(weighted=result.numel() * inner)
    if name in ("bmm", "baddbmm"):
        products = result.numel() * tensors[-1].shape[-2]
        weighted = any(_memory(x) in weights for x in tensors[-2:])
        return Work(weighted=products) if weighted else Work(attention=products)
    if "scaled_dot_product" in name:
        query, key, value = tensors[:3]
        rows = query.shape[:-1].numel() * key.shape[-2]
        return Work(attention=rows * (query.shape[-1] + value.shape[-1]))
    if name in ("mul", "mul_") and len(tensors) == 2 and min(t.numel() for t in tensors) > 1:
        return Work(gates=result.numel())
    return Work()


WHOLE = "(the model)"
"""The site of a model that is one block and nothing else."""

CONVENTION = (
    "MACs are multiplications, each with its addition (twice as many FLOPs), of one image.\n"
    "conv+linear: with weights. attention: features with features, in batched matrix products and\n"
    "scaled dot products. gates: one for each element of a product of two tensors. Norms,\n"
    "activations, pools, sums and the identity scales are not counted."
)


@dataclass(frozen=True)
class Cost:
    """What one site costs.

    Args:
        site: Its name; empty for all that is not attention.
        blocks: What stands there.
        parameters: All of them, the scales too.
        scales: Identity scales, which no paper has.
        work: Multiplications for one image.
    """

    site: str
    blocks: str
    parameters: int
    scales: int
    work: Work


@dataclass(frozen=True)
class Table:
    """What a model costs; printed, it is a table that states its convention.

    Args:
        rows: The model without its attention first, then each site.
        image: Shape of what it was counted on, without the batch.
    """

    rows: tuple[Cost, ...]
    image: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """How many there are in all."""
        return sum(row.parameters for row in self.rows)

    @property
    def scales(self) -> int:
        """How many of them are identity scales."""
        return sum(row.scales for row in self.rows)

    @property
    def work(self) -> Work:
        """Multiplications for one image, in all."""
        total = Work()
        for row in self.rows:
            total.add(row.work)
        return total

    def __str__(self) -> str:
        """Return the table, what is counted, and the parameters in both units."""
        head = ("site", "blocks", "parameters", "conv+linear", "attention", "gates", "MACs")
        total = Cost("in all", "", self.parameters, self.scales, self.work)
        lines = [head, *(_cells(row) for row in self.rows), _cells(total)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = ["  ".join(_aligned(line, widths)).rstrip() for line in lines]
        return "\n".join(
            [
                *text,
                f"parameters: {self.parameters:,} = {self.parameters / 10**6:.3f} x 10^6 = "
                f"{self.parameters / 2**20:.3f} x 2^20; {self.scales} of them are identity scales",
                f"image: {' x '.join(map(str, self.image))}; "
                f"{self.work.macs / 10**9:.4f} x 10^9 MACs, "
                f"{self.work.weighted / 10**9:.4f} x 10^9 of them in conv+linear",
                CONVENTION,
            ]
        )


def table(model: nn.Module, example: Example) -> Table:
    """Return parameters and multiplications of a model, for each block in it and in all.

    Args:
        model: With inserted blocks, or built with blocks, or with neither; baked or not; or a
            block itself.
        example: What it takes: a tensor, or a tuple of all arguments; the first axis is the batch.

    Example:
        >>> from visattn.insertion.insertion import insert
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False))
        >>> x = torch.zeros(1, 3, 5, 7)
        >>> _ = insert(model, "se", at="0", example=x, reduction=4)
        >>> print(str(table(model, x)).partition("image")[0])
        site        blocks  parameters  conv+linear  attention  gates   MACs
        (the rest)                 216        3,240          0      0  3,240
        0           se              43           32          0    120    152
        in all                     259        3,272          0    120  3,392
        parameters: 259 = 0.000 x 10^6 = 0.000 x 2^20; 1 of them are identity scales
    """
    found = _attention(model)
    counted = work(model, example, found)
    shapes = [leaf.shape for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    batch = shapes[0][0]
    rows = [_row(name, part, _share(counted[name], batch)) for name, part in found.items()]
    rest = sum(p.numel() for p in model.parameters()) - sum(row.parameters for row in rows)
    elsewhere = Work() if "" in found else counted[""]  # a model that is one block has no rest
    bare = Cost("", "", rest, 0, _share(elsewhere, batch))
    return Table((bare, *rows), tuple(shapes[0][1:]))


def _attention(model: nn.Module) -> dict[str, nn.Module]:
    """Return what was inserted, and blocks that a model was built with, by name."""
    found: dict[str, nn.Module] = {}
    for name, module in modules_of(model).items():
        inside = any(name.startswith(f"{outer}.") or not outer for outer in found)
        if not inside and (isinstance(module, InsertedBlock) or name_of(module)):
            found[name] = module
    return found


def _row(name: str, part: nn.Module, share: Work) -> Cost:
    graft = isinstance(part, InsertedBlock)
    return Cost(
        site=name.removesuffix(f".{CHILD}") or WHOLE,
        blocks=" + ".join(part.names) if graft else name_of(part) or "",
        parameters=sum(p.numel() for p in part.parameters()),
        scales=sum(scale.numel() for scale in part.scales) if graft else 0,
        work=share,
    )


def _share(all_of_it: Work, batch: int) -> Work:
    return Work(*(n // batch for n in (all_of_it.weighted, all_of_it.attention, all_of_it.gates)))


def _cells(row: Cost) -> tuple[str, ...]:
    counts = (row.parameters, row.work.weighted, row.work.attention, row.work.gates, row.work.macs)
    return (row.site or "(the rest)", row.blocks, *(f"{count:,}" for count in counts))


def _aligned(line: tuple[str, ...], widths: list[int]) -> list[str]:
    return [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
