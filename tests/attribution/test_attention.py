"""Attention methods: their formulas in closed form, and on transformers the recorded weights."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import timm
import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack  # pyright: ignore[reportPrivateUsage]

from visattn.attribution.attention import (
    attention,
    attention_rollout,
    fuse_heads,
    gradient_attention,
    gradient_rollout,
    relevance,
    rollout,
)
from visattn.attribution.targets import class_target, resolve_target
from visattn.recording.recorder import record
from visattn.recording.subject import Subject, analyze_model

GRID = (3, 5)
POOLS: dict[str, dict[str, Any]] = {
    "class": {"reg_tokens": 2},
    "distilled": {},
    "mean": {"global_pool": "avg", "class_token": False, "reg_tokens": 1},
    "attention": {"global_pool": "map", "class_token": False},
}


def test_rollout_rows_match_the_full_matrix_product_and_heads_are_fused() -> None:
    random = torch.Generator().manual_seed(0)
    heads = (3 * torch.randn(5, 2, 3, 7, 7, generator=random, dtype=torch.float64)).softmax(-1)
    layers = [2.5 * fuse_heads(layer, "max") for layer in heads]  # sums other than 1 are scaled
    identity = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
    for residual in (0.0, 0.3, 1.0):
        product = identity
        for layer in layers:
            mixed = residual * identity + (1 - residual) * layer
            product = (mixed / mixed.sum(2, keepdim=True)) @ product
        whole = attention_rollout(layers, identity, residual=residual)
        torch.testing.assert_close(whole, product)
        row = attention_rollout(layers, identity[:, 2:3], residual=residual)
        torch.testing.assert_close(row, whole[:, 2:3])
    ends: dict[Any, Tensor] = {"max": heads[0].max(1).values, "min": heads[0].min(1).values}
    for name, fused in ends.items():
        assert torch.equal(fuse_heads(heads[0], name), fused)
    torch.testing.assert_close(fuse_heads(heads[0]), heads[0].sum(1) / 3)
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


def inputs(count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 24, 40, generator=generator, dtype=torch.float64)


def recorded(subject: Subject, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """Return the weights of the layers and those of the pool if there is one."""
    with torch.no_grad(), record(subject.model.eval()) as recording:
        subject.scores(x)
    return recording.weights[:3], recording.weights[3] if len(recording.weights) > 3 else None


def gradients(subject: Subject, x: Tensor, class_index: int, layer: int) -> Tensor:
    """Return the gradient of a score with respect to one layer alone."""
    with record(subject.model.eval(), layers=[layer], differentiable=True) as recording:
        total = subject.scores(x)[:, class_index].sum()
    return torch.autograd.grad(total, recording.weights)[0]


def pooled_rows(pool: str, matrix: Tensor) -> Tensor:
    """Return the mean of the rows that a model pools, for matrices `[b n m]`."""
    if pool == "class":
        return matrix[:, 0]
    return matrix[:, :2].mean(1) if pool == "distilled" else matrix[:, -15:].mean(1)


def to_grid(rows: Tensor) -> Tensor:
    return rows[:, -15:].unflatten(1, GRID)


@pytest.mark.parametrize("pool", POOLS)
def test_attention_is_that_of_the_pooled_tokens(pool: str) -> None:
    subject, x = transformer(pool), inputs()
    layers, pooling = recorded(subject, x)
    result = attention(subject, x, resolve_target(None, subject))
    rows = (
        pooled_rows(pool, layers[-1].mean(1))
        if pooling is None
        else pooling.reshape(2, 2, -1).mean(1)
    )
    torch.testing.assert_close(result, to_grid(rows))
    second = attention(subject, x, resolve_target(None, subject), layers=1, heads="max")
    torch.testing.assert_close(second, to_grid(pooled_rows(pool, layers[1].amax(1))))


def test_heads_layers_and_queries_are_selected() -> None:
    subject, x = transformer("class"), inputs()
    layers, _ = recorded(subject, x)
    target = resolve_target(None, subject)
    single = attention(subject, x, target, layers=0, heads=1)
    torch.testing.assert_close(single, to_grid(layers[0][:, 1, 0]))
    both = attention(subject, x, target, layers=0, heads=[0, 1], queries="patches")
    torch.testing.assert_close(both, to_grid(layers[0][:, :, 3:].mean((1, 2))))
    named = attention(subject, x, target, layers=subject.info.attention_layers[0].site, heads=1)
    assert torch.equal(named, single)
    # of several layers the mean of their maps, which are those of their numbers in `record`
    for method in (attention, gradient_attention):
        alone = [method(subject, x, resolve_target(0, subject), layers=k, heads=1) for k in (0, -1)]
        mean = method(subject, x, resolve_target(0, subject), layers=[0, -1], heads=1)
        torch.testing.assert_close(mean, (alone[0] + alone[1]) / 2)
        assert not torch.equal(*alone)
    halves = [gradient_attention(subject, x, resolve_target(0, subject), heads=k) for k in (0, 1)]
    both = gradient_attention(subject, x, resolve_target(0, subject), heads=[0, 1])
    torch.testing.assert_close(both, (halves[0] + halves[1]) / 2)


@pytest.mark.parametrize(
    ("pool", "start"), [("class", 0), ("class", 1), ("distilled", 0), ("mean", 0), ("attention", 1)]
)
def test_rollout_is_the_product_of_recorded_weights(pool: str, start: int) -> None:
    subject, x = transformer(pool), inputs()
    layers, pooling = recorded(subject, x)
    product = torch.eye(layers[0].shape[-1], dtype=torch.float64).expand(2, -1, -1)
    for layer in layers[start:]:
        mixed = layer.amax(1) + torch.eye(layer.shape[-1])
        product = (mixed / mixed.sum(-1, keepdim=True)) @ product
    rows = pooled_rows(pool, product)
    if pooling is not None:
        rows = (pooling.reshape(2, 2, 1, -1).amax(1) @ product)[:, 0]
    result = rollout(subject, x, resolve_target(None, subject), heads="max", start_layer=start)
    torch.testing.assert_close(result, to_grid(rows))


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_each_layer_is_multiplied_by_its_own_gradient(pool: str) -> None:
    subject, x = transformer(pool), inputs()
    layers, _ = recorded(subject, x)
    layer_gradients = [gradients(subject, x, 2, layer) for layer in range(3)]
    assert not torch.allclose(layer_gradients[0], layer_gradients[2])
    rolled = relevances = torch.eye(layers[0].shape[-1], dtype=torch.float64).expand(2, -1, -1)
    for weights, gradient in zip(layers, layer_gradients, strict=True):
        product = (weights * gradient).clamp(min=0).mean(1)
        relevances = relevances + product @ relevances
        mixed = (weights * gradient).mean(1).clamp(min=0) + torch.eye(weights.shape[-1])
        rolled = (mixed / mixed.sum(-1, keepdim=True)) @ rolled
    target = resolve_target(2, subject)
    torch.testing.assert_close(
        gradient_rollout(subject, x, target), to_grid(pooled_rows(pool, rolled))
    )
    identity = torch.eye(layers[0].shape[-1], dtype=torch.float64).expand(2, -1, -1)
    torch.testing.assert_close(
        relevance(subject, x, target), to_grid(pooled_rows(pool, relevances - identity))
    )
    last = (layers[-1] * layer_gradients[-1]).clamp(min=0).mean(1)
    torch.testing.assert_close(
        gradient_attention(subject, x, target), to_grid(pooled_rows(pool, last))
    )


def test_layers_that_run_twice_raise_an_error() -> None:
    subject = transformer("class")
    twice = replace(subject, forward=lambda x: subject.scores(x) + subject.scores(-x))
    with pytest.raises(ValueError, match=r"each of 3 attention layers of vit_tiny.* got 6 maps"):
        rollout(twice, inputs(), resolve_target(0, twice))
    with pytest.raises(ValueError, match=r"each of 1 attention layers of vit_tiny.* got 2 maps"):
        gradient_attention(twice, inputs(), resolve_target(0, twice))


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


def test_an_error_inside_a_layer_ends_the_interception(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, x = transformer("class"), inputs()
    before = attention(subject, x, class_target([1]))
    linear = torch.nn.functional.linear

    def fail(*args: Any) -> Tensor:
        if _get_current_function_mode_stack():  # inside the layer that is recorded
            raise RuntimeError("out of order")
        return linear(*args)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", fail)
        with pytest.raises(RuntimeError, match="out of order"):
            attention(subject, x, class_target([1]))
    assert not _get_current_function_mode_stack()
    assert torch.equal(attention(subject, x, class_target([1])), before)
