"""Differentiable recording: the model computes with the weights, and gradients are exact."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT
from windows import swin_windows

from visattn.models.vit import VisionTransformer
from visattn.recording.recorder import record, window_weights_to_dense
from visattn.recording.subject import analyze_model

PLAIN = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": (48, 80), "num_classes": 5}
WINDOWS: dict[str, Any] = {
    "depths": (2, 1), "num_heads": (2, 3), "embed_dim": 12, "window_size": (3, 5),
    "img_size": (28, 52), "num_classes": 5,
}  # fmt: skip
VIT = {"img_size": (24, 40), "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2}


def models() -> dict[str, nn.Module]:
    torch.manual_seed(7)
    torchvision: Any = TorchvisionViT(32, 8, 2, 2, 12, 20, num_classes=5)
    nn.init.normal_(torchvision.heads[0].weight)
    return {
        "timm": timm.create_model("deit_tiny_distilled_patch16_224", **PLAIN),
        "beit": timm.create_model("beit_base_patch16_224", **PLAIN),
        "swin": timm.create_model("swin_tiny_patch4_window7_224", **WINDOWS),
        "pool": timm.create_model("vit_base_patch16_siglip_224", **PLAIN),
        "torchvision": torchvision,
        "visattn": VisionTransformer(("a", "b"), **VIT),
        "visattn sequence pool": VisionTransformer(("a", "b"), global_pool="sequence", **VIT),
    }


@pytest.mark.parametrize("name", models())
def test_scores_do_not_change_and_every_weight_has_a_gradient(name: str) -> None:
    model = models()[name].eval()
    subject = analyze_model(model)
    x = torch.randn(2, 3, *subject.info.input_size, generator=torch.Generator().manual_seed(3))
    before = subject.scores(x)
    with record(model, differentiable=True) as recording:
        after = subject.scores(x)
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad(after.square().sum() + after.sum(), recording.weights)
    assert len(gradients) == len(subject.info.attention_layers)
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients)
    assert torch.equal(subject.scores(x), before)


def test_gradients_equal_those_of_eager_timm_attention() -> None:
    model: Any = models()["timm"].eval()
    x = torch.randn(2, 3, 48, 80, generator=torch.Generator().manual_seed(3))
    with record(model, differentiable=True) as recording:
        gradients = torch.autograd.grad(model(x)[:, 2].sum(), recording.weights)
    eager_weights: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, out: eager_weights.append(out))
    expected = torch.autograd.grad(model(x)[:, 2].sum(), eager_weights)
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-4)


def test_gradients_of_dense_window_weights_equal_those_inside_windows() -> None:
    model: Any = models()["swin"].eval()
    x = torch.randn(2, 3, 28, 52, generator=torch.Generator().manual_seed(3))
    with record(model, differentiable=True) as recording:
        gradients = torch.autograd.grad(model(x)[:, 2].sum(), recording.weights)
    eager_weights: list[Tensor] = []
    layers = analyze_model(model).info.attention_layers
    for layer in layers:
        model.get_submodule(layer.site).attn_drop.register_forward_hook(
            lambda _, __, out: eager_weights.append(out)
        )
    inside = torch.autograd.grad(model(x)[:, 2].sum(), eager_weights)
    shifts = [(0, 0), (1, 2), (0, 0)]
    for layer, shift, a, b in zip(layers, shifts, gradients, inside, strict=True):
        indices = swin_windows(layer.grid, (3, 5), shift)
        by_window = b.unflatten(0, (2, -1)).transpose(1, 2)
        expected = window_weights_to_dense(by_window, indices, layer.grid[0] * layer.grid[1])
        torch.testing.assert_close(a * (expected != 0), expected, atol=1e-7, rtol=1e-4)


def test_single_rows_are_not_differentiable() -> None:
    model = models()["visattn"]
    selections: list[dict[str, Any]] = [{"queries": "class"}, {"heads": [0]}]
    for selection in selections:
        error = pytest.raises(ValueError, match="differentiable=True requires all")
        with error, record(model, differentiable=True, **selection):
            pass
