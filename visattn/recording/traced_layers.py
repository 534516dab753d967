"""Places of layers and tokens on the image, by the arithmetic of receptive fields alone.

The run on quadrant images (see `quadrant_probe`) measures which activations lie on the image, and
in which order. Where all of them can be followed through strides, reshapes and windows, the answer
is known without it: a plane whose centers go down its rows and along its columns is a layer.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.recording.model_info import FeatureLayer, FeatureLayout
from visattn.recording.position_rules import Axis, Line, Lines, Run, Tokens, moves, steps
from visattn.recording.quadrant_probe import (
    PASS_THROUGH,
    QuadrantProbeResult,
    candidate_grids,
    is_candidate,
)
from visattn.recording.receptive_field import TracedGrids, TracedTensor
from visattn.recording.token_grid import PROBE_BATCH_SIZE, Grid

_PLANES: tuple[tuple[FeatureLayout, tuple[int, int]], ...] = (
    ("b c y x", (2, 3)),
    ("b y x c", (1, 2)),
)


class _LeftOpenError(Exception):
    """Arithmetic does not tell whether, or where, a tensor lies on the image."""


def quadrants_by_arithmetic(model: nn.Module, traced: TracedGrids) -> QuadrantProbeResult | None:
    """Return what the run on quadrant images would measure; None if arithmetic leaves it open.

    It is open if any output that might lie on the image cannot be followed there: pixels tell more.

    Example:
        >>> from visattn.recording.receptive_field import trace_grids
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten())
        >>> traced = trace_grids(model, model, (2, 3, 16, 24))
        >>> list(quadrants_by_arithmetic(model, traced).feature_layers)
        ['0', '1']
    """
    modules = dict(model.named_modules())
    result = QuadrantProbeResult()
    try:
        for site, calls in traced.calls.items():
            result.num_calls[site] = len(calls)
            for index, call in enumerate(calls):
                for tensor in call.arguments:
                    _count_prefix_tokens(tensor, traced.input_size, result)
                if isinstance(modules[site], PASS_THROUGH):
                    continue
                layer = _layer(site, call.output, traced.input_size, result)
                # A module that runs twice has two outputs: it is no layer that names a map.
                result.feature_layers.pop(site, None)
                if layer is not None and index == 0:
                    result.feature_layers[site] = layer
    except _LeftOpenError:
        return None
    return result


def _layer(
    site: str, tensor: TracedTensor | None, size: tuple[int, int], result: QuadrantProbeResult
) -> FeatureLayer | None:
    """Return layout and grid of an output; None if it does not lie on the image."""
    if tensor is None or len(tensor.shape) not in (3, 4) or tensor.shape[0] != PROBE_BATCH_SIZE:
        return None
    if len(tensor.shape) == 3:
        _count_prefix_tokens(tensor, size, result)
        return _token_layer(site, tensor, size)
    candidates: list[tuple[FeatureLayout, Grid, tuple[int, int]]] = []
    for layout, axes in _PLANES:
        grid = (tensor.shape[axes[0]], tensor.shape[axes[1]])
        if grid != (1, 1) and is_candidate(grid, size):
            candidates.append((layout, grid, axes))
    for layout, grid, axes in candidates:
        if _lies_on(tensor, axes, size):
            return FeatureLayer(site, layout, grid)
    if candidates and not _is_followed(tensor.lines, size):
        raise _LeftOpenError
    return None


def _is_followed(lines: Lines, size: tuple[int, int]) -> bool:
    """Whether rows and columns of a tensor are known, and run forwards over the whole image."""
    return all(
        line is not None
        and not line.rolled
        and all(run.step >= 0 for axis in line.axes for run in steps(axis))
        and _is_centered(line, side)
        for line, side in zip(lines, size, strict=True)
    )


def _lies_on(tensor: TracedTensor, axes: tuple[int, int], size: tuple[int, int]) -> bool:
    """Whether rows and columns run along these axes, from the top left to the bottom right."""
    return any(tensor.lines) and all(
        (line is None and tensor.shape[axis] == 1) or _runs_along(line, axis, side)
        for line, axis, side in zip(tensor.lines, axes, size, strict=True)
    )


def _runs_along(line: Line | None, axis: int, side: int) -> bool:
    """Whether centers move along one axis alone, forwards, around the middle of the image."""
    if line is None or line.rolled or [i for i, a in enumerate(line.axes) if moves(a)] != [axis]:
        return False
    [run, *others] = line.axes[axis]
    if others or not isinstance(run, Run) or run.step <= 0:
        return False
    return _is_centered(line, side)


def _is_centered(line: Line, side: int) -> bool:
    # The first half of the cells must see the first half of the image. What looks at one side of
    # the image alone is left to the run on images, which refuses it.
    runs = [run for axis in line.axes for run in steps(axis)]
    middle = line.start + sum(run.step * (run.size - 1) for run in runs) / 2
    return abs(middle - side / 2) <= min(run.step for run in runs if run.step)


# ---------------------------------------------------------------- sequences of tokens


def _token_grid(lines: Lines, size: tuple[int, int]) -> tuple[int, Grid] | None:
    """Return the number of tokens before the grid of a sequence, and the grid; None if unknown."""
    if any(line is None or line.rolled for line in lines):
        return None
    axes: list[Axis] = [line.axes[1] for line in lines if line is not None]
    if any([i for i, a in enumerate(line.axes) if moves(a)] != [1] for line in lines if line):
        return None
    parts: list[tuple[int, int, tuple[Run | Tokens, ...]]] = []
    for axis in axes:
        [first, *others] = axis
        if isinstance(first, Tokens) and not others:
            parts.append((first.lead, first.tail, first.runs))
        else:
            parts.append((0, 0, axis))
    (lead, tail, down), (other_lead, other_tail, along) = parts
    if lead != other_lead or tail or other_tail or len(down) != 2 or len(along) != 2:
        return None
    rows, columns = down[0], along[1]
    if not isinstance(rows, Run) or not isinstance(columns, Run):
        return None
    if down[1] != Run(columns.size, 0.0) or along[0] != Run(rows.size, 0.0):
        return None
    if rows.step <= 0 or columns.step <= 0 or not _is_followed(lines, size):
        return None
    return lead, (rows.size, columns.size)


def _token_layer(site: str, tensor: TracedTensor, size: tuple[int, int]) -> FeatureLayer | None:
    known = _token_grid(tensor.lines, size)
    if known is None:
        return None  # of a length that forms no grid, or `_count_prefix_tokens` left it open
    lead, grid = known
    return FeatureLayer(site, "b n c", grid, lead) if is_candidate(grid, size) else None


def _count_prefix_tokens(
    tensor: TracedTensor, size: tuple[int, int], result: QuadrantProbeResult
) -> None:
    """Note how many tokens are before the grid, where a length of sequences first occurs."""
    if len(tensor.shape) != 3 or tensor.shape[0] != PROBE_BATCH_SIZE:
        return
    count = tensor.shape[1]
    known = _token_grid(tensor.lines, size)
    if known is None and any(True for n in range(count, 1, -1) for _ in candidate_grids(n, size)):
        raise _LeftOpenError
    result.num_prefix_tokens.setdefault(count, 0 if known is None else known[0])


# ---------------------------------------------------------------- tokens of attention


def tokens_follow(
    lines: Lines,
    shape: tuple[int, int, int],
    grid: Grid,
    num_prefix_tokens: int,
    windows: Int[Tensor, "w m"] | None,
    size: tuple[int, int],
) -> bool:
    """Return whether the tokens of attention lie in the order of their indices on a grid.

    Args:
        lines: Of the values of attention, `[g h m d]` or `[g*h m d]`.
        shape: Groups, heads, tokens of a group.
        windows: Token indices of each window, -1 for empty slots; None for one window of all.
        size: Height and width of the image.
    """
    groups, heads, slots = shape
    if windows is None:
        cells = torch.arange(-num_prefix_tokens, grid[0] * grid[1])[None]
    else:
        cells = torch.where(windows < 0, -1, windows - num_prefix_tokens).cpu()
    if cells.shape != (groups // PROBE_BATCH_SIZE, slots):
        return False
    occupied = cells >= 0
    expected = cells[occupied] // grid[1], cells[occupied] % grid[1]
    for line, indices, count, side in zip(lines, expected, grid, size, strict=True):
        positions = None if line is None else _positions(line, count, side)
        if positions is None or positions.numel() != groups * heads * slots:
            return False
        own = positions.view(groups, heads, slots)[: len(cells), 0]
        if not bool((own[occupied] == indices).all()):
            return False
    return True


def _positions(line: Line, count: int, side: int) -> Float[Tensor, "..."] | None:
    """Return the row, or column, of each token of a tensor `[..., m, d]`; None if unknown."""
    sizes = [run.step for axis in line.axes for run in steps(axis) if run.step]
    if not sizes or min(sizes) < 0 or moves(line.axes[-1]):
        return None
    step = min(sizes)
    if not _is_centered(line, side):
        return None
    result = torch.zeros((), dtype=torch.float64)
    for axis in line.axes[:-1]:
        result = result[..., None] + _offsets(axis) / step
    # What was rolled around has the place before the roll.
    return (result - line.rolled / step).round().remainder(count) if line.rolled else result


def _offsets(axis: Axis) -> Float[Tensor, " n"]:
    """Return the distance of each position along an axis from the first, in pixels."""
    result = torch.zeros(1, dtype=torch.float64)
    for part in axis:
        if isinstance(part, Run):
            inner = torch.arange(part.size, dtype=torch.float64) * part.step
        else:
            nowhere = result.new_tensor([float("nan")])
            inner = torch.cat(
                [nowhere.expand(part.lead), _offsets(part.runs), nowhere.expand(part.tail)]
            )
        result = (result[:, None] + inner).flatten()
    return result
