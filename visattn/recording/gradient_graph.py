"""The graph of a run with gradients: what leads to what, and what everything passes through."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Edge = tuple[Any, int]  # a node of the graph and which of its outputs: one tensor
_KEEPING = (
    "Convolution", "NativeBatchNorm", "CudnnBatchNorm", "NativeGroupNorm", "Relu", "LeakyRelu",
    "Prelu", "Elu", "Celu", "Gelu", "Silu", "Mish", "Hardswish", "Hardsigmoid", "Hardtanh",
    "Sigmoid", "Tanh", "Clamp", "Softplus", "Mul", "Add", "Sub", "Div", "MaxPool2D", "AvgPool2D",
    "AdaptiveAvgPool2D", "AdaptiveMaxPool2D", "Upsample", "ConstantPad", "Clone", "ToCopy",
)  # fmt: skip
_CHANNELS = (1, 2**64 - 3)  # the second axis of four, counted from either end
_MIXING = (
    "Convolution",
    "Addmm",
    "Addbmm",
    "Baddbmm",
    "Mm",
    "Bmm",
    "Linear",
    "ScaledDot",
    "Mkldnn",
)


def edge_of(tensor: Tensor) -> Edge:
    """Return where a tensor stands in the graph.

    Args:
        tensor: That takes a gradient.
    """
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def extent(gradient: Tensor) -> int:
    """Return over how many places a gradient is spread, if its longest axis is that of channels.

    Args:
        gradient: Of any shape.

    Example:
        >>> extent(torch.ones(1, 7, 2, 3)), extent(torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]))
        (6, 1)
    """
    held = gradient != 0
    counts = [
        int(held.movedim(axis, 0).flatten(1).any(1).sum()) if held.ndim > 1 else int(held.sum())
        for axis in range(held.ndim)
    ]
    places = 1
    for count in sorted(counts)[:-1]:
        places *= count
    return places


def mixes(edge: Edge) -> bool:
    """Whether what a tensor comes from is a product with weights, or of tokens with each other.

    Args:
        edge: Where the tensor stands.
    """
    return type(edge[0]).__name__.startswith(_MIXING)


def keeps_rows(edge: Edge) -> bool:
    """Whether a tensor `[b, c, y, x]` has its rows and columns in the order of those it is made of.

    Args:
        edge: Where the tensor stands.
    """
    name = type(edge[0]).__name__
    if name.startswith("Cat"):
        return edge[0]._saved_dim in _CHANNELS  # noqa: SLF001
    return name.startswith("Convolution") or (name.startswith(_KEEPING) and not mixes(edge))


class GradientGraph:
    """What scores were computed from.

    Args:
        roots: Where the scores stand.
    """

    def __init__(self, roots: Sequence[Edge]) -> None:
        self._counts = Counter[Edge](roots)
        self._roots = list(dict.fromkeys(roots))
        waiting = list(self._roots)
        seen = set(waiting)
        while waiting:
            for edge in _sources(waiting.pop()):
                self._counts[edge] += 1
                if edge not in seen:
                    seen.add(edge)
                    waiting.append(edge)
        self.chain = self._chain(Counter(roots))

    def _chain(self, open_ends: Counter[Edge]) -> list[Edge]:
        """Return the tensors through which everything passes, from the scores to the image."""
        left = self._counts.copy()
        left.subtract(open_ends)
        pending = set(open_ends)
        ready = [edge for edge in pending if left[edge] == 0]
        chain: list[Edge] = []
        while ready:
            edge = ready.pop()
            if len(pending) == 1:
                chain.append(edge)
            pending.discard(edge)
            for source in _sources(edge):
                pending.add(source)
                left[source] -= 1
                if left[source] == 0:
                    ready.append(source)
        return chain

    def between(self, late: Sequence[Edge], early: Sequence[Edge]) -> set[Edge]:
        """Return what is computed on the way from some tensors to others, these left out.

        Args:
            late: That were computed last; part of what is returned.
            early: That were computed first.
        """
        ends = set(early)
        waiting = [edge for edge in late if edge not in ends]
        found = set(waiting)
        while waiting:
            for edge in _sources(waiting.pop()):
                if edge not in ends and edge not in found:
                    found.add(edge)
                    waiting.append(edge)
        return found

    def before(self, edge: Edge) -> set[Edge]:
        """Return what lies between the scores and a tensor that everything passes through."""
        return self.between(self._roots, [edge])

    def revive(self) -> None:
        """Let gradients pass where weights that are all 0 stop them, as in untrained heads."""
        for node in dict.fromkeys(node for node, _ in self._counts):
            if node.next_functions:
                node.register_hook(_revived)

    @contextmanager
    def blocked(self, edge: Edge) -> Iterator[None]:
        """Let no gradient pass through a tensor inside the block."""

        def block(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
            return tuple(
                torch.zeros_like(one) if number == edge[1] and one is not None else one
                for number, one in enumerate(gradients)
            )

        handle = edge[0].register_prehook(block)
        try:
            yield
        finally:
            handle.remove()

    def shape(self, edge: Edge) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Args:
            edge: Where it stands.
        """
        return tuple(int(side) for side in edge[0]._input_metadata[edge[1]].shape)  # noqa: SLF001


def _sources(edge: Edge) -> list[Edge]:
    return [(node, number) for node, number in edge[0].next_functions if node is not None]


def _revived(
    given: tuple[Tensor | None, ...], taken: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...] | None:
    """Return a gradient of ones if none is left of one that is not 0."""
    if any(bool(one.any()) for one in given if one is not None):
        return None
    if not any(bool(one.any()) for one in taken if one is not None):
        return None
    return tuple(None if one is None else torch.ones_like(one) for one in given)
