"""Attention methods: their formulas in closed form, and on transformers the recorded weights."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import timm
import torch
from random_numbers import numbers
from torch import Tensor

from visattn.attribution.attention import (
    attention,
    attention_rollout,
    gradient_attention,
    gradient_rollout,
    relevance,
    rollout,
)
from visattn.attribution.methods import METHODS
from visattn.attribution.targets import resolve_target
from visattn.recording.recorder import record
from visattn.recording.subject import Subject, analyze_model

IMAGES = numbers(2, 3, 24, 40)
POOLS: dict[str, dict[str, Any]] = {
    "class": {"reg_tokens": 2},
    "distilled": {},
    "mean": {"global_pool": "avg", "class_token": False, "reg_tokens": 1},
    "attention": {"global_pool": "map", "class_token": False},
}


def test_rows_of_zeros_stay_zero() -> None:
    layer = torch.eye(3)[None] * torch.tensor([1.0, 0.0, 1.0])[:, None]
    result = attention_rollout([layer], torch.eye(3)[None], residual=0.0)
    assert result[0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]  # no NaN


@cache
def transformer(pool: str) -> Subject:
    torch.manual_seed(0)
    name = "deit_tiny_distilled_patch16_224" if pool == "distilled" else "vit_tiny_patch16_224"
    model = timm.create_model(
        name, img_size=(24, 40), patch_size=8, embed_dim=16, depth=3, num_heads=2, num_classes=3,
        **POOLS[pool],
    )  # fmt: skip
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data *= 12  # so that attention is far from uniform
    return analyze_model(model.double())


def eager(subject: Subject, x: Tensor, index: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights that timm computes, of the layers and a pool, and their gradients."""
    kept: list[Tensor] = []
    model = copy.deepcopy(subject.model).eval()
    module: Any
    for module in model.modules():
        if hasattr(module, "attn_drop") and hasattr(module, "fused_attn"):
            module.fused_attn = False
            module.attn_drop.register_forward_hook(lambda _, __, out: kept.append(out))
    slopes = torch.autograd.grad(model(x)[:, index].sum(), kept)
    return [each.detach() for each in kept], list(slopes)


def pooled_rows(pool: str, matrix: Tensor) -> Tensor:
    """Return the mean of the rows that a model pools, for matrices `[b n m]`."""
    if pool == "class":
        return matrix[:, 0]
    return matrix[:, :2].mean(1) if pool == "distilled" else matrix[:, -15:].mean(1)


def to_grid(rows: Tensor) -> Tensor:
    return rows[:, -15:].unflatten(1, (3, 5))


def rolled(matrices: list[Tensor], residual: float = 0.5) -> Tensor:
    """Return Abnar and Zuidema's rollout."""
    product = identity = torch.eye(matrices[0].shape[-1], dtype=torch.float64)
    for matrix in matrices:
        mixed = residual * identity + (1 - residual) * matrix
        product = (mixed / mixed.sum(-1, keepdim=True)) @ product
    return product


def chefer(products: list[Tensor]) -> Tensor:
    """Return the relevance of Chefer et al. without the part of each token itself."""
    identity = torch.eye(products[0].shape[-1], dtype=torch.float64)
    relevance = identity
    for product in products:
        relevance = relevance + product @ relevance
    return relevance - identity


