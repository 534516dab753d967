"""The autograd graph of a model's scores: dependencies and tensors that all paths pass through."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Edge = tuple[Any, int]  # an autograd node and the number of one of its outputs: one tensor
_ELEMENTWISE_OR_POOLING = (
    "Convolution", "NativeBatchNorm", "CudnnBatchNorm", "NativeGroupNorm", "Relu", "LeakyRelu",
    "Prelu", "Elu", "Celu", "Gelu", "Silu", "Mish", "Hardswish", "Hardsigmoid", "Hardtanh",
    "Sigmoid", "Tanh", "Clamp", "Softplus", "Mul", "Add", "Sub", "Div", "MaxPool2D", "AvgPool2D",
    "AdaptiveAvgPool2D", "AdaptiveMaxPool2D", "Upsample", "ConstantPad", "Clone", "ToCopy",
)  # fmt: skip
_CHANNEL_AXES = (1, 2**64 - 3)  # the second of four axes, counted from either end
_PRODUCTS = (
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


def gradient_edge(tensor: Tensor) -> Edge:
    """Return the edge of the autograd graph that stands for a tensor."""
    edge = torch.autograd.graph.get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def num_positions(gradient: Tensor) -> int:
    """Return at how many positions a gradient is nonzero, taking its longest axis as channels.

    Example:
        >>> num_positions(torch.ones(1, 7, 2, 3))
        6
        >>> num_positions(torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]))
        1
    """
    nonzero = gradient != 0
    counts = [
        int(nonzero.movedim(axis, 0).flatten(1).any(1).sum())
        if nonzero.ndim > 1
        else int(nonzero.sum())
        for axis in range(nonzero.ndim)
    ]
    positions = 1
    for count in sorted(counts)[:-1]:
        positions *= count
    return positions


def node_kind(node: Any) -> str:
    """Return the name of the operation of an autograd node.

    Example:
        >>> node_kind(torch.zeros(2, requires_grad=True).clamp_min(0).grad_fn)
        'ClampMin'
    """
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward").lstrip("_")


def is_rectifier(node: Any) -> bool:
    """Whether an autograd node is a ReLU, or one with an upper bound, however it was called.

    Example:
        >>> x = torch.zeros(2, requires_grad=True)
        >>> is_rectifier(torch.maximum(x, torch.zeros(2)).grad_fn), is_rectifier(x.abs().grad_fn)
        (True, False)
    """
    kind = node_kind(node)
    if kind == "Relu":
        return True
    if kind in ("Maximum", "Fmax"):  # of an activation and zeros
        saved = [node._saved_self, node._saved_other]  # noqa: SLF001
        depends = [source is not None for source, _ in node.next_functions]
        constant = [value for value, own in zip(saved, depends, strict=True) if not own]
        return len(constant) == 1 and not bool(constant[0].any())
    lowest = {
        "Clamp": "_saved_min", "ClampMin": "_saved_min", "Hardtanh": "_saved_min_val",
        "Threshold": "_saved_threshold",
    }.get(kind)  # fmt: skip
    if lowest is None or any(source is not None for source, _ in node.next_functions[1:]):
        return False
    low = getattr(node, lowest)
    return low is not None and not bool(torch.as_tensor(low).any())


def edge_shape(edge: Edge) -> tuple[int, ...]:
    """Return the shape of a tensor."""
    return tuple(int(side) for side in edge[0]._input_metadata[edge[1]].shape)  # noqa: SLF001


def is_product(edge: Edge) -> bool:
    """Whether a tensor is a product with weights (convolution, linear) or of tokens (attention)."""
    return type(edge[0]).__name__.startswith(_PRODUCTS)


def preserves_rows(edge: Edge) -> bool:
    """Whether the operation of a tensor `[b, c, y, x]` keeps the order of rows and columns."""
    name = type(edge[0]).__name__
    if name.startswith("Cat"):
        return edge[0]._saved_dim in _CHANNEL_AXES  # noqa: SLF001
    if name.startswith("Convolution"):
        return True
    return name.startswith(_ELEMENTWISE_OR_POOLING) and not is_product(edge)


class GradientGraph:
    """The autograd graph from scores down to the image."""

    def __init__(self, roots: Sequence[Edge]) -> None:
        self._num_uses = Counter[Edge](roots)
        self._roots = list(dict.fromkeys(roots))
        stack = list(self._roots)
        visited = set(stack)
        while stack:
            for edge in inputs_of(stack.pop()):
                self._num_uses[edge] += 1
                if edge not in visited:
                    visited.add(edge)
                    stack.append(edge)
        self.bottlenecks = self._find_bottlenecks(Counter(roots))
        """Tensors that every path passes through (dominators), from the scores to the image."""

    def _find_bottlenecks(self, roots: Counter[Edge]) -> list[Edge]:
        # Paths are followed from the scores down, as water that must pass through every pipe: a
        # tensor is ready when all that use it are done, and where the front is one tensor alone,
        # everything passes through it.
        #
        #     scores <- head <- pool <- add <- conv2 <- relu <- conv1 <- image
        #                                ^-------------------- skip <----'
        #     front: {scores} {head} {pool} {add} {conv2, skip} ... {conv1} {image}
        remaining = self._num_uses.copy()
        remaining.subtract(roots)
        frontier = set(roots)
        ready = [edge for edge in frontier if remaining[edge] == 0]
        bottlenecks: list[Edge] = []
        while ready:
            edge = ready.pop()
            if len(frontier) == 1:
                bottlenecks.append(edge)
            frontier.discard(edge)
            for source in inputs_of(edge):
                frontier.add(source)
                remaining[source] -= 1
                if remaining[source] == 0:
                    ready.append(source)
        return bottlenecks

    def between(self, outputs: Sequence[Edge], inputs: Sequence[Edge]) -> set[Edge]:
        """Return the tensors on the paths from outputs back to inputs.

        The result has the outputs, and not the inputs.
        """
        ends = set(inputs)
        stack = [edge for edge in outputs if edge not in ends]
        visited = set(stack)
        while stack:
            for edge in inputs_of(stack.pop()):
                if edge not in ends and edge not in visited:
                    visited.add(edge)
                    stack.append(edge)
        return visited

    def upstream(self, outputs: Sequence[Edge]) -> set[Edge]:
        """Return the tensors that outputs are computed from.

        An output is among them if another one is computed from it.
        """
        return self.between([source for edge in outputs for source in inputs_of(edge)], [])

    def downstream(self, edge: Edge) -> set[Edge]:
        """Return the tensors between a bottleneck and the scores."""
        return self.between(self._roots, [edge])

    def upstream_of(self, edges: Sequence[Edge]) -> dict[Edge, set[int]]:
        """Return for each of some tensors which of them it is computed from, by their indices."""
        # Sets of indices are the bits of one integer: graphs have thousands of nodes, and unions of
        # integers cost nothing. A stack instead of recursion, since graphs are deep.
        bits = {edge: 1 << index for index, edge in enumerate(edges)}
        upstream: dict[Any, int] = {}  # by node: the tensors that its inputs are computed from
        stack = [edge[0] for edge in edges]
        while stack:
            node = stack[-1]
            sources = inputs_of((node, 0))
            waiting = [source for source, _ in sources if source not in upstream]
            if waiting and node not in upstream:
                stack += waiting
                continue
            stack.pop()
            upstream.setdefault(node, 0)
            for source in sources:
                upstream[node] |= upstream[source[0]] | bits.get(source, 0)
        return {
            edge: {index for index in range(len(edges)) if upstream[edge[0]] >> index & 1}
            for edge in edges
        }

    def unblock_zero_gradients(self) -> None:
        """Replace gradients that become all zero by ones, as behind zero-initialized heads."""
        for node in dict.fromkeys(node for node, _ in self._num_uses):
            if node.next_functions:
                node.register_hook(_replace_zero_gradient)

    @contextmanager
    def blocked(self, edge: Edge) -> Iterator[None]:
        """Set the gradient of a tensor to zero inside the block."""

        def block(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
            return tuple(
                torch.zeros_like(gradient)
                if number == edge[1] and gradient is not None
                else gradient
                for number, gradient in enumerate(gradients)
            )

        handle = edge[0].register_prehook(block)
        try:
            yield
        finally:
            handle.remove()


def inputs_of(edge: Edge) -> list[Edge]:
    """Return the tensors that a tensor is computed from, as far as they depend on the image."""
    return [(node, number) for node, number in edge[0].next_functions if node is not None]


def _replace_zero_gradient(
    grad_inputs: tuple[Tensor | None, ...], grad_outputs: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...] | None:
    """Return ones if a nonzero gradient became all zero."""
    if any(bool(gradient.any()) for gradient in grad_inputs if gradient is not None):
        return None
    if not any(bool(gradient.any()) for gradient in grad_outputs if gradient is not None):
        return None
    return tuple(
        None if gradient is None else torch.ones_like(gradient) for gradient in grad_inputs
    )
