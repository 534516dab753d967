"""Maps of models with gradient checkpointing equal those without it."""

from functools import partial
from typing import Any

import pytest
import timm
import torch
from host_models import image, residual_net
from image_text_models import hugging_face_vit
from torch import nn

import visattn as va
from visattn.recording.recorder import record


def timm_model(name: str, *, enabled: bool) -> Any:
    model: Any = timm.create_model(name, num_classes=5, img_size=64)
    model.set_grad_checkpointing(enabled)
    return model


def residual(*, enabled: bool) -> nn.Module:
    """Calls `torch.utils.checkpoint` in its forward pass, whatever its attributes say."""
    net: Any = residual_net(checkpointed=enabled)
    for block in net:
        if hasattr(block, "checkpointed"):
            block.checkpointed = int(enabled)
    return nn.Sequential(*net[:-1], nn.Linear(24, 5))


@pytest.mark.parametrize("make", [partial(timm_model, "test_vit"), residual])
def test_methods_give_the_same_maps_as_without_checkpointing(make: Any) -> None:
    explainers: list[va.Explainer] = []
    for enabled in (False, True):
        torch.manual_seed(5)
        explainers.append(va.Explainer(make(enabled=enabled).train(), input_size=64))
    plain, checkpointed = explainers
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    methods = {"gradcam", "ablationcam", "eigencam", "input_gradient", "relevance", "legrad",
               "fullgrad"} & {*plain.methods()}  # fmt: skip
    assert len(methods) > 3
    assert plain.methods() == checkpointed.methods()
    maps = [
        [heatmap.values for [heatmap] in each.explain(x, method, [[1], [3]])]
        for method in methods
        for each in explainers
    ]
    for right, other in zip(maps[::2], maps[1::2], strict=True):
        torch.testing.assert_close(other, right, atol=1e-6, rtol=1e-4)


def test_blocks_and_attention_are_recorded_once_also_around_the_backward_pass() -> None:
    cnn, x = residual_net(checkpointed=True), image()
    va.insert(cnn, "cbam", position="residual", example=x, reduction=2)
    sites = [f"{n}.bn2.visattn.cbam.{tap}_tap" for n in (1, 3) for tap in ("channel", "spatial")]
    with record(cnn) as recording:
        cnn(x).sum().backward()
    assert [each.site for each in recording.maps] == sites
    vit = hugging_face_vit(image_size=24).train()
    vit.activation_checkpointing_enable()
    x = torch.randn(2, 3, 24, 24)
    with record(vit, differentiable=True) as recording:
        score = vit(x).logits[:, 1].sum()
    gradients = torch.autograd.grad(score, recording.weights)
    vit.activation_checkpointing_disable()
    with record(vit, differentiable=True) as plain:
        score = vit(x).logits[:, 1].sum()
    for gradient, right in zip(gradients, torch.autograd.grad(score, plain.weights), strict=True):
        torch.testing.assert_close(gradient, right)
