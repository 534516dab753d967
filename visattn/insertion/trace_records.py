"""What was seen in one run of a model."""

from dataclasses import dataclass, field

import torch

from visattn.insertion.feature_layout import Grid, grid_of
from visattn.insertion.resolutions import Change


@dataclass(frozen=True)
class Output:
    """What a module returned in one call; without a shape if that was no tensor.

    Args:
        kind: `Tensor`, or what else it was.
        shape: Of the tensor.
        last: Whether features carry their channels on the last axis; None if nothing tells.
        floating: Whether the numbers are of a kind that can be learned from.
        device: Where the tensor is.
        order: Of the call among all operations and calls of the run, by its end.
        source: Modules that made the features which the call took, the last and outermost last.
    """

    kind: str
    shape: tuple[int, ...] = ()
    last: bool | None = None
    floating: bool = False
    device: torch.device | None = None
    order: int = 0
    source: tuple[str, ...] = ()

    @property
    def grid(self) -> Grid:
        """Height and width of features."""
        return grid_of(self.shape, last=self.last)


@dataclass(frozen=True)
class Lineage:
    """How features came to be.

    Args:
        depth: Operations on the longest way from the input.
        modules: That returned them, one after another, the last and outermost last.
        last: Whether their channels are on the last axis; None if unknown.
        near: The same as `modules`, or those before functions of one input, such as an activation.
    """

    depth: int
    modules: tuple[str, ...] = ()
    last: bool | None = None
    near: tuple[str, ...] = ()


@dataclass(frozen=True)
class Addition:
    """Features that were added to features which took fewer operations: the end of a branch.

    Args:
        branch: The module whose output the longer way was; None if there was none.
        within: Modules that were running, the outermost first.
        grid: Height and width of the sum.
        order: Of the sum among all operations and calls of the run.
    """

    branch: str | None
    within: tuple[str, ...]
    grid: Grid
    order: int = 0


@dataclass
class Trace:
    """What was seen in a run.

    Args:
        image: Height and width of the example, if it has any.
        outputs: Of each module, call by call.
        additions: Of branches, in order.
        changes: Of the size of features, on the main path and in order.
        pooled: For each size, the modules whose output was last pooled to a single place, or
            flattened; and the order of that.
        convolved: The size and the order of what each convolution gave.
        weighted: The order of the last convolution or linear map.
        made: Modules that returned the output of the model, the last and outermost last.
    """

    image: Grid | None
    outputs: dict[str, list[Output]] = field(default_factory=dict[str, list[Output]])
    additions: list[Addition] = field(default_factory=list[Addition])
    changes: list[Change] = field(default_factory=list[Change])
    pooled: dict[Grid, tuple[tuple[str, ...], int]] = field(
        default_factory=dict[Grid, tuple[tuple[str, ...], int]]
    )
    convolved: list[tuple[Grid, int]] = field(default_factory=list[tuple[Grid, int]])
    weighted: int = 0
    made: tuple[str, ...] = ()
