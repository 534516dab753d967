"""Weights in the graph: the model computes with them, and their gradients are the true ones."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT

from visattn.attribution.explained_model import subject_of
from visattn.functional.attention.window import filled_windows, unrolled_windows
from visattn.models.swin.hierarchical import HierarchicalTransformer
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.recording.recorder import record

PLAIN = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": (48, 80), "num_classes": 5}
WINDOWS: dict[str, Any] = {
    "depths": (2, 1), "num_heads": (2, 3), "embed_dim": 12, "window_size": (3, 5),
    "img_size": (28, 52), "num_classes": 5,
}  # fmt: skip
OURS = {"size": (24, 40), "patch": 8, "width": 12, "depth": 2, "heads": 2}


def models() -> dict[str, nn.Module]:
    torch.manual_seed(7)
    torchvision: Any = TorchvisionViT(32, 8, 2, 2, 12, 20, num_classes=5)
    nn.init.normal_(torchvision.heads[0].weight)
    hierarchy = HierarchicalTransformer(
        ("a", "b"), size=(28, 52), patch=4, width=12, depths=(2, 1), heads=(2, 3), window=(3, 5)
    )
    return {
        "timm": timm.create_model("deit_tiny_distilled_patch16_224", **PLAIN),
        "beit": timm.create_model("beit_base_patch16_224", **PLAIN),
        "swin": timm.create_model("swin_tiny_patch4_window7_224", **WINDOWS),
        "pool": timm.create_model("vit_base_patch16_siglip_224", **PLAIN),
        "torchvision": torchvision,
        "ours": VisionTransformer(("a", "b"), registers=2, **OURS),
        "our windows": VisionTransformer(("a", "b"), attend="shifted", extent=(2, 3), **OURS),
        "our pool": VisionTransformer(("a", "b"), pool="attention", **OURS),
        "our sequence": VisionTransformer(("a", "b"), pool="sequence", **OURS),
        "our hierarchy": hierarchy,
    }


@pytest.mark.parametrize("name", models())
def test_scores_stay_and_every_weight_has_a_gradient(name: str) -> None:
    model = models()[name].eval()
    subject = subject_of(model)
    x = torch.randn(2, 3, *subject.card.size, generator=torch.Generator().manual_seed(3))
    before = subject.scores(x)
    with record(model, differentiable=True) as seen:
        after = subject.scores(x)
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad(after.square().sum() + after.sum(), seen.weights)
    assert len(gradients) == len(subject.card.layers)
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients)
    assert torch.equal(subject.scores(x), before)


def test_gradients_are_those_of_the_weights_that_timm_computes() -> None:
    model: Any = models()["timm"].eval()
    x = torch.randn(2, 3, 48, 80, generator=torch.Generator().manual_seed(3))
    with record(model, differentiable=True) as seen:
        found = torch.autograd.grad(model(x)[:, 2].sum(), seen.weights)
    caught: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, __, out: caught.append(out))
    expected = torch.autograd.grad(model(x)[:, 2].sum(), caught)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-4)


def test_gradients_of_unrolled_windows_are_those_inside_the_windows() -> None:
    model: Any = models()["swin"].eval()
    x = torch.randn(2, 3, 28, 52, generator=torch.Generator().manual_seed(3))
    with record(model, differentiable=True) as seen:
        found = torch.autograd.grad(model(x)[:, 2].sum(), seen.weights)
    caught: list[Tensor] = []
    layers = subject_of(model).card.layers
    for layer in layers:
        model.get_submodule(layer.site).attn_drop.register_forward_hook(
            lambda _, __, out: caught.append(out)
        )
    inside = torch.autograd.grad(model(x)[:, 2].sum(), caught)
    for layer, a, b in zip(layers, found, inside, strict=True):
        places, _ = filled_windows(layer.grid, (3, 5), layer.shift)
        of_windows = b.unflatten(0, (2, -1)).transpose(1, 2)
        expected = unrolled_windows(of_windows, places, layer.grid[0] * layer.grid[1])
        torch.testing.assert_close(a * (expected != 0), expected, atol=1e-7, rtol=1e-4)


def test_a_layer_whose_gradient_is_cut_is_the_only_one_that_loses_it() -> None:
    model = models()["ours"].eval()
    subject = subject_of(model)
    x = torch.randn(1, 3, *subject.card.size)
    with record(model, differentiable=True) as seen:
        scores = subject.scores(x)
    first, last = torch.autograd.grad(scores[:, 0].sum(), seen.weights)
    with record(model, differentiable=True, layers=-1) as alone:
        scores = subject.scores(x)
    [only] = torch.autograd.grad(scores[:, 0].sum(), alone.weights)
    torch.testing.assert_close(only, last)
    assert first.shape == last.shape


def test_single_rows_cannot_be_computed_with() -> None:
    model = models()["ours"]
    several: list[dict[str, Any]] = [{"queries": "class"}, {"heads": [0]}]
    for wrong in several:
        whole = pytest.raises(ValueError, match="differentiable=True needs queries='all'")
        with whole, record(model, differentiable=True, **wrong):
            pass


def test_left_out_patches_cannot_be_computed_with() -> None:
    model = VisionTransformer(("a", "b"), patch_drop=0.5, **OURS).train()
    x = torch.zeros(1, 3, 24, 40, dtype=torch.uint8)
    left_out = pytest.raises(ValueError, match="some were left out")
    with left_out, record(model, differentiable=True):
        model(x)


def test_other_listeners_still_get_the_rows_they_want() -> None:
    model = models()["ours"].eval()
    subject = subject_of(model)
    x = torch.randn(1, 3, *subject.card.size)
    with record(model, differentiable=True) as woven, record(model, queries="class") as some:
        subject.scores(x)
    assert torch.equal(some.weights[0], woven.weights[0][:, :, :1])
    assert not some.weights[0].requires_grad
