"""Where a model goes from one size of features to the next."""

from visattn.blocks.surgery.layouts import Grid
from visattn.blocks.surgery.traces import Trace


def stage_grids(trace: Trace) -> list[Grid]:
    """Return height and width of each stage, in order.

    A stage is what runs at one height and width. In a model with residual branches the sizes of
    their sums count, so that a stem is no stage; in others those which a convolution made and from
    which a smaller one is made.

    Example:
        >>> trace = Trace((64, 64), narrowed={(32, 32): "a"}, pooled={(8, 8): "b", (4, 4): "c"})
        >>> trace.convolved |= {(32, 32), (8, 8)}
        >>> stage_grids(trace)
        [(32, 32), (8, 8)]
    """
    if trace.additions:
        return list(dict.fromkeys(a.grid for a in trace.additions))
    return sorted(trace.convolved & {*trace.narrowed, *trace.pooled}, reverse=True)


def stage_ends(trace: Trace) -> dict[Grid, str]:
    """Return the module that ends each stage.

    In a model with residual branches that is the outermost module that holds the last of a size
    and none of another; in others the one whose output is made smaller.

    Raises:
        ValueError: If there is no stage, or if one has no module of its own.
    """
    if not trace.additions:
        if not stage_grids(trace):
            raise ValueError(
                "this model has no stages: nothing in it makes features smaller; name the sites"
            )
        ends = {**trace.pooled, **trace.narrowed}
        return {grid: ends[grid] for grid in stage_grids(trace)}
    held: dict[str, set[Grid]] = {}
    last: dict[Grid, tuple[str, ...]] = {}
    for addition in trace.additions:
        last[addition.grid] = addition.within
        for name in addition.within:
            held.setdefault(name, set()).add(addition.grid)
    return {grid: _end(trace, grid, last[grid], held) for grid in stage_grids(trace)}


def _end(trace: Trace, grid: Grid, within: tuple[str, ...], held: dict[str, set[Grid]]) -> str:
    for name in within:
        grids = [output.grid for output in trace.outputs[name] if len(output.shape) == 4]
        if name and held[name] == {grid} and grids and grids[-1] == grid:
            return name
    raise ValueError(
        f"the stage of {grid[0]} x {grid[1]} features has no module of its own that returns them; "
        "name the sites"
    )
