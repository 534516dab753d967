"""Maps of models with gradient checkpointing equal those without it."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
import transformers
from host_models import image, residual_net
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import visattn as va
from visattn.attribution.explained_model import analyze_model
from visattn.attribution.methods import METHODS, supported_methods
from visattn.attribution.targets import resolve_target
from visattn.recording.frozen import without_checkpointing
from visattn.recording.recorder import record

SHORT: dict[str, dict[str, Any]] = {"rise": {"num_masks": 3}, "smoothgrad": {"num_samples": 2}}


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        return x + scaled_dot_product_attention(4 * q, k, v).transpose(1, 2).flatten(2)


class Own(nn.Module):
    """A hybrid that calls `torch.utils.checkpoint` in its forward pass.

    Args:
        use_reentrant: As in torch; without checkpointing if None.
    """

    def __init__(self, use_reentrant: bool | None) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 8, 8), nn.ReLU())
        self.blocks = nn.Sequential(Attention(12), Attention(12))
        self.fc, self.reentrant = nn.Linear(12, 5), use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.fc(self.blocks(self.stem(x).flatten(2).mT).mean(1))
        tokens: Any = checkpoint(self.stem, x, use_reentrant=self.reentrant)
        tokens = tokens.flatten(2).mT
        tokens = checkpoint_sequential(self.blocks, 2, tokens, use_reentrant=self.reentrant)
        return self.fc(tokens.mean(1))


def timm_model(name: str, *, enabled: bool) -> Any:
    model: Any = timm.create_model(name, num_classes=5, img_size=64) if "vit" in name else None
    model = model or timm.create_model(name, num_classes=5)
    model.set_grad_checkpointing(enabled)
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    **{
        name: (partial(timm_model, name, enabled=False), partial(timm_model, name, enabled=True))
        for name in ("test_vit", "test_resnet")
    },
    "reentrant": (lambda: Own(None), lambda: Own(use_reentrant=True)),
    "not reentrant": (lambda: Own(None), lambda: Own(use_reentrant=False)),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_methods_give_the_same_maps_as_without_checkpointing(name: str) -> None:
    explained: list[Any] = []
    for make in MODELS[name]:
        torch.manual_seed(5)
        explained.append(analyze_model(make().train(), 64))
    plain, checkpointed = explained
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    methods = supported_methods(plain)
    assert supported_methods(checkpointed) == methods
    assert {"gradcam", "integrated_gradients"} < set(methods)
    assert ("relevance" in methods) == (name != "test_resnet")
    assert plain.info.feature_layers == checkpointed.info.feature_layers
    for method in methods:
        values = [
            METHODS[method].function(each, x, resolve_target([1, 3], each), **SHORT.get(method, {}))
            for each in explained
        ]
        torch.testing.assert_close(values[1], values[0], atol=1e-6, rtol=1e-4, msg=method)


def test_blocks_and_attention_are_recorded_once_also_around_the_backward_pass() -> None:
    cnn, x = residual_net(checkpointed=True), image()
    va.insert(cnn, "cbam", position="residual", example=x, reduction=2)
    sites = [f"{n}.bn2.visattn.cbam.{tap}_tap" for n in (1, 3) for tap in ("channel", "spatial")]
    with record(cnn) as recording:
        cnn(x).sum().backward()
    assert [each.site for each in recording.maps] == sites
    options: dict[str, Any] = {
        "image_size": 24, "patch_size": 8, "hidden_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 16, "num_labels": 3,
    }  # fmt: skip
    config = transformers.ViTConfig(**options)
    vit: Any = transformers.ViTForImageClassification(config).train()
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


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_model_checkpoints_again_afterwards(use_reentrant: bool) -> None:
    module, calls = nn.Linear(3, 3), []
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    x = torch.randn(2, 3, requires_grad=True)

    def runs() -> int:
        calls.clear()
        output: Any = checkpoint(module, x, use_reentrant=use_reentrant)
        output.exp().sum().backward()
        return len(calls)

    outer, inner = without_checkpointing(module), without_checkpointing(module)
    outer.__enter__()
    inner.__enter__()
    assert runs() == 1
    outer.__exit__(None, None, None)  # another thread may leave first
    assert runs() == 1
    inner.__exit__(None, None, None)
    assert runs() == 2
    with pytest.raises(RuntimeError, match="test error"), without_checkpointing(module):
        raise RuntimeError("test error")
    assert runs() == 2


def test_flags_are_restored() -> None:
    model: Any = timm_model("test_resnet", enabled=True)
    model.layer1.grad_checkpointing = False  # of a user
    before = copy.deepcopy([vars(module).get("grad_checkpointing") for module in model.modules()])
    assert True in before
    with without_checkpointing(model):
        assert not any(vars(module).get("grad_checkpointing") for module in model.modules())
    assert [vars(module).get("grad_checkpointing") for module in model.modules()] == before
