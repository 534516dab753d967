"""Operations that a model computes: activation functions, normalization, products.

Names of Python functions say what a layer is: a norm of several steps is one function. What lies
on the way from the image to the output is read from the autograd graph, in which an operation has
one name however it was called: as a module, function, method or operator, or in place.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from visattn.recording.frozen import first_weight, frozen, with_grad
from visattn.recording.gradient_graph import is_rectifier, node_kind
from visattn.recording.outputs import output_tensors

RECTIFIERS = frozenset({"relu", "relu6", "hardtanh"})
SMOOTH_ACTIVATIONS = frozenset(
    {"gelu", "silu", "mish", "elu", "celu", "selu", "hardswish", "softplus", "leaky_relu", "prelu"}
    | {"rrelu"}
)
_NORMS = frozenset({"layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"})
_ATTENTION = frozenset({"softmax", "scaled_dot_product_attention", "multi_head_attention_forward"})
_PRODUCTS = frozenset(
    {"mul", "mul_", "__mul__", "__imul__", "__rmul__", "multiply", "div", "div_", "__truediv__"}
    | {"matmul", "__matmul__", "bmm", "einsum"}
)
_MASKINGS = frozenset(
    {"mul", "mul_", "__mul__", "__imul__", "__rmul__", "multiply", "multiply_", "where"}
    | {"masked_fill", "masked_fill_", "__setitem__", "threshold", "threshold_", "_threshold"}
)  # operations that are rectifiers or not by the values of their arguments

# Names of autograd nodes, without "Backward" and the number of the overload.
_NONLINEAR = frozenset(
    {"Abs", "Acos", "Acosh", "Angle", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "Ceil", "Celu"}
    | {"Copysign", "Cos", "Cosh", "Digamma", "Elu", "Entr", "Erf", "Erfc", "Erfinv"}
    | {"Exp", "Exp2", "Expm1", "Floor", "Fmod", "Frac", "Gelu", "Glu", "Hardshrink"}
    | {"Hardsigmoid", "Hardswish", "Hypot", "I0", "Igamma", "LeakyRelu", "Lgamma", "Log", "Log10"}
    | {"Log1P", "Log2", "LogSigmoid", "LogSoftmax", "Logaddexp", "Logaddexp2", "Logcumsumexp"}
    | {"Logit", "Logsumexp", "Minimum", "Fmin", "Mish", "Mvlgamma", "Polygamma"}
    | {"Pow", "Prelu", "PreluKernel", "Prod", "Cumprod", "Reciprocal", "Remainder", "Renorm"}
    | {"Round", "RreluWithNoise", "Rsqrt", "Sgn", "Sigmoid", "Sign", "Silu", "Sin", "Sinc", "Sinh"}
    | {"Softmax", "Softplus", "Softshrink", "Sqrt", "Square", "Std", "StdMean", "Tan", "Tanh"}
    | {"Trunc", "Var", "VarMean", "Xlogy", "Norm", "LinalgVectorNorm", "Cdist", "Maximum", "Fmax"}
    | {"Threshold", "Hardtanh", "Clamp", "ClampMin", "ClampMax", "Where", "MaskedFill"}
)
_FACTORS = {
    "Mul": (0, 1), "Div": (1,), "Mm": (0, 1), "Bmm": (0, 1), "Mv": (0, 1), "Dot": (0, 1),
    "Addmm": (1, 2), "Addbmm": (1, 2), "Baddbmm": (1, 2), "Addmv": (1, 2), "Addcmul": (1, 2),
    "Addcdiv": (2,), "Convolution": (0, 1), "Linear": (0, 1), "GridSampler2D": (1,), "Lerp": (2,),
}  # fmt: skip
"""Arguments of products and quotients; nonlinear if all of them depend on the image."""
_REDUCTIONS = frozenset({"Mean", "Sum", "Amax", "Amin", "Max", "Min", "Topk"})
_POOLING = ("AvgPool", "MaxPool", "AdaptiveAvgPool", "AdaptiveMaxPool")
_PLAIN_NAMES = {"prelu_kernel": "prelu", "rrelu_with_noise": "rrelu", "clamp_min": "clamp"}


@dataclass(frozen=True)
class ModelOperations:
    """Operations of a model that decide which attribution methods fit.

    Args:
        names: Names of activation functions, of normalization over positions or channels of one
            image, softmax, and `product` for products of two tensors that both depend on the image.
        not_rectifiers: Names of the nonlinear operations between image and output other than
            rectifiers (functions equal to ReLU, or ReLU with an upper bound), normalization and
            pooling. What turns the last linear layer into the output, such as a softmax, is left
            out.
    """

    names: tuple[str, ...] = ()
    not_rectifiers: tuple[str, ...] = ()


class OperationRecorder(TorchFunctionMode):
    """Collects the operations of a model while it runs with gradients down to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.masks: dict[Any, bool] = {}
        """Nodes of masking operations, and whether they are rectifiers."""
        self.norms: set[Any] = set()
        """Nodes inside of normalization that is computed in several steps, and others left out."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function and note its name."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        plain = name.rstrip("_")  # without the mark of operations in place
        if plain in RECTIFIERS | SMOOTH_ACTIVATIONS | _NORMS | _ATTENTION:
            self.names.add(plain)
        factors = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
        if name in _PRODUCTS and len(factors) > 1:
            self.names.add("product")
        masked = _masked_activation(name, [*args, *kwargs.values()])
        sources = {factor.grad_fn for factor in factors} if plain in _NORMS | {"normalize"} else ()
        output = func(*args, **kwargs)
        if masked is not None:
            result = args[0] if name == "__setitem__" else output
            if result.grad_fn is not None:
                activation, boolean = masked
                telling = boolean or bool((activation < 0).any())
                self.masks[result.grad_fn] = telling and torch.equal(result, activation.relu())
        if sources and isinstance(output, Tensor):
            self.exempt(output, sources)
        return output

    def exempt(self, output: Tensor, sources: Iterable[Any]) -> None:
        """Leave out the steps between the autograd nodes of arguments and an output."""
        self.norms |= set(_nodes([output.grad_fn], until=sources))

    def rectifiers(self, output: Any) -> list[Any]:
        """Return the autograd nodes of all rectifiers that an output is computed by."""
        roots = [tensor.grad_fn for tensor in output_tensors(output)]
        return [node for node in _nodes(roots) if self._is_rectifier(node)]

    def not_rectifiers(self, output: Any) -> tuple[str, ...]:
        """Return the names of the other nonlinear operations, sorted (see `ModelOperations`)."""
        roots = [tensor.grad_fn for tensor in output_tensors(output)]
        layers = [node for node in _nodes(roots, stop=_is_layer) if _is_layer(node)]
        names = (self._nonlinearity(node) for node in _nodes(layers))
        return tuple(sorted({name for name in names if name}))

    def operations(self, output: Any) -> ModelOperations:
        """Return the operations that an output is computed by."""
        names = self.names.copy()
        if self.rectifiers(output) and not names & RECTIFIERS:
            names.add("relu")  # of another name
        return ModelOperations(tuple(sorted(names)), self.not_rectifiers(output))

    def _is_rectifier(self, node: Any) -> bool:
        return self.masks[node] if node in self.masks else is_rectifier(node)

    def _nonlinearity(self, node: Any) -> str:
        """Return the name of a nonlinear operation; "" for a linear one, a norm or a rectifier."""
        if node in self.norms or self._is_rectifier(node):
            return ""
        kind = node_kind(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return kind  # written in Python: what it computes is not known
        if kind in _NONLINEAR or kind.startswith("Special") or "DotProduct" in kind:
            return _plain_name(kind)
        if node in self.masks:
            return "masking"
        inputs = node.next_functions
        factors = [index < len(inputs) and inputs[index][0] for index in _FACTORS.get(kind, ())]
        return "product" if factors and all(factors) else ""


def model_operations(
    model: nn.Module, forward: Callable[[Tensor], Any], size: tuple[int, int], channels: int
) -> ModelOperations:
    """Return the operations of a model that decide which attribution methods fit.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU6(), nn.SiLU(), nn.Conv2d(1, 1, 1))
        >>> model_operations(model, model, (2, 3), 1)
        ModelOperations(names=('hardtanh', 'silu'), not_rectifiers=('silu',))
    """
    noise = torch.randn(1, channels, *size, generator=torch.Generator().manual_seed(0))
    with frozen(model), OperationRecorder() as recorder:
        try:
            output = forward(with_grad(noise.to(first_weight(model))))
        except (RuntimeError, NotImplementedError):  # of operations without a gradient
            return ModelOperations()
    return recorder.operations(output)


def rectifiers_error(operations: ModelOperations) -> str:
    """Return why the gradient of a model cannot be guided; "" if it can.

    Guided backpropagation changes the gradient of rectifiers, and is defined for networks without
    other activation functions and gates.

    Example:
        >>> rectifiers_error(ModelOperations(("relu", "tanh"), ("tanh",)))
        'all of its activations must be ReLU or ReLU6, but it computes tanh'
    """
    if operations.not_rectifiers:
        listed = ", ".join(operations.not_rectifiers)
        return f"all of its activations must be ReLU or ReLU6, but it computes {listed}"
    return "" if RECTIFIERS & set(operations.names) else "it computes no ReLU"


def _masked_activation(name: str, args: list[Any]) -> tuple[Tensor, bool] | None:
    """Return a copy of the activation that an operation masks; None for another operation.

    Also returns whether the mask is boolean. One in floats that is all ones masks nothing, and then
    does not tell whether it is that of a ReLU.
    """
    parts = [item for arg in args for item in (arg if isinstance(arg, tuple) else (arg,))]
    tensors = [item for item in parts if isinstance(item, Tensor)]
    own = [tensor for tensor in tensors if tensor.requires_grad]
    if name not in _MASKINGS or len(own) != 1:
        return None
    [activation] = own
    if "threshold" in name or any(mask.dtype == torch.bool for mask in tensors):
        return activation.detach().clone(), True
    others = [tensor for tensor in tensors if tensor.shape == activation.shape]
    masks = [other for other in others if other is not activation] if "mul" in name else []
    if any(bool(((mask == 0) | (mask == 1)).all()) for mask in masks):
        return activation.detach().clone(), False
    return None


def _plain_name(kind: str) -> str:
    """Return the name of the function of a kind of node.

    Example:
        >>> _plain_name("LeakyRelu")
        'leaky_relu'
    """
    letters = (f"_{letter.lower()}" if letter.isupper() else letter for letter in kind)
    name = "".join(letters).lstrip("_")
    return _PLAIN_NAMES.get(name, name)


def _is_layer(node: Any) -> bool:
    """Whether a node is a linear layer or pooling, and no step that follows the last layer."""
    kind = node_kind(node)
    products = kind in _FACTORS and kind not in ("Mul", "Div", "Lerp", "Addcmul", "Addcdiv")
    return products or kind in _REDUCTIONS or kind.startswith(_POOLING) or "DotProduct" in kind


def _nodes(
    roots: Iterable[Any],
    until: Iterable[Any] = (),
    stop: Callable[[Any], bool] = lambda _: False,
) -> Iterator[Any]:
    """Yield autograd nodes and those that they are computed by, down to the image.

    Args:
        until: Nodes that are left out, with what they are computed by.
        stop: Whether what a node is computed by is left out.
    """
    visited = set(until)
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        if not stop(node):
            stack += [source for source, _ in node.next_functions]
