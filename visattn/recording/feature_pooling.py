"""The last spatial features before a model pools them, found by going back from its scores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from visattn.recording.frozen_model import asked, frozen
from visattn.recording.gradient_graph import Edge, GradientGraph, edge_of, extent, keeps_rows, mixes
from visattn.recording.marked_probe import MarkedReading
from visattn.recording.model_info import FeatureSite
from visattn.recording.module_calls import dry
from visattn.recording.scored_run import ModuleOutput, ScoredRun, scored_run
from visattn.recording.token_grid import fits

_TRIED = 4  # of the last outputs, that may carry all places on
_FEW = 3  # places that vectors may have: pooled in several ways, or tokens before a grid


@dataclass(eq=False)
class PooledFeatures:
    """What the scores of a model are pooled from.

    Args:
        sites: Where activations lie on a grid, from the image to the scores; the last one is
            what the pooled vector is made of. Empty if that cannot be said.
        refusal: Why it cannot.
        read: Numbers of the tokens that the scores are made of, if the last layer has tokens.
    """

    sites: tuple[FeatureSite, ...] = ()
    refusal: str = ""
    read: tuple[int, ...] | None = None


def pooled_features(
    model: nn.Module, image: Tensor, run: Callable[[Tensor], Any], marked: MarkedReading
) -> PooledFeatures:
    """Return the last features before pooling, by what the scores are made of.

    The model runs once with gradients. Everything that leads from the image to the scores passes
    through certain tensors; the last of these whose gradient is spread over places, and not only
    over a vector or a class token, is what is pooled. The module that put it out is taken, or,
    where only a class token goes on, the last one through which all places reach it.

    Args:
        model: To be read.
        image: One, normalized.
        run: Calls the model.
        marked: What was read off it when it ran on marked images.
    """
    with frozen(model), dry():
        seen = scored_run(model, asked(image), run, marked)
        if not seen.roots:
            return PooledFeatures(refusal="no gradient leads from its scores to the image")
        return _Following(seen, marked).features()


def _is_plane(feature: FeatureSite | None) -> bool:
    return feature is not None and feature.layout == "b c y x"


class _Following:
    """Goes back from the scores of a model to what they were pooled from.

    Args:
        seen: A run of the model.
        marked: What was read off it when it ran on marked images.
    """

    def __init__(self, seen: ScoredRun, marked: MarkedReading) -> None:
        self.seen, self.marked = seen, marked
        self.few = max([_FEW, *marked.prefixes.values()])
        self.graph = GradientGraph([edge_of(root) for root in seen.roots])
        self.inside = set[Edge]()
        for taken, put in seen.attention:
            self.inside |= self.graph.between(put, taken)
        self.dense = seen.roots[0].ndim == 4  # whether each place has scores of its own
        generator = torch.Generator().manual_seed(1)
        self.weights = [
            torch.randn(root.shape, generator=generator).to(root) for root in seen.roots
        ]

    def features(self) -> PooledFeatures:
        """Return the features before pooling and those of earlier stages."""
        pooled = self._last_spread()
        if pooled is None:
            self.graph.revive()
            pooled = self._last_spread()
        if pooled is None:
            return PooledFeatures(refusal="no gradient of its scores is spread over places")
        read = self._read(pooled)
        carrying = None if self.dense else self._carrying(pooled)
        alike = carrying is not None and self._width(carrying.edge) == self._width(pooled)
        chosen = carrying if alike and carrying else self._direct(pooled, alone=carrying is None)
        if isinstance(chosen, str):
            return PooledFeatures(refusal=chosen, read=read)
        if chosen.feature is None:
            raise AssertionError("an output that was chosen lies on the image")
        return PooledFeatures((*self._earlier(chosen, chosen.feature), chosen.feature), "", read)

    def gradients(self, edges: Sequence[Edge]) -> list[Tensor | None]:
        """Return the gradient of some mixture of the scores with respect to tensors."""
        if not edges:
            return []
        wanted = [GradientEdge(*edge) for edge in edges]
        found = torch.autograd.grad(
            self.seen.roots, wanted, self.weights, retain_graph=True, allow_unused=True
        )
        return list(found)

    def _spread(self, gradient: Tensor | None) -> bool:
        return gradient is not None and extent(gradient) > self.few

    def _last_spread(self) -> Edge | None:
        """Return the last tensor that all passes through and whose gradient is over places."""
        chain = [edge for edge in self.graph.chain if edge not in self.inside]
        if self.dense:  # scores of places are no features
            behind = (any(map(mixes, self.graph.before(edge))) for edge in chain)
            chain = list(compress(chain, behind))
        for start in range(0, len(chain), 16):
            part = chain[start : start + 16]
            for edge, gradient in zip(part, self.gradients(part), strict=True):
                if self._spread(gradient):
                    return edge
        return None

    def _carrying(self, pooled: Edge) -> ModuleOutput | None:
        """Return what carries all places on from where only few tokens go on by themselves."""
        behind = self.graph.before(pooled)
        later = [one.edge for one in self.seen.outputs if one.feature and one.edge in behind]
        edges = [edge for edge in dict.fromkeys(later) if edge not in self.inside]
        found = zip(edges, self.gradients(edges), strict=True)
        spread = [edge for edge, gradient in found if self._spread(gradient)]
        for edge in reversed(spread[-_TRIED:]):
            with self.graph.blocked(edge):
                rest = self.gradients([pooled])[0]
            if not self._spread(rest):
                return self._outermost(edge)
        return None

    def _width(self, edge: Edge) -> int:
        """Return how many channels tokens have, which are their last axis."""
        return self.graph.shape(edge)[-1]

    def _direct(self, pooled: Edge, *, alone: bool) -> ModuleOutput | str:
        """Return what put out the tensor that is pooled, or why it cannot be said.

        Args:
            pooled: Where it stands.
            alone: Whether nothing behind it carries all its places on.
        """
        busy = [
            edge for edge in self.graph.before(pooled) if mixes(edge) and edge not in self.inside
        ]
        found = sum(self._spread(gradient) for gradient in self.gradients(busy))
        if alone and found > self.dense:
            return "several streams of features go on side by side before they are pooled"
        for edge in self.graph.chain[self.graph.chain.index(pooled) :]:
            if edge != pooled and any(map(mixes, self.graph.between([pooled], [edge]))):
                break
            found = self._outermost(edge) or self._inherited(edge)
            if found is not None and found.whole:
                return found
        shape = " x ".join(str(side) for side in self.graph.shape(pooled)[1:])
        return (
            f"what its scores are pooled from ({shape} for each image) is put out by no module "
            "whose places on the image could be followed"
        )

    def _outermost(self, edge: Edge) -> ModuleOutput | None:
        put = (one for one in reversed(self.seen.outputs) if one.edge == edge)
        return next((one for one in put if one.feature is not None), None)

    def _inherited(self, edge: Edge) -> ModuleOutput | None:
        """Return an output on few places, made row by row of one whose places are known."""
        put = next((one for one in reversed(self.seen.outputs) if one.edge == edge), None)
        if put is None or put.tensor.ndim != 4:
            return None
        rows, columns = put.tensor.shape[2:]
        if not fits((rows, columns), self.seen.size):
            return None
        known = {one.edge for one in self.seen.outputs if _is_plane(one.feature)}
        for source in self.graph.chain[self.graph.chain.index(edge) + 1 :]:
            if not self._keeps(source, edge):
                return None
            if source in known:
                return replace(put, feature=FeatureSite(put.site, "b c y x", (rows, columns)))
        return None

    def _keeps(self, source: Edge, edge: Edge) -> bool:
        between = self.graph.between([edge], [source])
        return all(keeps_rows(one) or self._is_vector(one) for one in between)

    def _is_vector(self, edge: Edge) -> bool:
        return prod(sorted(self.graph.shape(edge))[:-1]) <= self.few

    def _earlier(self, chosen: ModuleOutput, last: FeatureSite) -> list[FeatureSite]:
        """Return the last features of each earlier grid that all passes through."""
        through = set(self.graph.chain)
        ends: dict[Any, FeatureSite] = {}
        for one in self.seen.outputs:
            if one.edge == chosen.edge:
                break
            if one.feature is not None and one.edge in through and one.whole:
                ends[one.feature.grid, one.feature.layout] = one.feature
        ends.pop((last.grid, last.layout), None)
        return list(ends.values())

    def _read(self, pooled: Edge) -> tuple[int, ...] | None:
        """Return which tokens the scores are made of, at the last tensor that has tokens."""
        at = self.graph.chain.index(pooled)
        cells = {rows * columns for rows, columns in self.marked.grids}
        longest = max(self.marked.prefixes.values(), default=0)
        for edge in self.graph.chain[: at + 1]:
            shape = self.graph.shape(edge)
            count = shape[1] if len(shape) == 3 else 0
            before = self.marked.prefixes.get(count, 0)
            if before or count in cells:
                [gradient] = self.gradients([edge])
                rows = [] if gradient is None else gradient[0].ne(0).any(-1).nonzero().flatten()
                return tuple(int(row) + longest - before for row in rows)
        return None