Lists = list[Tensor]
FORMULAS: dict[str, Callable[[Lists, Lists], Tensor]] = {
    "attention": lambda a, g: a[-1].mean(1),
    "rollout": lambda a, g: rolled([each.mean(1) for each in a]),
    "relevance": lambda a, g: chefer([(a * g).relu().mean(1) for a, g in zip(a, g, strict=True)]),
    "gradient_attention": lambda a, g: (a[-1] * g[-1]).relu().mean(1),
    "gradient_rollout": lambda a, g: rolled(
        [(a * g).mean(1).relu() for a, g in zip(a, g, strict=True)]
    ),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("method", FORMULAS)
def test_methods_are_their_formulas_of_the_weights_of_timm(method: str, pool: str) -> None:
    subject, x = transformer(pool), IMAGES
    weights, slopes = eager(subject, x, 2)
    if pool != "attention":
        rows = pooled_rows(pool, FORMULAS[method](weights, slopes))
    elif method in ("attention", "rollout"):  # the weights of the pool are tested on their own
        with torch.no_grad(), record(subject.model.eval(), layers=-1) as recording:
            subject.scores(x)
        rows = recording.weights[0].reshape(2, 2, -1).mean(1)
        if method == "rollout":
            rows = (rows[:, None] @ rolled([each.mean(1) for each in weights]))[:, 0]
    else:
        return
    result = METHODS[method].function(subject, x, resolve_target(2, subject))
    torch.testing.assert_close(result, to_grid(rows))


def test_heads_layers_and_queries_are_selected() -> None:
    subject, x = transformer("class"), IMAGES
    layers, _ = eager(subject, x, 0)

    def explained(method: str = "attention", **options: Any) -> Tensor:
        return METHODS[method].function(subject, x, resolve_target(0, subject), **options)

    single = explained(layers=0, heads=1)
    torch.testing.assert_close(single, to_grid(layers[0][:, 1, 0]))
    both = explained(layers=0, heads=[0, 1], queries="patches")
    torch.testing.assert_close(both, to_grid(layers[0][:, :, 3:].mean((1, 2))))
    assert torch.equal(explained(layers=subject.info.attention_layers[0].site, heads=1), single)
    torch.testing.assert_close(explained(layers=1, heads="max"), to_grid(layers[1].amax(1)[:, 0]))
    torch.testing.assert_close(explained(layers=1, heads="min"), to_grid(layers[1].amin(1)[:, 0]))
    largest = [each.amax(1) for each in layers]
    for residual in (0.0, 0.3, 1.0):
        rows = explained("rollout", heads="max", residual=residual)
        torch.testing.assert_close(rows, to_grid(rolled(largest, residual)[:, 0]))
    # of several layers the mean of their maps, which are those of their numbers in `record`
    for method in ("attention", "gradient_attention"):
        alone = [explained(method, layers=k, heads=1) for k in (0, -1)]
        mean = explained(method, layers=[0, -1], heads=1)
        torch.testing.assert_close(mean, (alone[0] + alone[1]) / 2)
        assert not torch.equal(*alone)
    halves = [explained("gradient_attention", heads=k) for k in (0, 1)]
    both = explained("gradient_attention", heads=[0, 1])
    torch.testing.assert_close(both, (halves[0] + halves[1]) / 2)


def test_layers_that_run_twice_raise_an_error() -> None:
    subject = transformer("class")
    twice = replace(subject, forward=lambda x: subject.scores(x) + subject.scores(-x))
    with pytest.raises(ValueError, match=r"each of 3 attention layers of vit_tiny.* got 6 maps"):
        rollout(twice, IMAGES, resolve_target(0, twice))
    with pytest.raises(ValueError, match=r"each of 1 attention layers of vit_tiny.* got 2 maps"):
        gradient_attention(twice, IMAGES, resolve_target(0, twice))


def test_a_class_token_may_be_added_by_a_later_layer() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"embed_dim": 8, "depth": 3, "num_heads": 2, "local_up_to_layer": 2}
    model: Any = timm.create_model("convit_tiny", img_size=48, num_classes=5, **options)
    with torch.no_grad():
        for block in model.blocks:
            (block.attn.qkv if hasattr(block.attn, "qkv") else block.attn.qk).weight.normal_()
    subject, x = analyze_model(model.eval()), torch.randn(2, 3, 48, 48)
    assert [layer.prefix_tokens for layer in subject.info.attention_layers] == [
        (),
        (),
        ("class",),
    ]
    with torch.no_grad(), record(model) as recording:
        model(x)
    first, second, last = (weights.mean(1).double() for weights in recording.weights)
    rows = torch.zeros(2, 1, 10).double()
    rows[:, :, 0] = 1
    rows = (rows + rows @ last)[:, :, 1:] / 2
    for weights in (second, first):
        rows = (rows + rows @ weights) / 2
    result = rollout(subject, x, resolve_target(0, subject))
    torch.testing.assert_close(
        result.double(), rows[:, 0].unflatten(1, (3, 3)), atol=1e-6, rtol=1e-5
    )
    for method in (gradient_rollout, relevance):
        assert method(subject, x, resolve_target(0, subject)).shape == (2, 3, 3)
    earlier = attention(subject, x, resolve_target(0, subject), layers=0)  # of all patches
    torch.testing.assert_close(earlier.flatten(1).double(), first.mean(1))
