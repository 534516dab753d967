"""Where the cells of feature maps lie on the input: from edge to edge, or within a margin.

Trained networks with padding look where their cells lie from edge to edge. Without padding each
convolution loses pixels at the border, and the cells have a margin of the input around them:

    84 pixels -> 20 (8 x 8, stride 4) -> 9 (4 x 4, stride 2) -> 7 (3 x 3): 7 cells of 4 * 2 pixels
    |- margin 14 -|------ 56 ------|- margin 14 -|
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from visattn.geometry.affine import Margin
from visattn.recording.interception import in_this_run
from visattn.recording.places import Grid

_STRIDED = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.ConvTranspose2d)


class CellStrides:
    """Pixels from one cell to the next in each feature map of a network, as its modules run.

    They are products of the strides of convolutions and pooling. Whatever else changes the size of
    a map, such as a function or adaptive pooling, takes it for going from edge to edge.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 8, 4), nn.ReLU(), nn.Conv2d(4, 4, 4, 2))
        >>> with CellStrides().watching(network) as strides:
        ...     network(torch.zeros(1, 3, 84, 84)).shape
        torch.Size([1, 4, 9, 9])
        >>> strides.margin((9, 9))
        (6, 6)
    """

    def __init__(self) -> None:
        self._first: nn.Module | None = None
        self._strides: dict[Grid, tuple[float, float]] = {}

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator["CellStrides"]:
        """Note the strides of the maps that the model computes in the block."""
        note = in_this_run(self._note)
        with ExitStack() as stack:
            for module in model.modules():
                if isinstance(module, _STRIDED):
                    # before the hooks of blocks that were inserted behind it
                    handle = module.register_forward_hook(note, prepend=True)
                    stack.callback(handle.remove)
            yield self

    def margin(self, grid: Grid, size: tuple[int, int] | None = None) -> Margin:
        """Return what of the input is free of cells, above and below, and left and right.

        Args:
            grid: Rows and columns of a map.
            size: Height and width of the input; by default of that of the first convolution.
        """
        if not self._strides:
            return 0, 0
        seen = next(iter(self._strides))  # the input of the first convolution
        margins = [0, 0]
        for axis, stride in enumerate(self._of(grid)):
            free = seen[axis] - stride * grid[axis]
            if free >= stride / 2:
                margins[axis] = round(free / 2 * (size or seen)[axis] / seen[axis])
        return margins[0], margins[1]

    def _note(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if not args:  # called by keyword
            return
        before, after = ((each.shape[-2], each.shape[-1]) for each in (args[0], output))
        if self._first is None or module is self._first:  # another run of the model
            self._first = module
            self._strides = {before: (1.0, 1.0)}
        step: Any = module.stride
        y, x = step if isinstance(step, tuple) else (step, step)
        if isinstance(module, nn.ConvTranspose2d):
            y, x = 1 / y, 1 / x
        rows, columns = self._of(before)
        self._strides.setdefault(after, (rows * y, columns * x))

    def _of(self, grid: Grid) -> tuple[float, float]:
        """Return the stride of a map, by the map of the most similar size."""

        def difference(known: Grid) -> float:
            return sum(abs(math.log(a / b)) for a, b in zip(known, grid, strict=True))

        near = min(self._strides, key=difference)
        (rows, columns), (y, x) = near, self._strides[near]
        return y * rows / grid[0], x * columns / grid[1]
