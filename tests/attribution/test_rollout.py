"""Attention rollout and relevance propagation against products of matrices and closed forms."""

from typing import Any

import pytest
import timm
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack  # pyright: ignore[reportPrivateUsage]

from visattn.attribution.attention import (
    attention_rollout,
    fuse_heads,
    gradient_rollout_weights,
    positive_grad_times_attention,
    propagate_relevance,
)
from visattn.attribution.explained_model import analyze_model
from visattn.attribution.methods import METHODS
from visattn.attribution.targets import class_target
from visattn.recording.attention_call import AttentionCall
from visattn.recording.subject import Subject

B, H, N = 2, 3, 7


def explain(method: str, model: torch.nn.Module | Subject, images: Tensor) -> Tensor:
    if not isinstance(model, Subject):
        model = analyze_model(model, (images.shape[2], images.shape[3]))
    return METHODS[method].function(model, images, class_target([1]))


def random_layers(count: int, seed: int = 0, heads: int | None = None) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    shape = (B, N, N) if heads is None else (B, heads, N, N)
    return [
        (3 * torch.randn(shape, generator=drawn, dtype=torch.float64)).softmax(-1)
        for _ in range(count)
    ]


def plain_rollout(layers: list[Tensor], residual: float) -> Tensor:
    """Return the full matrix product of the paper."""
    products = []
    for image in range(B):
        product = torch.eye(N, dtype=torch.float64)
        for layer in layers:
            mixed = residual * torch.eye(N) + (1 - residual) * layer[image]
            for row in range(N):
                mixed[row] = mixed[row] / mixed[row].sum()
            product = mixed @ product
        products.append(product)
    return torch.stack(products)


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5, 1.0])
def test_rows_match_the_full_matrix_product(residual: float) -> None:
    layers = [2.5 * layer for layer in random_layers(5)]  # sums other than 1 are scaled
    identity = torch.eye(N, dtype=torch.float64).expand(B, N, N)
    whole = attention_rollout(layers, identity, residual=residual)
    torch.testing.assert_close(whole, plain_rollout(layers, residual))
    torch.testing.assert_close(
        attention_rollout(layers, identity[:, 2:3], residual=residual), whole[:, 2:3]
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.sampled_from(["mean", "max", "min"]))
def test_rows_sum_to_one(count: int, fusion: Any) -> None:
    layers = [fuse_heads(layer, fusion) for layer in random_layers(count, heads=H)]
    sums = attention_rollout(layers, torch.eye(N).double().expand(B, N, N)).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_zero_row_stays_zero_without_nan() -> None:
    layer = torch.eye(3)[None] * torch.tensor([1.0, 0.0, 1.0])[:, None]
    result = attention_rollout([layer], torch.eye(3)[None], residual=0.0)
    assert result[0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_head_fusion_modes() -> None:
    [layer] = random_layers(1, heads=H)
    assert torch.equal(fuse_heads(layer, "max"), layer.max(1).values)
    assert torch.equal(fuse_heads(layer, "min"), layer.min(1).values)
    torch.testing.assert_close(fuse_heads(layer), layer.sum(1) / H)


L = 5


def drawn(seed: int) -> tuple[list[Tensor], list[Tensor]]:
    random = torch.Generator().manual_seed(seed)
    numbers = torch.randn(
        2,
        L,
        B,
        H,
        N,
        N,
        generator=random,
        dtype=torch.float64,
    )
    return list(numbers[0].softmax(-1)), list(numbers[1])


def test_gradient_weighted_attention_matches_loops() -> None:
    weights, gradients = drawn(0)
    inside, outside = torch.zeros(2, B, N, N, dtype=torch.float64)
    for b in range(B):
        for n in range(N):
            for m in range(N):
                products = [
                    float(weights[0][b, h, n, m] * gradients[0][b, h, n, m]) for h in (0, 1, 2)
                ]
                inside[b, n, m] = sum(max(product, 0) for product in products) / H
                outside[b, n, m] = max(sum(products) / H, 0)
    torch.testing.assert_close(positive_grad_times_attention(weights[0], gradients[0]), inside)
    torch.testing.assert_close(gradient_rollout_weights(weights[0], gradients[0]), outside)


def test_relevance_accumulates_over_layers() -> None:
    layers = [positive_grad_times_attention(*pair) for pair in zip(*drawn(1), strict=True)]
    expected = torch.eye(N, dtype=torch.float64).expand(B, N, N)
    for layer in layers:
        expected = expected + layer @ expected
    identity = torch.eye(N, dtype=torch.float64).expand(B, N, N)
    torch.testing.assert_close(propagate_relevance(layers, identity), expected)
    torch.testing.assert_close(propagate_relevance(layers, identity[:, 3:4]), expected[:, 3:4])


def small_vit() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"embed_dim": 14, "num_heads": 2, "depth": 3, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", img_size=(48, 80), **sizes).eval()


def test_an_error_inside_a_layer_ends_the_interception(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = analyze_model(small_vit(), (48, 80)), torch.randn(1, 3, 48, 80)
    before = explain("attention", model, images)

    linear = torch.nn.functional.linear

    def fail(*args: Any) -> Tensor:
        if _get_current_function_mode_stack():  # inside the layer that is recorded
            raise RuntimeError("out of order")
        return linear(*args)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", fail)
        with pytest.raises(RuntimeError, match="out of order"):
            explain("attention", model, images)
    assert not _get_current_function_mode_stack()
    assert torch.equal(explain("attention", model, images), before)


def test_weights_that_do_not_reproduce_an_output_are_refused_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = AttentionCall.weights
    monkeypatch.setattr(AttentionCall, "weights", lambda *args: whole(*args).roll(1, -1))
    with pytest.raises(ValueError, match="times its values must equal its output"):
        explain("rollout", small_vit(), torch.randn(1, 3, 48, 80))
