"""Attention calls: their inputs, outputs and weights, and the kernels that compute them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, multi_head_attention_forward

from visattn.functional.attention import dot_product_attention_weights
from visattn.functional.masks import causal_mask
from visattn.recording.module_calls import ModuleCall

RECORDABLE = ("sdpa", "eager")
"""Implementations whose weights can be intercepted, the faster one first."""

_SETTING = "_attn_implementation_internal"


def fused_kernels(model: nn.Module) -> dict[str, str]:
    """Return the attention implementation of each part of a model that hides its weights.

    Example:
        >>> fused_kernels(nn.Linear(1, 1))
        {}
    """
    kernels = {
        name: getattr(getattr(module, "config", None), "_attn_implementation", None)
        for name, module in model.named_modules()
        # a module that lacks an attribute takes long to say so
        if "config" in vars(module) or hasattr(type(module), "config")
    }
    return {
        name: kernel
        for name, kernel in kernels.items()
        if isinstance(kernel, str) and kernel not in RECORDABLE
    }


@contextmanager
def recordable_attention(model: nn.Module, kernel: str = "sdpa") -> Iterator[None]:
    """Run the parts of a model that hide their weights with another attention implementation.

    These are parts with flash or flex attention, or a function that the user registered. They have
    their own implementation again afterwards, also after an exception. With `sdpa`, parts that do
    not support it run `eager`.

    Example:
        >>> with recordable_attention(nn.Linear(1, 1)):
        ...     pass
    """
    before: list[tuple[Any, str]] = []
    try:
        for name in fused_kernels(model):
            part: Any = model.get_submodule(name)
            if not any(config is part.config for config, _ in before):
                before.append((part.config, getattr(part.config, _SETTING)))
            supported = kernel != "sdpa" or getattr(part, "_supports_sdpa", True)
            setattr(part.config, _SETTING, kernel if supported else "eager")
        yield
    finally:
        for config, implementation in before:
            setattr(config, _SETTING, implementation)


Index = slice | list[int]
_MHA_FORWARD = signature(nn.MultiheadAttention.forward)
_FUNCTIONAL_MHA = signature(multi_head_attention_forward)
_GUARD = "torch_function_guard"


@dataclass(eq=False)
class AttentionCall:
    """Inputs and outputs of one attention computation; the weights are computed on request.

    Args:
        shape: Groups (images, or windows of images), heads, queries and keys.
        queries: `[g h n d]`; None if the model computed the weights itself.
        keys: `[g h m d]`; None if the model computed the weights itself.
        values: `[g h m d]`.
        mask: Boolean, True = may attend.
        bias: Added to the scaled scores.
        scale: Factor of the scores; 1 / sqrt(d) if None.
        weights: Attention weights, if the model computed them itself.
        output: Output of the attention, used to verify the weights; None if not available.
        output_projection: Applied to the weighted values before they become the output.
        heads_mixed: Whether the model mixed the weights of several heads before using them.
        dropout_p: Attention dropout probability.
        traced: A tensor of the model's own graph that is computed row by row from the weights, or
            holds them, and its axis of queries, counted from the end.
        tokens: `[g n c]`, of which the queries are projections; None if not available.
    """

    shape: tuple[int, int, int, int]
    queries: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    scale: float | None = None
    weights: Tensor | None = None
    output: Tensor | None = None
    output_projection: Callable[[Tensor], Tensor] | None = None
    heads_mixed: bool = False
    dropout_p: float = 0.0
    traced: tuple[Tensor, int] | None = None
    tokens: Tensor | None = None

    def compute_weights(self, heads: Index, queries: Index) -> Float[Tensor, "g h r m"]:
        """Return the attention weights of the selected heads and queries.

        Raises:
            ValueError: If the call has neither weights nor queries and keys.
        """
        if self.weights is not None:
            return _select(self.weights, heads, queries)
        if self.queries is None or self.keys is None:
            raise ValueError(
                "an attention call must have either queries and keys, or weights; got neither"
            )
        mask, bias = (
            None if tensor is None else _select(tensor.expand(self.shape), heads, queries)
            for tensor in (self.mask, self.bias)
        )
        selected_queries = _select(self.queries, heads, queries)
        keys = _select(self.keys, heads, slice(None))
        return dot_product_attention_weights(
            selected_queries, keys, mask=mask, bias=bias, scale=self.scale
        )

    def deviation(self, weights: Float[Tensor, "g h r m"], heads: Index, queries: Index) -> float:
        """Return the largest difference between weights times values and the actual output.

        It is relative to the largest absolute value if that is above 1. It is NaN if it cannot be
        computed: with attention dropout, or if only some heads of a projected output are selected.
        """
        # The projection mixes all heads: some of them alone do not give the output.
        partial = self.output_projection is not None and heads != slice(None)
        if self.output is None or self.values is None or self.dropout_p or partial:
            return torch.nan
        result = weights @ self.values[:, heads]
        if self.output_projection is None:
            expected = _select(self.output, heads, queries)
        else:
            result, expected = self.output_projection(result), self.output[:, queries]
        magnitude = max(1.0, float(self.values.abs().max()))
        return float((result - expected).abs().max()) / magnitude


def _select(tensor: Tensor, heads: Index, queries: Index) -> Tensor:
    everything = slice(None)
    tensor = tensor if heads == everything else tensor[:, heads]
    return tensor if queries == everything else tensor[:, :, queries]


def sdpa_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall | None:
    """Return the `AttentionCall` of arguments of `scaled_dot_product_attention`.

    Returns None if the tensors do not have four axes.

    Example:
        >>> sdpa_call((torch.zeros(2, 3, 5, 7),) * 3, {"is_causal": True}).shape
        (2, 3, 5, 5)
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key, value = (arguments[name] for name in names[:3])
    if query.ndim == 3:
        query, key, value = (tensor.unsqueeze(1) for tensor in (query, key, value))
    if query.ndim != 4:
        return None
    if key.shape[1] != query.shape[1]:  # grouped-query attention
        repeats = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    mask = arguments.get("attn_mask")
    bias = None
    if mask is not None and mask.dtype != torch.bool:
        mask, bias = None, mask  # a mask of numbers is added to the scores
    if arguments.get("is_causal"):  # torch refuses it beside a mask
        mask = causal_mask(
            query.shape[2], key.shape[2], alignment="upper_left", device=query.device
        )
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return AttentionCall(
        shape,
        query,
        key,
        value,
        mask,
        bias,
        arguments.get("scale"),
        dropout_p=float(arguments.get("dropout_p") or 0.0),
    )


