"""One attention computation of a model: its inputs, its output, and its weights on request.

    scores  = scale * queries @ keys.mT + bias      [g h n m], -inf where the mask is False
    weights = softmax(scores)                       [g h n m]
    output  = weights @ values                      [g h n e]

Fused kernels never materialize the weights. The requested rows are recomputed from queries and
keys, and verified: weights times values must equal the output of the model.
"""

from collections.abc import Mapping
from functools import cached_property
from inspect import Signature, signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from visattn.functional.attention import dot_product_attention_weights

Rows = slice | list[int]
Inputs = tuple[Tensor | None, Tensor | None, Tensor]
ALL = slice(None)
IDENTITY = torch.ones(())
"""In place of weights: each query reads only the value of its own token, without a product."""
_UNSUPPORTED_AXES = "its weights do not have the axes [batch, heads, queries, keys]"


class AttentionCall:
    """One attention computation; the subclasses are the ways in which models compute it.

    Attributes:
        site: Qualified name of the module that computes it.
        index: Number of earlier calls of that module in this run of the model.
        shape: Groups (images, or windows of images), heads, queries and keys.
        unsupported: Why its weights cannot be recorded; "" if they can.
        mask: Boolean, True = may attend.
        bias: Added to the scaled scores.
        scale: Factor of the scores; 1 / sqrt(d) if None.
        dropout_p: Attention dropout probability.
        own_weights: Attention weights, if the model computed them itself.
        heads_mixed: Whether the model mixed the weights of several heads before using them.
        projects: Whether the output is a projection that mixes the heads.
    """

    site: str = ""
    index: int = 0
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    unsupported: str = ""
    mask: Tensor | None = None
    bias: Tensor | None = None
    scale: float | None = None
    dropout_p: float = 0.0
    own_weights: Tensor | None = None
    heads_mixed: bool = False
    projects: bool = False

    @property
    def name(self) -> str:
        """The site; `layer#2` for the second call of `layer` in one run."""
        return self.site if self.index == 0 else f"{self.site}#{self.index + 1}"

    @cached_property
    def inputs(self) -> Inputs:
        """Queries `[g h n d]` and keys `[g h m d]`, None if unknown, and values `[g h m e]`."""
        raise NotImplementedError

    @cached_property
    def result(self) -> Any:
        """What the model's own function returns; it runs on first access."""
        return None

    def result_of(self, weights: Float[Tensor, "..."]) -> Any:
        """Return what the model's own function would return with other weights, or `IDENTITY`."""
        raise NotImplementedError

    @property
    def output(self) -> Tensor | None:
        """Output `[g h n e]`, or `[g n c]` after a projection; None for weights of the model."""
        return None

    @property
    def traced(self) -> tuple[Tensor, int]:
        """A tensor of the graph that depends row by row on the weights, and its axis of rows."""
        raise NotImplementedError

    def project(self, heads: Float[Tensor, "g h r e"]) -> Tensor:
        """Return weighted values in the form of `output`."""
        return heads

    def weighted(self, weights: Float[Tensor, "..."]) -> Float[Tensor, "g h n e"]:
        """Return the values times weights, with dropout."""
        values = self.inputs[2]
        return values if weights is IDENTITY else F.dropout(weights, self.dropout_p) @ values

    def weights(self, heads: Rows = ALL, queries: Rows = ALL) -> Float[Tensor, "g h r m"]:
        """Return the weights of some heads and queries; no other rows are computed."""
        if self.own_weights is not None:
            return _select(self.own_weights, heads, queries)
        q, k, _ = self.inputs
        if q is None or k is None:
            raise ValueError("an attention call must have queries and keys, or weights")
        mask, bias = (
            None if tensor is None else _select(tensor.expand(self.shape), heads, queries)
            for tensor in (self.mask, self.bias)
        )
        q, k = _select(q, heads, queries), _select(k, heads, ALL)
        return dot_product_attention_weights(q, k, mask=mask, bias=bias, scale=self.scale)

    def proved_weights(self, heads: Rows = ALL, queries: Rows = ALL) -> tuple[Tensor, float]:
        """Return rows of weights, and their `deviation` from the output.

        Raises:
            ValueError: If it is larger than rounding error.
        """
        weights = self.weights(heads, queries)
        deviation = self.deviation(weights, heads, queries)
        much = deviation > row_tolerance(weights)  # before the largest score, which is slow
        if much and deviation > (limit := row_tolerance(weights, self.largest_score(queries))):
            raise ValueError(
                f"the recorded weights of {self.name} times its values must equal its output, "
                f"but they differ by {deviation:.1e}, more than rounding error ({limit:.1e})"
                "; please report this model"
            )
        return weights, deviation

    def deviation(self, weights: Float[Tensor, "g h r m"], heads: Rows, queries: Rows) -> float:
        """Return the largest difference between weights times values and the actual output.

        It is relative to the largest value if that is above 1, and NaN if they cannot be compared:
        for weights that the model computed itself, with dropout, or for a selection of heads that a
        projection mixes.
        """
        output = self.output
        if output is None or self.dropout_p or (self.projects and heads != ALL):
            return torch.nan
        values = self.inputs[2]
        with torch.autocast(values.device.type, enabled=False):
            product = weights @ _select(values, heads, ALL)
        expected = output[:, queries] if self.projects else _select(output, heads, queries)
        difference = (self.project(product) - expected).abs().max()
        return float(difference) / max(1.0, float(values.abs().max()))

    def largest_score(self, queries: Rows = ALL) -> float:
        """Return the largest magnitude of the scaled scores of some queries; 0 if unknown."""
        q, k, _ = self.inputs
        if q is None or k is None:
            return 0.0
        scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
        return float((q[:, :, queries].float() @ k.float().mT).abs().max()) * abs(scale)


