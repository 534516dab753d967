"""What inserted attention costs, site by site, as a table to read."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from visattn.blocks.catalogues import name_of
from visattn.blocks.surgery.costs import Work, work
from visattn.blocks.surgery.grafts import CHILD, Graft, modules_of
from visattn.blocks.surgery.traces import Example

WHOLE = "(the model)"
"""The site of a model that is one block and nothing else."""

CONVENTION = (
    "MACs are multiplications, each with its addition (twice as many FLOPs), of one picture.\n"
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
        work: Multiplications for one picture.
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
        picture: Shape of what it was counted on, without the batch.
    """

    rows: tuple[Cost, ...]
    picture: tuple[int, ...]

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
        """Multiplications for one picture, in all."""
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
                f"picture: {' x '.join(map(str, self.picture))}; "
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
        >>> from visattn.blocks.surgery.insertions import insert
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False))
        >>> x = torch.zeros(1, 3, 5, 7)
        >>> _ = insert(model, "se", at="0", example=x, reduction=4)
        >>> print(str(table(model, x)).partition("picture")[0])
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
        if not inside and (isinstance(module, Graft) or name_of(module)):
            found[name] = module
    return found


def _row(name: str, part: nn.Module, share: Work) -> Cost:
    graft = isinstance(part, Graft)
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