def disable_torch_function(call: ModuleCall) -> None:
    """Disable `__torch_function__` interception while `nn.MultiheadAttention` runs.

    With an active interception it leaves its fast path, and its output differs in the last bits.
    """
    guard: AbstractContextManager[None] = torch._C.DisableTorchFunction()  # noqa: SLF001
    guard.__enter__()
    call.state[_GUARD] = guard


def restore_torch_function(call: ModuleCall) -> None:
    """Undo `disable_torch_function`."""
    if guard := call.state.pop(_GUARD, None):  # None if the call failed before it began
        guard.__exit__(None, None, None)


def multihead_call(
    layer: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> AttentionCall | str:
    """Return the `AttentionCall` of a finished `nn.MultiheadAttention` call.

    Returns the reason as text if its weights cannot be recorded.
    """
    bound = _MHA_FORWARD.bind(None, *args, **kwargs)
    bound.apply_defaults()
    options = {
        "bias_k": layer.bias_k,
        "add_zero_attn": layer.add_zero_attn,
        "num_heads": layer.num_heads,
        "in_proj_weight": layer.in_proj_weight,
        "q_proj_weight": layer.q_proj_weight,
        "k_proj_weight": layer.k_proj_weight,
        "v_proj_weight": layer.v_proj_weight,
        "in_proj_bias": layer.in_proj_bias,
        "out_proj_weight": layer.out_proj.weight,
        "out_proj_bias": layer.out_proj.bias,
        "dropout_p": layer.dropout,
        "training": layer.training,
    }
    return _multihead_call({**bound.arguments, **options}, output[0], batch_first=layer.batch_first)


def functional_multihead_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> AttentionCall | str:
    """Return the `AttentionCall` of a finished call of `F.multi_head_attention_forward`.

    Returns the reason as text if its weights cannot be recorded.
    """
    bound = _FUNCTIONAL_MHA.bind(*args, **kwargs)
    bound.apply_defaults()
    return _multihead_call(bound.arguments, output[0], batch_first=False)


def _multihead_call(
    arguments: Mapping[str, Any], output: Tensor, *, batch_first: bool
) -> AttentionCall | str:
    """Return the attention call of arguments of `F.multi_head_attention_forward`, by name."""
    tokens: list[Tensor] = [arguments[name] for name in ("query", "key", "value")]
    if tokens[0].ndim != 3 or tokens[0].is_nested:
        return "its inputs are unbatched or nested tensors"
    if arguments["bias_k"] is not None or arguments["add_zero_attn"]:
        return "it appends keys that are not tokens (add_bias_kv or add_zero_attn)"
    if arguments.get("static_k") is not None or arguments.get("static_v") is not None:
        return "its keys or values do not come from tokens (static_k or static_v)"
    if not batch_first:
        tokens = [tensor.transpose(0, 1) for tensor in tokens]
    queries, keys, values = (
        linear(tensor, weight, bias).unflatten(-1, (arguments["num_heads"], -1)).transpose(1, 2)
        for tensor, (weight, bias) in zip(tokens, _input_projections(arguments), strict=True)
    )
    shape = (queries.shape[0], queries.shape[1], queries.shape[2], keys.shape[2])
    weight = arguments["out_proj_weight"]
    bias = arguments["out_proj_bias"]
    return AttentionCall(
        shape,
        queries,
        keys,
        values,
        bias=_multihead_bias(arguments, shape, queries),
        output=output if batch_first else output.transpose(0, 1),
        output_projection=lambda heads: linear(heads.transpose(1, 2).flatten(2), weight, bias),
        dropout_p=arguments["dropout_p"] if arguments["training"] else 0.0,
        tokens=tokens[0],
        traced=(output, -2 if batch_first else -3),
    )


def _input_projections(arguments: Mapping[str, Any]) -> list[tuple[Tensor, Tensor | None]]:
    if arguments["in_proj_weight"] is None:
        weights = [arguments[f"{name}_proj_weight"] for name in "qkv"]
    else:
        weights = list(arguments["in_proj_weight"].chunk(3))
    bias = arguments["in_proj_bias"]
    biases = [None] * 3 if bias is None else bias.chunk(3)
    return list(zip(weights, biases, strict=True))


def _multihead_bias(
    arguments: Mapping[str, Any], shape: tuple[int, int, int, int], like: Tensor
) -> Tensor | None:
    """Return masks as a bias of the scores; in masks of this layer True = may not attend."""
    total: Tensor | None = None
    padding = arguments["key_padding_mask"]
    attn_mask = arguments["attn_mask"]
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask.unflatten(0, shape[:2])
    for mask in (None if padding is None else padding[:, None, None], attn_mask):
        if mask is None:
            continue
        bias = mask
        if mask.dtype == torch.bool:
            bias = torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)
        total = bias if total is None else total + bias
    return total


def multihead_output(
    attention: AttentionCall, weights: Tensor, output: Any, *, batch_first: bool
) -> tuple[Tensor, Any]:
    """Return the output of multi-head attention computed with other attention weights.

    Raises:
        ValueError: If the attention call has no values or no output projection.
    """
    if attention.values is None or attention.output_projection is None:
        raise ValueError("the attention call must have values and an output projection")
    tokens = attention.output_projection(dropout(weights, attention.dropout_p) @ attention.values)
    return (tokens if batch_first else tokens.transpose(0, 1)), output[1]