class FusedCall(AttentionCall):
    """`F.scaled_dot_product_attention`."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        self._given = given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key = given["query"], given["key"]
        if query.ndim not in (3, 4):
            self.unsupported = _UNSUPPORTED_AXES
            return
        heads = query.shape[1] if query.ndim == 4 else 1
        self.shape = (query.shape[0], heads, query.shape[-2], key.shape[-2])
        mask = given.get("attn_mask")
        if mask is not None and mask.dtype != torch.bool:
            self.bias = mask  # a float mask is added to the scores
        elif given.get("is_causal"):  # torch does not allow it together with a mask
            self.mask = query.new_ones(self.shape[2:], dtype=torch.bool).tril()
        else:
            self.mask = mask
        self.scale = given.get("scale")
        self.dropout_p = float(given.get("dropout_p") or 0.0)

    @cached_property
    def inputs(self) -> Inputs:
        """Queries, keys and values, as the kernel reads them, with an axis of heads."""
        query, key, value = (self._given[name] for name in ("query", "key", "value"))
        device = query.device.type
        if torch.is_autocast_enabled(device) and query.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
            query, key, value = (each.to(dtype) for each in (query, key, value))
        if query.ndim == 3:
            return query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        if (repeats := query.shape[1] // key.shape[1]) > 1:  # grouped-query attention
            key, value = (each.repeat_interleave(repeats, 1) for each in (key, value))
        return query, key, value

    @cached_property
    def result(self) -> Tensor:
        """The output of the kernel."""
        return F.scaled_dot_product_attention(**self._given)

    def result_of(self, weights: Float[Tensor, "..."]) -> Tensor:
        """Return the output with other weights."""
        output = self.weighted(weights)
        return output if self._given["query"].ndim == 4 else output.squeeze(1)

    @property
    def output(self) -> Tensor:
        """The output, with an axis of heads."""
        return self.result if self.result.ndim == 4 else self.result.unsqueeze(1)

    @property
    def traced(self) -> tuple[Tensor, int]:
        """The output."""
        return self.result, -2


class MultiheadCall(AttentionCall):
    """A finished call of `nn.MultiheadAttention`, or of the function behind it.

    Args:
        given: Arguments of `F.multi_head_attention_forward` by name.
        result: What it returned.
    """

    projects = True

    def __init__(self, given: Mapping[str, Any], result: Any, *, batch_first: bool) -> None:
        tokens: list[Tensor] = [given[name] for name in ("query", "key", "value")]
        self.result, self._given, self._batch_first = result, given, batch_first
        if tokens[0].ndim != 3 or tokens[0].is_nested:
            self.unsupported = "its inputs are unbatched or nested tensors"
            return
        added = [given.get(name) for name in ("bias_k", "static_k", "static_v")]
        if given["add_zero_attn"] or any(each is not None for each in added):
            self.unsupported = "it has keys that are not tokens (add_bias_kv, add_zero_attn, ...)"
            return
        self._sequences = [each if batch_first else each.transpose(0, 1) for each in tokens]
        queries, keys = self._sequences[:2]
        self.shape = (len(keys), given["num_heads"], queries.shape[1], keys.shape[1])
        self.dropout_p = given["dropout_p"] if given["training"] else 0.0
        self.bias = self._masks()

    def _masks(self) -> Tensor | None:
        """Return its masks as a bias of the scores; in these masks True = may not attend."""
        padding, mask = self._given["key_padding_mask"], self._given["attn_mask"]
        padding = None if padding is None else padding[:, None, None]
        mask = mask.unflatten(0, self.shape[:2]) if mask is not None and mask.ndim == 3 else mask
        biases = [
            torch.zeros_like(each, dtype=torch.float32).masked_fill(each, -torch.inf)
            if each.dtype == torch.bool
            else each
            for each in (padding, mask)
            if each is not None
        ]
        return sum(biases[1:], biases[0]) if biases else None

    @cached_property
    def inputs(self) -> Inputs:
        """Queries, keys and values, projected again."""
        given = self._given
        if given["in_proj_weight"] is None:
            weights = [given[f"{name}_proj_weight"] for name in "qkv"]
        else:
            weights = given["in_proj_weight"].chunk(3)
        biases = [None] * 3 if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
        queries, keys, values = (
            F.linear(tensor, weight, bias).unflatten(-1, (self.shape[1], -1)).transpose(1, 2)
            for tensor, weight, bias in zip(self._sequences, weights, biases, strict=True)
        )
        return queries, keys, values

    def project(self, heads: Float[Tensor, "g h r e"]) -> Float[Tensor, "g r c"]:
        """Return the projection of weighted values."""
        weight, bias = self._given["out_proj_weight"], self._given["out_proj_bias"]
        return F.linear(heads.transpose(1, 2).flatten(2), weight, bias)

    def result_of(self, weights: Float[Tensor, "..."]) -> tuple[Tensor, Any]:
        """Return the output with other weights, and the second value that the layer returned."""
        output = self.project(self.weighted(weights))
        return (output if self._batch_first else output.transpose(0, 1)), self.result[1]

    @property
    def output(self) -> Tensor:
        """The output, batch first."""
        return self.result[0] if self._batch_first else self.result[0].transpose(0, 1)

    @property
    def traced(self) -> tuple[Tensor, int]:
        """The output."""
        return self.result[0], -2 if self._batch_first else -3


def multihead_function(args: Any, kwargs: Any, result: Any) -> MultiheadCall:
    """Return a finished call of `F.multi_head_attention_forward`."""
    given = _by_name(signature(F.multi_head_attention_forward), args, kwargs)
    return MultiheadCall(given, result, batch_first=False)


def multihead_layer(
    layer: nn.MultiheadAttention, args: Any, kwargs: Any, result: Any
) -> MultiheadCall:
    """Return a finished call of a layer."""
    given = _by_name(signature(layer.forward), args, kwargs) | vars(layer)
    given |= {name: getattr(layer, name) for name in layer._parameters}  # noqa: SLF001
    projection = {"out_proj_weight": layer.out_proj.weight, "out_proj_bias": layer.out_proj.bias}
    given |= {"dropout_p": layer.dropout, **projection}
    return MultiheadCall(given, result, batch_first=layer.batch_first)


def _by_name(of: Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    bound = of.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


class ProductCall(AttentionCall):
    """The product of values and weights, which the model computed itself with a softmax.

    Args:
        func: The matrix product.
        args: Weights and values; or values and weights, both transposed.
        used: The operand that holds the weights.
        softmax: The softmax that it was computed from.
        projected: Whether linear layers, which may mix heads, were applied in between.
    """

    def __init__(
        self, func: Any, args: tuple[Any, ...], used: Tensor, softmax: Tensor, *, projected: bool
    ) -> None:
        self._func, self._args = func, args
        self._transposed = used is not args[0]
        rows = used.mT if self._transposed else used
        weights = rows.unsqueeze(1) if rows.ndim == 3 else rows
        if weights.ndim != 4:
            self.unsupported = _UNSUPPORTED_AXES
            return
        if not sums_to_one(weights) and not _without_sinks(softmax, rows):
            self.heads_mixed = projected and softmax.shape == weights.shape
            if not self.heads_mixed:
                self.unsupported = "the weights that it uses do not sum to 1"
                return
            weights = softmax
        self.shape = (weights.shape[0], weights.shape[1], weights.shape[2], weights.shape[3])
        self.own_weights = weights

    @cached_property
    def inputs(self) -> Inputs:
        """The values."""
        values = self._args[0].mT if self._transposed else self._args[1]
        return None, None, values.unsqueeze(1) if values.ndim == 3 else values

    @cached_property
    def result(self) -> Tensor:
        """The product."""
        return self._func(*self._args)

    def result_of(self, weights: Float[Tensor, "..."]) -> Tensor:
        """Return the product with other weights; with its own if it mixed heads."""
        if self.heads_mixed:
            return self.result
        used, axis = self.traced
        if weights is IDENTITY:
            return self._args[0] if axis == -1 else self._args[1]
        weights = weights.to(used).expand(self.shape)
        if axis == -1:
            return self._func(self._args[0], weights.mT.reshape(used.shape))
        return self._func(weights.reshape(used.shape), self._args[1])

    @property
    def traced(self) -> tuple[Tensor, int]:
        """The weights, as the model holds them."""
        return (self._args[1], -1) if self._transposed else (self._args[0], -2)


def _without_sinks(softmax: Tensor, rows: Tensor) -> bool:
    """Whether rows are a softmax without its last columns (attention sinks), as in GPT-OSS."""
    cut = softmax[..., : rows.shape[-1]]
    return cut.shape == rows.shape != softmax.shape and torch.equal(cut.to(rows), rows)


def _select(tensor: Tensor, heads: Rows, queries: Rows) -> Tensor:
    tensor = tensor if heads == ALL else tensor[:, heads]
    return tensor if queries == ALL else tensor[:, :, queries]


def row_tolerance(weights: Tensor, score: float = 0.0) -> float:
    """Return by how much weights times values may differ from the output of the layer.

    The rounding error of a score is proportional to its size, and is the relative error of the
    weight.
    """
    rounding = torch.finfo(torch.float32).eps
    if weights.dtype not in (torch.float32, torch.float64):
        return 2e-2 + 4 * rounding * score
    if weights.device.type == "cpu":
        return 2e-6 + 4 * rounding * score
    return 2e-3 + 5e-4 * score  # accelerators may use TF32


def sums_to_one(weights: Float[Tensor, "*axes m"]) -> bool:
    """Whether every row of weights sums to 1, is all zeros, or is NaN.

    Example:
        >>> sums_to_one(torch.tensor([[0.25, 0.75], [0.0, 0.0]])), sums_to_one(torch.ones(2, 2))
        (True, False)
    """
    # hidden from modes that look for what the model itself detaches
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        wide = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
    sums = wide.sum(-1)
    tolerance = 1e-5 if weights.dtype in (torch.float32, torch.float64) else 2e-2
    error = torch.minimum((sums - 1).abs(), wide.abs().amax(-1))
    return bool((error.nan_to_num(0.0) <= tolerance).all())
