"""Attention methods on small transformers, against plain products of what was recorded."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import timm
import torch
from small_subjects import token_card
from torch import Tensor

from visattn.attribution.attention_based import (
    attention,
    gradient_attention,
    gradient_rollout,
    relevance,
    rollout,
)
from visattn.attribution.attention_rows import one_grid_refusal
from visattn.attribution.explained_model import subject_of
from visattn.attribution.targets import target_of
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.recording.model_info import ExplainedModel
from visattn.recording.recorder import record

GRID = (3, 5)
POOLS: dict[str, dict[str, Any]] = {
    "class": {"registers": 2},
    "distilled": {"distilled": True},
    "mean": {"pool": "mean", "registers": 1},
    "attention": {"pool": "attention"},
}
METHODS: list[Callable[..., Tensor]] = [
    attention,
    rollout,
    gradient_attention,
    gradient_rollout,
    relevance,
]


@cache
def transformer(pool: str) -> ExplainedModel:
    torch.manual_seed(0)
    model = VisionTransformer(
        ("cat", "dog", "cow"), size=(24, 40), patch=8, width=16, depth=3, heads=2, **POOLS[pool]
    )
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data *= 12  # so that attention is far from even
    return subject_of(model.double())


def inputs(count: int = 2) -> Tensor:
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 24, 40, generator=drawn, dtype=torch.float64)


def recorded(subject: ExplainedModel, x: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """Return the weights of the layers and those of the pool if there is one."""
    with torch.no_grad(), record(subject.model.eval()) as seen:
        subject.scores(x)
    return seen.weights[:3], seen.weights[3] if len(seen.weights) > 3 else None


def gradients(subject: ExplainedModel, x: Tensor, number: int, layer: int) -> Tensor:
    """Return the gradient of a score with respect to one layer alone."""
    with record(subject.model.eval(), layers=[layer], differentiable=True) as seen:
        total = subject.scores(x)[:, number].sum()
    return torch.autograd.grad(total, seen.weights)[0]


def read(pool: str, matrix: Tensor) -> Tensor:
    """Return the mean of the rows that a model reads, for matrices `[b n m]`."""
    if pool == "class":
        return matrix[:, 0]
    return matrix[:, :2].mean(1) if pool == "distilled" else matrix[:, -15:].mean(1)


def on_grid(rows: Tensor) -> Tensor:
    return rows[:, -15:].unflatten(1, GRID)


@pytest.mark.parametrize("pool", POOLS)
def test_attention_is_of_the_tokens_that_are_read(pool: str) -> None:
    subject, x = transformer(pool), inputs()
    layers, pooling = recorded(subject, x)
    found = attention(subject, x, target_of(None, subject))
    rows = read(pool, layers[-1].mean(1)) if pooling is None else pooling.reshape(2, 2, -1).mean(1)
    torch.testing.assert_close(found, on_grid(rows))
    second = attention(subject, x, target_of(None, subject), layer=1, heads="max")
    torch.testing.assert_close(second, on_grid(read(pool, layers[1].amax(1))))


def test_heads_layers_and_queries_are_chosen() -> None:
    subject, x = transformer("class"), inputs()
    layers, _ = recorded(subject, x)
    target = target_of(None, subject)
    one = attention(subject, x, target, layer=0, heads=1)
    torch.testing.assert_close(one, on_grid(layers[0][:, 1, 0]))
    both = attention(subject, x, target, layer=0, heads=[0, 1], queries="patches")
    torch.testing.assert_close(both, on_grid(layers[0][:, :, 3:].mean((1, 2))))
    named = attention(subject, x, target, layer=subject.card.layers[0].site, heads=1)
    assert torch.equal(named, one)
    with pytest.raises(ValueError, match="has 3 layers of attention"):
        attention(subject, x, target, layer=3)
    with pytest.raises(ValueError, match="there are 2, counted from 0, got 2"):
        attention(subject, x, target, heads=2)


@pytest.mark.parametrize(
    ("pool", "start"), [("class", 0), ("class", 1), ("distilled", 0), ("mean", 0), ("attention", 1)]
)
def test_rollout_is_the_product_of_what_was_recorded(pool: str, start: int) -> None:
    subject, x = transformer(pool), inputs()
    layers, pooling = recorded(subject, x)
    product = torch.eye(layers[0].shape[-1], dtype=torch.float64).expand(2, -1, -1)
    for layer in layers[start:]:
        mixed = layer.amax(1) + torch.eye(layer.shape[-1])
        product = (mixed / mixed.sum(-1, keepdim=True)) @ product
    rows = read(pool, product)
    if pooling is not None:
        rows = (pooling.reshape(2, 2, 1, -1).amax(1) @ product)[:, 0]
    found = rollout(subject, x, target_of(None, subject), heads="max", start_layer=start)
    torch.testing.assert_close(found, on_grid(rows))


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_each_layer_meets_its_own_gradient(pool: str) -> None:
    subject, x = transformer(pool), inputs()
    layers, _ = recorded(subject, x)
    graded = [gradients(subject, x, 2, layer) for layer in range(3)]
    assert not torch.allclose(graded[0], graded[2])
    rolled = added = torch.eye(layers[0].shape[-1], dtype=torch.float64).expand(2, -1, -1)
    for weights, gradient in zip(layers, graded, strict=True):
        inside = (weights * gradient).clamp(min=0).mean(1)
        added = added + inside @ added
        mixed = (weights * gradient).mean(1).clamp(min=0) + torch.eye(weights.shape[-1])
        rolled = (mixed / mixed.sum(-1, keepdim=True)) @ rolled
    target = target_of(2, subject)
    torch.testing.assert_close(gradient_rollout(subject, x, target), on_grid(read(pool, rolled)))
    own = torch.eye(layers[0].shape[-1], dtype=torch.float64).expand(2, -1, -1)
    torch.testing.assert_close(relevance(subject, x, target), on_grid(read(pool, added - own)))
    last = (layers[-1] * graded[-1]).clamp(min=0).mean(1)
    torch.testing.assert_close(gradient_attention(subject, x, target), on_grid(read(pool, last)))


@pytest.mark.parametrize(
    ("pool", "method"),
    [*(("class", one) for one in METHODS[:4]), *((pool, relevance) for pool in POOLS)],
)
def test_images_do_not_see_each_other_and_the_model_stays_as_it_was(
    pool: str, method: Callable[..., Tensor]
) -> None:
    subject, x = transformer(pool), inputs(3)
    model = subject.model.train()
    found = method(subject, x, target_of(None, subject))
    assert found.shape == (3, *GRID)
    assert found.any()
    assert found.min() >= 0
    alone = method(subject, x[1:2], target_of(None, subject))
    torch.testing.assert_close(alone[0], found[1])
    assert all(module.training for module in model.modules())
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    assert sum(len(module._forward_hooks) for module in model.modules()) == 0


def test_classes_have_different_maps() -> None:
    subject, x = transformer("class"), inputs()
    found = [relevance(subject, x, target_of(number, subject)) for number in range(3)]
    assert not torch.allclose(found[0], found[1])


@pytest.mark.parametrize("method", [rollout, gradient_rollout, relevance])
def test_models_with_several_grids_are_refused_with_the_reason(
    method: Callable[..., Tensor],
) -> None:
    model = torch.nn.Identity()
    subject = ExplainedModel(model, token_card((4, 6), (2, 3)), model)
    with pytest.raises(ValueError, match=r"does not fit tokens: .* several grids .*4 x 6, 2 x 3"):
        method(subject, inputs(), target_of(0, subject))


def test_models_without_tokens_are_refused() -> None:
    model = torch.nn.Identity()
    subject = ExplainedModel(model, token_card(), model)
    with pytest.raises(ValueError, match="no attention among tokens"):
        attention(subject, inputs(), target_of(0, subject))
    vit = transformer("class")
    with pytest.raises(ValueError, match="start_layer counts the 3 layers"):
        rollout(vit, inputs(), target_of(0, vit), start_layer=3)


def test_layers_that_run_again_are_no_further_layers() -> None:
    subject = transformer("class")
    twice = replace(subject, forward=lambda x: subject.scores(x) + subject.scores(-x))
    with pytest.raises(ValueError, match=r"each of 3 layers of Vision.* but 6 maps were made"):
        rollout(twice, inputs(), target_of(0, twice))
    with pytest.raises(ValueError, match=r"each of 1 layers of Vision.* but 2 maps were made"):
        gradient_attention(twice, inputs(), target_of(0, twice))


def test_a_class_token_may_join_on_the_way() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"embed_dim": 8, "depth": 3, "num_heads": 2, "local_up_to_layer": 2}
    model: Any = timm.create_model("convit_tiny", img_size=48, num_classes=5, **options)
    with torch.no_grad():
        for block in model.blocks:
            (block.attn.qkv if hasattr(block.attn, "qkv") else block.attn.qk).weight.normal_()
    subject, x = subject_of(model.eval()), torch.randn(2, 3, 48, 48)
    assert [one.roles for one in subject.card.layers] == [(), (), ("class",)]
    with torch.no_grad(), record(model) as seen:
        model(x)
    first, second, last = (one.mean(1).double() for one in seen.weights)
    rows = torch.zeros(2, 1, 10).double()
    rows[:, :, 0] = 1
    rows = (rows + rows @ last)[:, :, 1:] / 2
    for weights in (second, first):
        rows = (rows + rows @ weights) / 2
    found = rollout(subject, x, target_of(0, subject))
    torch.testing.assert_close(
        found.double(), rows[:, 0].unflatten(1, (3, 3)), atol=1e-6, rtol=1e-5
    )
    for method in (gradient_rollout, relevance):
        assert method(subject, x, target_of(0, subject)).shape == (2, 3, 3)


def test_tokens_that_change_otherwise_are_refused() -> None:
    one, other = (token_card((3, 5), roles=roles).layers for roles in (("class",), ("register",)))
    card = replace(token_card((3, 5)), layers=(*one, *other))
    assert one_grid_refusal(card).startswith("the tokens before its grid change from class at")
    assert one_grid_refusal(replace(card, layers=(*one, *one))) == ""
