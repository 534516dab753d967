"""AttnLRP: layer-wise relevance propagation through transformers, as input times a gradient.

With R = x * g every rule of relevance is a rule of how the gradient g passes an operation:

    linear layer, sum, mean, softmax     the gradient itself
    activation f                         g_x = g_y * f(x) / x     all relevance passes
    normalization                        the divisor is a constant
    product of two parts of the image    half of the gradient for each

The last rule gives values of attention half of the gradient, and queries and keys a quarter.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.gradient import input_x_gradient
from visattn.attribution.layer_weights import single_grid_error
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.recording.attention_call import functional_multihead_call, multihead_output
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.recording.operations import ModelOperations, OperationRecorder

_ACTIVATIONS = frozenset({"gelu", "silu", "relu", "relu6", "hardtanh", "leaky_relu", "mish"})
"""Functions that are 0 at 0, so that f(x) / x is the share of x that passes."""
_PRODUCTS = frozenset({"mul", "__mul__", "__rmul__", "multiply", "matmul", "__matmul__", "bmm"})
_NORMS_WITHOUT_RULE = frozenset(
    {"group_norm", "instance_norm", "rms_norm", "local_response_norm", "normalize"}
)
_RULES = _ACTIVATIONS | {"softmax", "product", "layer_norm"}
_ATTENTION = ("scaled_dot_product", "multi_head_attention")
_WITHOUT_CHAIN = "use gradcam or integrated_gradients"
_INSTEAD = "use relevance, gradient_attention or integrated_gradients"


def _no_single_chain(info: ModelInfo, _target: object) -> str:
    """Return why a model is no chain of blocks on one token grid; "" if it may be."""
    grids = {layer.grid for layer in info.attention_layers}
    if len(grids) > 1:
        return (
            "its tokens are merged between layers, and AttnLRP follows a chain of blocks on one "
            f"token grid; {_WITHOUT_CHAIN}"
        )
    if reason := single_grid_error(info):
        return f"{reason}; {_WITHOUT_CHAIN}"
    return ""


def _without_rule(operations: ModelOperations) -> str:
    """Return which operations of a model have no rule; "" if all have one."""
    names = {*operations.names, *operations.not_rectifiers}
    unknown = sorted(n for n in names - _RULES if not n.startswith(_ATTENTION))
    if unknown:
        return f"AttnLRP has no rule for {', '.join(unknown)}; {_INSTEAD}"
    return ""


@method(
    "attnlrp", title="AttnLRP", paper="arXiv:2402.05602", needs="gradient", signed=True,
    check=_no_single_chain, check_operations=_without_rule,
)  # fmt: skip
def attnlrp(
    explained: ExplainedModel, images: Float[Tensor, "b c y x"], target: Target
) -> Float[Tensor, "b y x"]:
    """AttnLRP: the relevance of each pixel, propagated by a rule for each operation of a ViT.

    Positive relevance speaks for the target, negative against it. The relevance of all pixels and
    biases, and what a softmax keeps, sum to the target. The input is the normalized image, so that
    a pixel of the mean color has no relevance. Operations without a rule are refused.

    Raises:
        ValueError: If the model computes something for which there is no rule.

    Source:
        Achtibat et al. 2024, arXiv:2402.05602, equations 8 and 9, propositions 3.1 to 3.4, as
        gradient times input. Deviations: epsilon is 0 in linear layers, also where the authors take
        the gamma rule; of a product only factors that depend on the image share the relevance.
    """
    rules = RelevanceRules()

    def forward(inputs: Tensor) -> Any:
        with rules:
            output = explained.forward(inputs)
        if unknown := sorted(rules.unruled | set(rules.not_rectifiers(output))):
            raise ValueError(
                f"attnlrp does not fit {explained.info.name}: it has no rule for "
                f"{', '.join(unknown)}; {_INSTEAD}"
            )
        return output

    return input_x_gradient(replace(explained, forward=forward), images, target)


class RelevanceRules(OperationRecorder):
    """Changes how gradients pass operations while a model runs, to those of AttnLRP.

    `not_rectifiers` then lists the nonlinear operations without a rule: what a rule computes is
    left out, like normalization.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unruled: set[str] = set()
        """Names of normalization and attention without a rule."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function, with its rule if there is one."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
        rule = _rule(name)
        if rule is None or not any(tensor.requires_grad for tensor in tensors):
            if name in _NORMS_WITHOUT_RULE:
                self.unruled.add(name)
            return super().__torch_function__(func, types, args, kwargs)
        sources = {tensor.grad_fn for tensor in tensors}
        output = rule(func, args, kwargs)
        if isinstance(output, str):  # the name of what it has no rule for
            self.unruled.add(output)
            return func(*args, **kwargs)
        first = output[0] if isinstance(output, tuple) else output
        # The operations that a rule is made of need no rules themselves.
        self.exempt(first, sources)
        return output


Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def _rule(name: str) -> Rule | None:
    """Return the rule of a torch function; operations in place have none."""
    if name in _ACTIVATIONS:
        return _activation
    if name in _PRODUCTS:
        return _product
    rules: dict[str, Rule] = {
        "softmax": lambda func, args, kwargs: func(*args, **kwargs),
        "layer_norm": _layer_norm,
        "scaled_dot_product_attention": _attention,
        "multi_head_attention_forward": _multihead,
    }
    return rules.get(name)


def _activation(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | str:
    if not args:
        return "input= of an activation"
    x = args[0]
    with torch.no_grad():
        kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}
        # A clone, since a function may still work in place by a positional argument.
        share = torch.where(x == 0, 0, func(x.clone(), *args[1:], **kwargs) / x)
    return x * share


def _product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | str:
    if len(args) != 2:
        return "product"
    return func(*_shares(*args), **kwargs)


def _layer_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:  # noqa: ARG001
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    arguments = {"weight": None, "bias": None, "eps": 1e-5, **dict(zip(names, args, strict=False))}
    arguments |= kwargs
    axes = tuple(range(-len(arguments["normalized_shape"]), 0))
    centered = arguments["input"] - arguments["input"].mean(axes, keepdim=True)
    variance = centered.detach().square().mean(axes, keepdim=True)
    output = centered * (variance + arguments["eps"]).rsqrt()
    output = output if arguments["weight"] is None else output * arguments["weight"]
    return output if arguments["bias"] is None else output + arguments["bias"]


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key, value = _attention_shares(arguments["query"], arguments["key"], arguments["value"])
    return func(**arguments | {"query": query, "key": key, "value": value})


def _multihead(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    output = func(*args, **kwargs)
    call = functional_multihead_call(args, kwargs, output)
    if isinstance(call, str) or call.queries is None or call.keys is None or call.values is None:
        return "multi_head_attention_forward"
    call.queries, call.keys, call.values = _attention_shares(call.queries, call.keys, call.values)
    weights = call.compute_weights(slice(None), slice(None))
    return multihead_output(call, weights, output, batch_first=False)


def _attention_shares(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Return the parts of attention with the shares of two products, weights and their scores."""
    query, key = _shares(query, key)
    scores = query if query.requires_grad else key
    half = scores.requires_grad and value.requires_grad
    if not half:
        return query, key, value
    # Weights times values is the second product: queries and keys keep a quarter.
    return _scaled_gradient(query, 0.5), _scaled_gradient(key, 0.5), _scaled_gradient(value, 0.5)


def _shares(first: Any, second: Any) -> tuple[Any, Any]:
    """Return factors that share the gradient of their product, if both depend on the image."""
    both = all(isinstance(operand, Tensor) and operand.requires_grad for operand in (first, second))
    if not both:
        return first, second
    return _scaled_gradient(first, 0.5), _scaled_gradient(second, 0.5)


def _scaled_gradient(x: Tensor, share: float) -> Tensor:
    """Return the same values, with a share of the gradient."""
    return x * share + (x * (1 - share)).detach()
