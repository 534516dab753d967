"""Attention of `torch.nn.MultiheadAttention`, found beside its fast path."""

from contextlib import AbstractContextManager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from visattn.recording.attention_call import AttentionCall
from visattn.recording.module_calls import ModuleCall

_FORWARD = signature(nn.MultiheadAttention.forward)
_GUARD = "guard"


def hide(place: ModuleCall) -> None:
    """Let multi-head attention run as if nobody listened to torch.

    Where somebody does, it leaves its fast path, and its output differs in the last bits.

    Args:
        place: Its run, which has begun.
    """
    guard: AbstractContextManager[None] = torch._C.DisableTorchFunction()  # noqa: SLF001
    guard.__enter__()
    place.notes[_GUARD] = guard


def unhide(place: ModuleCall) -> None:
    """End what `hide` began.

    Args:
        place: The run, which has ended.
    """
    place.notes.pop(_GUARD).__exit__(None, None, None)


def asked_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return by name what multi-head attention is given, with its defaults.

    Args:
        args: Of its forward method.
        kwargs: Of its forward method.

    Example:
        >>> asked_of((1, 2, 3), {"attn_mask": 5})["attn_mask"]
        5
    """
    bound = _FORWARD.bind(None, *args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def multihead_call(
    layer: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> AttentionCall | str:
    """Return the attention of a layer that has run, or why it cannot be shown.

    Args:
        layer: The layer.
        args: What its forward method was given.
        kwargs: What its forward method was given.
        output: What it gave.
    """
    asked = asked_of(args, kwargs)
    tokens: list[Tensor] = [asked[name] for name in ("query", "key", "value")]
    if tokens[0].ndim != 3 or tokens[0].is_nested:
        return "its tokens come without an axis of images, or as nested tensors"
    if layer.bias_k is not None or layer.add_zero_attn:
        return "it adds keys that are no tokens"
    if not layer.batch_first:
        tokens = [part.transpose(0, 1) for part in tokens]
    queries, keys, values = (
        linear(part, weight, bias).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for part, (weight, bias) in zip(tokens, _projections(layer), strict=True)
    )
    shape = (queries.shape[0], queries.shape[1], queries.shape[2], keys.shape[2])
    given = output[0] if layer.batch_first else output[0].transpose(0, 1)
    dropout = layer.dropout if layer.training else 0.0
    return AttentionCall(
        shape,
        queries,
        keys,
        values,
        bias=_bias(asked, shape, queries),
        output=given,
        merged=lambda seen: layer.out_proj(seen.transpose(1, 2).flatten(2)),
        dropout=dropout,
    )


def _projections(layer: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    if layer.in_proj_weight is None:
        weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    else:
        weights = list(layer.in_proj_weight.chunk(3))
    biases = [None] * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return list(zip(weights, biases, strict=True))


def _bias(asked: dict[str, Any], shape: tuple[int, int, int, int], like: Tensor) -> Tensor | None:
    """Return what is added to scores; in masks of this layer True = may not attend."""
    total: Tensor | None = None
    hidden, mask = asked["key_padding_mask"], asked["attn_mask"]
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, shape[:2])
    for one in (None if hidden is None else hidden[:, None, None], mask):
        if one is None:
            continue
        if one.dtype == torch.bool:
            one = torch.zeros_like(one, dtype=like.dtype).masked_fill(one, -torch.inf)
        total = one if total is None else total + one
    return total


def multihead_output(
    layer: nn.MultiheadAttention, attention: AttentionCall, weights: Tensor, given: Any
) -> tuple[Tensor, Any]:
    """Return what a layer gives if it computes with these weights.

    Args:
        layer: The layer.
        attention: As `multihead_call` returned it.
        weights: To compute with.
        given: What the layer gave.
    """
    dropped = nn.functional.dropout(weights, attention.dropout)
    if attention.values is None or attention.merged is None:
        raise ValueError("attention of a layer needs values, and what follows them")
    output = attention.merged(dropped @ attention.values)
    return (output if layer.batch_first else output.transpose(0, 1)), given[1]
