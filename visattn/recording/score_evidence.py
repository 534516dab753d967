"""Other rounding errors in a model, which show how much its output depends on them.

Names of outputs differ from model to model, and a feature vector has the shape `[b, k]` of class
scores. How an output is computed tells more: scores are the last thing computed, and a classifier
is a linear layer, or a convolution that is pooled. See `features_reason` for the rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.recording.gradient_graph import (
    Edge,
    GradientGraph,
    edge_shape,
    inputs_of,
    is_product,
    is_rectifier,
    node_kind,
)

_PRODUCTS = frozenset({F.linear, torch.matmul, torch.bmm, torch.addmm, Tensor.matmul,
                       Tensor.__matmul__, F.scaled_dot_product_attention})  # fmt: skip


class Rounding(TorchFunctionMode):
    """Changes each result of a matrix product in its last digit, at random.

    Another order of the terms, as in another kernel or batch size, does the same.

    Example:
        >>> ones = torch.ones(2, 3)
        >>> with Rounding():
        ...     product = ones @ ones.T
        >>> bool((product != 3).any()), torch.allclose(product, torch.tensor(3.0))
        (True, True)
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function, and change its result if it is a product."""
        result = func(*args, **(kwargs or {}))
        if func in _PRODUCTS and result.is_floating_point():
            sign = torch.randint(0, 2, result.shape, device=result.device) * 2 - 1
            result = result * (1 + torch.finfo(result.dtype).eps * sign).to(result.dtype)
        return result


_NORMS = {
    "NativeBatchNorm": "batch normalization", "CudnnBatchNorm": "batch normalization",
    "MiopenBatchNorm": "batch normalization", "NativeLayerNorm": "layer normalization",
    "NativeGroupNorm": "group normalization", "FusedRmsNorm": "RMS normalization",
    "LinalgVectorNorm": "L2 normalization",
}  # fmt: skip
_SMOOTH = (
    "Hardtanh", "LeakyRelu", "Prelu", "PreluKernel", "Elu", "Celu", "Gelu", "Silu", "Mish",
    "Hardswish",
)  # fmt: skip
_BOUNDED = ("Tanh", "Hardsigmoid", "Softplus")  # of outputs that may be scores


def last_computed(outputs: Mapping[str, Edge], sizes: Mapping[str, int]) -> str | None:
    """Return the name of the output that all others are features or functions of; None if unclear.

    An output that another one is computed from, and that nothing bypasses, is a feature vector. An
    output without layers of its own, such as the softmax of another one, adds nothing.
    """
    chains = {name: _values_without_layers(edge) for name, edge in outputs.items()}
    remaining = [
        name
        for name, size in sizes.items()
        if not any(
            other != name and outputs[other] in chains[name] and size in (1, sizes[other])
            for other in outputs
            if outputs[other] != outputs[name]
        )
    ]
    if len(remaining) == 1:
        return remaining[0]
    final = [name for name in remaining if _is_function_of_others(name, remaining, outputs, chains)]
    return final[0] if len(final) == 1 else None


def _values_without_layers(edge: Edge) -> list[Edge]:
    """Return an output and the tensors that it is computed from without a layer in between."""
    graph = GradientGraph([edge])
    chain: list[Edge] = []
    for source in graph.bottlenecks:
        if any(map(is_product, graph.between([edge], [source]))):
            break
        chain.append(source)
    return chain


def _is_function_of_others(
    name: str,
    names: Sequence[str],
    outputs: Mapping[str, Edge],
    chains: Mapping[str, Sequence[Edge]],
) -> bool:
    """Whether an output is computed from all others, and from nothing else."""
    own = set(chains[name])
    features = [set(chains[other]) - own for other in names if other != name]
    upstream = GradientGraph([outputs[name]]).upstream([outputs[name]])
    if not all(chain & upstream for chain in features):
        return False
    ends = set[Edge]().union(*features)
    visited = set(ends)
    stack = [outputs[name]]
    while stack:
        new = [source for source in inputs_of(stack.pop()) if source not in visited]
        if any(not source[0].next_functions for source in new):  # the image, past the others
            return False
        visited.update(new)
        stack += new
    return True


def ends_in_sigmoid(scores: Edge) -> bool:
    """Whether a sigmoid computes an output, so that it is a probability."""
    edges = [scores]
    while len(edges) == 1 and not is_product(edges[0]):
        if node_kind(edges[0][0]) == "Sigmoid":
            return True
        edges = inputs_of(edges[0])
    return False


def is_sorted(scores: Edge) -> bool:
    """Whether an output is sorted, so that its columns are ranks and no classes."""
    return any(node_kind(edge[0]) in ("Topk", "Sort") for edge in _last_layers(scores)[1])


def features_reason(scores: Edge, num_columns: int) -> tuple[str, bool]:
    """Return why an output is taken for features; "" for scores, and whether these are assumed.

    The layers (linear or convolution) nearest to the output and what follows them decide:

    - A linear layer on one vector is a classifier, whatever scales or normalizes its result, or
      turns it into probabilities. With a rectifier or a similar activation behind it, it is a
      hidden layer.
    - A layer at many positions that are pooled is a classifier as well if nothing but pooling
      follows (fully convolutional networks). With a norm, a residual sum, a concatenation, a smooth
      activation or without pooling it is the body of a network whose classifier is missing.
    - A convolution, ReLU and pooling are both: the classifier of SqueezeNet and NiN, and the body
      of a plain CNN. So are sums and norms of vectors. These are taken for scores, and said to be
      assumed.
    """
    layers, after = _last_layers(scores)
    if not layers or num_columns == 1:
        return "", False
    kinds = [node_kind(edge[0]) for edge in after]
    norms = [_NORMS[kind] for kind in kinds if kind in _NORMS]
    smooth = any(kind in _SMOOTH for kind in kinds)
    rectified = any(is_rectifier(edge[0]) for edge in after)
    graph = GradientGraph([scores])
    others = {edge: set(layers) - {edge} for edge in layers}
    residual = any(others[edge] & graph.upstream([edge]) for edge in layers)
    if all(_num_positions(edge) == 1 for edge in layers):
        if norms and residual:
            return f"a residual sum and {norms[0]} follow its last linear layer", False
        if smooth or rectified:
            return "an activation function follows its last linear layer", False
        return "", bool(norms or residual or any(kind in _BOUNDED for kind in kinds))
    joined = any(
        kind == "Cat" and len(inputs_of(edge)) > 1 for kind, edge in zip(kinds, after, strict=True)
    )
    unpooled = len(layers) == 1 and num_columns != _num_channels(layers[0])
    last = f"its last {_layer_name(layers)}"
    for holds, reason in (
        (norms, f"{norms[0]} follows {last}" if norms else ""),
        (residual, "they are pooled from a sum of several layers"),
        (joined, "they are joined from several layers"),
        (smooth, f"an activation function follows {last}"),
        (unpooled, "they are the positions of a feature map"),
    ):
        if holds:
            return reason, False
    return "", rectified or any(_kernel_positions(edge) > 1 for edge in layers)


def _last_layers(scores: Edge) -> tuple[list[Edge], list[Edge]]:
    """Return the nearest layers on all paths to an output, and the tensors after them."""
    layers: list[Edge] = []
    after: list[Edge] = []
    visited = {scores}
    stack = [scores]
    while stack:
        edge = stack.pop()
        if is_product(edge):
            layers.append(edge)
            continue
        after.append(edge)
        new = [source for source in inputs_of(edge) if source not in visited]
        visited.update(new)
        stack += new
    return layers, after


def _layer_name(layers: Sequence[Edge]) -> str:
    kinds = {node_kind(edge[0]) for edge in layers}
    return "convolution" if "Convolution" in kinds else "linear layer"


def _num_positions(edge: Edge) -> int:
    """Return at how many positions a layer is computed, for one image."""
    shape = edge_shape(edge)
    if node_kind(edge[0]) == "Convolution":
        return prod(shape[2:])
    return prod(shape[:-1])


def _num_channels(edge: Edge) -> int:
    shape = edge_shape(edge)
    return shape[1] if node_kind(edge[0]) == "Convolution" else shape[-1]


def _kernel_positions(edge: Edge) -> int:
    weight: Any = getattr(edge[0], "_saved_weight", None)
    return prod(weight.shape[2:]) if weight is not None else 1


def declared_class_counts(modules: Iterable[Any]) -> frozenset[int]:
    """Return the numbers of classes that modules state.

    Example:
        >>> from types import SimpleNamespace
        >>> declared_class_counts([SimpleNamespace(num_classes=5), SimpleNamespace()])
        frozenset({5})
    """
    names = ("num_classes", "num_labels", "n_classes")
    values = (getattr(module, name, None) for module in modules for name in names)
    return frozenset(value for value in values if isinstance(value, int) and value > 0)
