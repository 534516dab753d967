"""Attention layers that the scores of a model read, and the rows that they read after the last.

A layer is read if the scores have a gradient there, a token if its row of the last such layer has:

    weights [h n m] @ values -> tokens [n c] -> MLP, norm -> pool -> scores
            rows that have a gradient           their gradients in proportion to what a mean weighs
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from visattn.recording.frozen import frozen
from visattn.recording.interception import probing
from visattn.recording.model_info import ReadRows
from visattn.recording.probe import ObservedTokens, Probe
from visattn.recording.score_evidence import reaches
from visattn.recording.score_trace import ScoreTracer, Trace, TracedCall, gradients_of

_PARALLEL = 0.999  # cosine of gradients above which tokens are read by the same linear weights
_ALIKE = 1.5  # ratio of shares up to which they count as equal: they are from one direction
_EQUAL = 1.01  # ratio up to which weights of one linear mean are equal


@dataclass(frozen=True, eq=False)
class Reading:
    """What the scores read.

    Args:
        unread: Names of attention layers on which no score depends.
        rows: What is read after the last layer that is; None if that could not be determined.
        parallel: Two layers that are read of which the later is not computed from the earlier; ()
            if there are none.
    """

    unread: tuple[str, ...] = ()
    rows: ReadRows | None = None
    parallel: tuple[str, ...] = ()

    @property
    def some_patches(self) -> bool:
        """Whether some of the patches are read, which may depend on the image."""
        return self.rows is not None and any(share == 0 for row in self.rows.cells for share in row)


def confirmed_reading(
    tracer: ScoreTracer, image: Tensor, kept: Trace | None, probe: Probe
) -> Reading | None:
    """Return what the scores read of attention, on more images if it depends on them.

    Args:
        kept: A run on the image, if there was one.
        probe: Positions of the tokens of attention.
    """
    reading = _reading(tracer, image, kept, probe)
    if reading is None or not reading.some_patches:
        return reading
    # Mirrored and inverted images have their maxima elsewhere.
    variants = image.flip(-1), -image.flip(-2)
    others = [_reading(tracer, variant, None, probe) for variant in variants]
    rows = [each.rows for each in (reading, *others) if each is not None and each.rows is not None]
    if all(rows[0].same_cells(each) for each in rows):
        return reading
    return replace(reading, rows=mean_of_images(rows))


def _reading(
    tracer: ScoreTracer, image: Tensor, kept: Trace | None, probe: Probe
) -> Reading | None:
    if not probe.layouts:
        return None
    with frozen(tracer.model), probing():
        reading = read_attention(kept or tracer.kept(image), probe)
        if reading is None:
            trace = tracer.kept(image, unzeroed=True)
            reading = read_attention(trace, probe)
            if reading is None and trace.vectors:
                reading = Reading(tuple(dict.fromkeys(call.site for call in trace.calls)))
        return reading


def read_attention(trace: Trace, probe: Probe) -> Reading | None:
    """Return what the scores read of attention; None if they depend on none."""
    gradients = gradients_of(trace.vectors, [call.edge for call in trace.calls])
    pairs = zip(trace.calls, gradients, strict=True)
    read = {call: each for call, each in pairs if each is not None and bool(each.any())}
    if not read:
        return None
    sites = {call.site for call in read}
    unread = tuple(dict.fromkeys(call.site for call in trace.calls if call.site not in sites))
    known = [(call, probe.layout_of(call.site, call.index)) for call in read]
    placed = [(call, each) for call, each in known if isinstance(each, ObservedTokens)]
    if not placed:
        return Reading(unread)
    reading = Reading(unread, parallel=_parallel([call for call, _ in placed]))
    call, layout = placed[-1]
    if layout.layer.single_query:
        return replace(reading, rows=ReadRows(pool=True))
    rows = _read_rows(read[call], call, layout)
    # a later layer that cannot be recorded mixes patches and other tokens again
    if rows is None or (layout.layer.prefix_tokens and call is not known[-1][0]):
        return reading
    shares, linear = _shares(trace, call, rows, layout)
    return replace(reading, rows=_as_read_rows(shares, layout, linear=linear))


def _parallel(calls: Sequence[TracedCall]) -> tuple[str, ...]:
    """Return two consecutive layers of which the later is not computed from the earlier."""
    for call, following in pairwise(calls):
        if not reaches([following.edge], call.edge):
            return call.site, following.site
    return ()


def _read_rows(
    gradient: Tensor, call: TracedCall, layout: ObservedTokens
) -> Bool[Tensor, " n"] | None:
    """Return which tokens a gradient of attention is nonzero for; None if that is unknown."""
    rows, columns = layout.layer.grid
    count = len(layout.layer.prefix_tokens) + rows * columns
    nonzero = gradient.ne(0)
    if call.axis is None:  # cells [b c y x]
        nonzero = nonzero.flatten(2) if nonzero.ndim == 4 else nonzero
    nonzero = nonzero.movedim(-1 if call.axis is None else call.axis, -1)
    if layout.windows is None or nonzero.shape[0] != len(layout.windows):
        is_read = nonzero.flatten(0, -2).any(0)
        return is_read if len(is_read) == count else None
    is_read = nonzero.flatten(1, -2).any(1)
    windows = layout.windows.to(is_read.device)
    occupied = windows >= 0
    dense = is_read.new_zeros(count)
    dense[windows[occupied]] = is_read[occupied]
    return dense


def _shares(
    trace: Trace, call: TracedCall, rows: Bool[Tensor, " n"], layout: ObservedTokens
) -> tuple[Float[Tensor, " n"], bool]:
    """Return the share of each row, and whether these are linear weights."""
    grid, num_prefix = layout.layer.grid, len(layout.layer.prefix_tokens)
    # Of the outputs after the last attention, the last one that still has all tokens apart is where
    # they are pooled: behind MLP and norm, which change the size of gradients.
    if int(rows.sum()) > 1:
        edges = [output.edge for output in trace.outputs[call.num_outputs :]]
        for gradient in reversed(gradients_of(trace.vectors, edges)):
            tokens = None if gradient is None else _as_tokens(gradient, grid, num_prefix)
            if tokens is not None and torch.equal(tokens.ne(0).any(-1), rows):
                return shares_of_rows(tokens, num_prefix)
    return rows.float() / rows.sum(), int(rows.sum()) == 1


def _as_tokens(
    gradient: Tensor, grid: tuple[int, int], num_prefix: int
) -> Float[Tensor, "n c"] | None:
    """Return the gradient of a tensor by tokens of a grid; None if it has other axes."""
    axes = tuple(gradient.shape[1:])
    if gradient.ndim == 3:
        return gradient[0] if axes[0] == num_prefix + grid[0] * grid[1] else None
    if gradient.ndim != 4 or num_prefix:
        return None
    if axes[:2] == grid:
        return gradient[0].flatten(0, 1)
    return gradient[0].flatten(1).mT if axes[1:] == grid else None


def shares_of_rows(
    gradients: Float[Tensor, "n c"], num_prefix_tokens: int
) -> tuple[Float[Tensor, " n"], bool]:
    """Return the share that each token has in what is read, and whether it is a linear weight.

    Tokens with parallel gradients are read by the same linear weights, each times a factor, as in a
    mean: their shares are in proportion to these factors. Where the gradients of patches are not
    parallel (maximum, power mean), patches have equal shares of the gradient of their sum. Shares
    of tokens read by other weights (a class token beside a mean of patches) are the sizes of their
    gradients. These are from one direction of the scores, so that sizes up to 1.5 times as large
    count as equal. The gradients are those of a random sum of the scores for each token.

    Example:
        >>> mean, other = torch.tensor([0.3, 0.1, 0.2]), torch.tensor([-1.0, 2.5, 1.0])
        >>> shares_of_rows(torch.stack([mean, mean, mean]), 1)
        (tensor([0.3333, 0.3333, 0.3333]), True)
        >>> shares_of_rows(torch.stack([4 * other, other, other, other]), 1)
        (tensor([0.5714, 0.1429, 0.1429, 0.1429]), True)
        >>> shares_of_rows(torch.stack([8 * other, mean, mean, torch.zeros(3)]), 1)
        (tensor([0.9685, 0.0158, 0.0158, 0.0000]), True)
    """
    gradients = gradients.detach().double().nan_to_num()
    norms = gradients.norm(dim=1)
    prefix, cells = norms[:num_prefix_tokens], norms[num_prefix_tokens:]
    parallel = True
    if bool(cells.any()):
        patches = gradients[num_prefix_tokens:]
        cosines = torch.cosine_similarity(gradients, patches[cells.argmax()][None], eps=1e-300)
        same = cosines.abs() > _PARALLEL
        parallel = bool(same[num_prefix_tokens:][cells > 0].all())
        whole = cells if parallel else patches.sum(0).norm()[None]
        ratio = float(cells.amax() / cells[cells > 0].amin())
        if not parallel or ratio <= _EQUAL:  # what is nearly equal is rounding, and becomes equal
            cells = (cells > 0) * whole.sum() / (cells > 0).sum()
        limit = torch.where(same[:num_prefix_tokens], _EQUAL, _ALIKE) if parallel else _ALIKE
        for value in (cells[cells > 0].mean(), cells.sum()):
            alike = (prefix < limit * value) & (prefix * limit > value)
            prefix = torch.where(alike, value, prefix)
    elif bool(prefix.any()) and float(prefix.amax() / prefix[prefix > 0].amin()) < _ALIKE:
        prefix = (prefix > 0).double()
    shares = torch.cat((prefix, cells))
    return (shares / shares.sum()).float(), parallel


def mean_of_images(readings: Sequence[ReadRows]) -> ReadRows:
    """Return the shares of tokens of which those that are read depend on the image.

    Patches have equal shares.

    Example:
        >>> first, second = ReadRows((), 1.0, ((1.0, 0.0),)), ReadRows((), 1.0, ((0.0, 1.0),))
        >>> mean_of_images([first, second])
        ReadRows(prefix=(), patches=1.0, cells=(), kinds=(), pool=False, linear=False)
    """
    count = len(readings)
    prefixes = zip(*(reading.prefix for reading in readings), strict=True)
    prefix = tuple(sum(shares) / count for shares in prefixes)
    patches = sum(reading.patches for reading in readings) / count
    return ReadRows(prefix, patches, kinds=readings[0].kinds, linear=False)


def _as_read_rows(
    weights: Float[Tensor, " n"], layout: ObservedTokens, *, linear: bool
) -> ReadRows:
    """Return the shares of the tokens of a layer by kind."""
    kinds = layout.layer.prefix_tokens
    prefix, cells = weights[: len(kinds)], weights[len(kinds) :]
    total = float(cells.sum())
    grid: tuple[tuple[float, ...], ...] = ()
    if float(cells.amax() - cells.amin()) > 1e-6 * max(total, 1e-12):
        grid = tuple(map(tuple, (cells / total).view(layout.layer.grid).tolist()))
    return ReadRows(tuple(prefix.tolist()), total, grid, kinds=kinds, linear=linear)
