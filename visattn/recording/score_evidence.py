"""Tells class scores from ranks and features by the autograd graph of an output.

Names of outputs differ from model to model, and a feature vector has the shape `[b, k]` of class
scores. But a classifier is a linear layer on a vector, or a convolution followed by pooling, and it
comes last.

An edge of the graph is a node and the number of one of its outputs: one tensor.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

Edge = tuple[Any, ...]
_PRODUCTS = ("Convolution", "Addmm", "Addbmm", "Baddbmm", "Mm", "Bmm", "Linear", "ScaledDot",
             "Mkldnn")  # fmt: skip
_ACTIVATIONS = {"Hardtanh", "LeakyRelu", "Prelu", "PreluKernel", "Elu", "Celu",
                "Gelu", "Silu", "Mish", "Hardswish"}  # fmt: skip


def sources_of(edge: Edge) -> list[Edge]:
    """Return the tensors that a tensor is computed from, as far as they depend on the image."""
    if "NotImplemented" in edge[0].name():  # not differentiable, as quantized layers
        return []
    return [source for source in edge[0].next_functions if source[0] is not None]


def kind_of(edge: Edge) -> str:
    """Return the name of the operation that computes a tensor.

    Example:
        >>> kind_of(get_gradient_edge(torch.zeros(2, requires_grad=True).clamp_min(0)))
        'ClampMin'
    """
    return type(edge[0]).__name__.rstrip("0123456789").removesuffix("Backward").lstrip("_")


def is_layer(edge: Edge) -> bool:
    """Whether a tensor is a product with weights (convolution, linear) or of tokens (attention)."""
    return kind_of(edge).startswith(_PRODUCTS)


def walk(
    roots: Iterable[Edge], without: Iterable[Edge] = (), *, to_layers: bool = False
) -> Iterator[Edge]:
    """Yield tensors and all that they are computed from, up to some of them, or up to layers."""
    visited = {edge[:2] for edge in without}
    stack = [edge[:2] for edge in roots]
    while stack:
        edge = stack.pop()
        if edge not in visited:
            visited.add(edge)
            yield edge
            if not (to_layers and is_layer(edge)):
                stack += sources_of(edge)


def reaches(roots: Iterable[Edge], goal: Edge, without: Iterable[Edge] = ()) -> bool:
    """Whether tensors are computed from another one, along a path that avoids some tensors.

    Example:
        >>> x = torch.ones(2, requires_grad=True)
        >>> y = 2 * x
        >>> image, product, total = map(get_gradient_edge, (x, y, y.sum()))
        >>> reaches([total], image), reaches([total], image, [product])
        (True, False)
    """
    return any(edge == goal[:2] for edge in walk(roots, without))


def last_layers(outputs: Iterable[Tensor]) -> tuple[list[Edge], list[Edge]]:
    """Return the last layers on all paths from the image to outputs, and the tensors after them."""
    edges = list(walk(map(get_gradient_edge, outputs), to_layers=True))
    return [edge for edge in edges if is_layer(edge)], [e for e in edges if not is_layer(e)]


def last_computed(outputs: Mapping[Any, Tensor]) -> Any:
    """Return the key of the output that is computed from all others; None if there is none.

    Outputs that are computed from another one without a layer, such as its softmax, do not count.
    """
    edges = {name: get_gradient_edge(output)[:2] for name, output in outputs.items()}
    near = {name: {*walk([edge], to_layers=True)} - {edge} for name, edge in edges.items()}
    own = [name for name in edges if near[name].isdisjoint(edges.values())]
    return next(
        (
            name
            for name in own
            if all(reaches([edges[name]], edges[other]) for other in own if other != name)
        ),
        None,
    )


def ends_in_sigmoid(scores: Tensor) -> bool:
    """Whether an output is computed by a sigmoid, so that it is a probability."""
    edges: list[Edge] = [get_gradient_edge(scores)]
    while len(edges) == 1 and not is_layer(edges[0]):
        if kind_of(edges[0]) == "Sigmoid":
            return True
        edges = sources_of(edges[0])
    return False


def is_sorted(scores: Tensor) -> bool:
    """Whether an output is sorted, so that its columns are ranks, not classes."""
    return any(kind_of(edge) in ("Topk", "Sort") for edge in last_layers([scores])[1])


def features_reason(scores: Tensor, num_columns: int) -> str:
    """Return why an output is features of a network without a classifier; "" for scores.

    The last layer of a classifier is linear or a convolution, with a row for each class. It may be
    followed by pooling (fully convolutional networks), scaling, and a softmax or sigmoid.
    """
    layers, behind = last_layers([scores])
    if not layers or num_columns == 1:
        return ""
    kinds = {kind_of(edge) for edge in behind}
    # a convolution and ReLU are the classifier of SqueezeNet and NiN
    hidden = "Relu" in kinds and all(kind_of(edge) != "Convolution" for edge in layers)
    before = set(walk(source for edge in layers for source in sources_of(edge)))
    reasons = {
        "normalization follows its last layer": any("Norm" in kind for kind in kinds),
        "they are a sum over several layers": not before.isdisjoint(layers),
        "its last layer has another number of columns": any(
            _columns(edge) != num_columns for edge in layers
        ),
        "an activation function follows its last layer": hidden or bool(kinds & _ACTIVATIONS),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _columns(edge: Edge) -> int:
    """Return the number of channels of a layer's output."""
    shape = edge[0]._input_metadata[edge[1]].shape  # noqa: SLF001
    return shape[1 if kind_of(edge) == "Convolution" else -1]


def declared_class_counts(modules: Iterable[Any]) -> frozenset[int]:
    """Return the numbers of classes that modules declare.

    Example:
        >>> from types import SimpleNamespace
        >>> declared_class_counts([SimpleNamespace(num_classes=5), SimpleNamespace()])
        frozenset({5})
    """
    names = ("num_classes", "num_labels", "n_classes")
    values = (getattr(module, name, None) for module in modules for name in names)
    return frozenset(value for value in values if isinstance(value, int) and value > 0)
