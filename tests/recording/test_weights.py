"""Weights of timm, torchvision, transformers and visattn: exact, placed, with exact gradients."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import timm
import torch
import transformers
from image_text_models import PLAIN, hugging_face_vit
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.swin_transformer import SwinTransformer as TorchvisionSwin
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT
from windows import swin_windows

from visattn.models.vit import VisionTransformer
from visattn.recording import attention_call
from visattn.recording.recorder import record, window_weights_to_dense
from visattn.recording.subject import analyze_model

SIZED: dict[str, Any] = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": (48, 80)}
SWIN: dict[str, Any] = {
    "depths": (2, 1), "num_heads": (2, 3), "embed_dim": 12, "window_size": (3, 5),
}  # fmt: skip
WHOLE, PADDED = SWIN | {"img_size": (24, 40)}, SWIN | {"img_size": (28, 52)}
SMALL: dict[str, Any] = {**PLAIN, "image_size": (24, 40), "num_labels": 5}
HF_SWIN: dict[str, Any] = {
    "num_labels": 5, "image_size": 40, "patch_size": 4, "embed_dim": 12, "depths": [2, 1],
    "num_heads": [2, 3], "window_size": 5,
}  # fmt: skip
OURS: dict[str, Any] = {
    "img_size": (24, 40), "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 2,
}  # fmt: skip


def of_timm(name: str, **options: Any) -> Any:
    model: Any = timm.create_model(name, num_classes=5, **options)
    for parameter, weight in model.named_parameters():
        if "relative_position_bias" in parameter or "norm1.w" in parameter:  # zeros in Swin V2
            nn.init.normal_(weight)
    return model


def of_torchvision() -> Any:
    model: Any = TorchvisionViT(32, 8, 2, 2, 12, 20, num_classes=5)
    nn.init.normal_(model.heads[0].weight)
    return model


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, int], tuple[str, ...]]] = {
    "vit": (lambda: of_timm("vit_tiny_patch16_224", **SIZED), (3, 5), ("class",)),
    "distilled": (lambda: of_timm("deit_tiny_distilled_patch16_224", **SIZED), (3, 5),
        ("class", "distillation")),
    "register": (lambda: of_timm("vit_wee_patch16_reg1_gap_256", **SIZED), (3, 5), ("register",)),
    "mean": (lambda: of_timm("vit_base_patch16_siglip_gap_224", **SIZED), (3, 5), ()),
    "pool": (lambda: of_timm("vit_base_patch16_siglip_224", **SIZED), (3, 5), ()),
    "dinov2": (lambda: of_timm("vit_small_patch14_reg4_dinov2", **SIZED | {"img_size": (84, 140)}),
        (6, 10), ("class", *["register"] * 4)),
    "eva02": (lambda: of_timm("eva02_tiny_patch14_224", **SIZED | {"img_size": (42, 70)}), (3, 5),
        ("class",)),
    "beit": (lambda: of_timm("beit_base_patch16_224", **SIZED), (3, 5), ("class",)),
    "swin": (lambda: of_timm("swin_tiny_patch4_window7_224", **WHOLE), (6, 10), ()),
    "swin padded": (lambda: of_timm("swin_tiny_patch4_window7_224", **PADDED), (7, 13), ()),
    "swinv2": (lambda: of_timm("swinv2_tiny_window8_256", **WHOLE), (6, 10), ()),
    "torchvision": (of_torchvision, (4, 4), ("class",)),
    "HF vit": (lambda: hugging_face_vit(image_size=(24, 40)), (3, 5), ("class",)),
    "HF deit": (lambda: transformers.DeiTForImageClassificationWithTeacher(
        transformers.DeiTConfig(**SMALL)), (3, 5), ("class", "distillation")),
    "HF dinov2": (lambda: transformers.Dinov2ForImageClassification(
        transformers.Dinov2Config(**{**SMALL, "image_size": 32})), (4, 4), ("class",)),
    "HF swin": (lambda: transformers.SwinForImageClassification(
        transformers.SwinConfig(**HF_SWIN)), (10, 10), ()),
    "ours": (lambda: VisionTransformer("abcde", **OURS), (3, 5), ("class",)),
    "sequence pool": (lambda: VisionTransformer("abcde", global_pool="sequence", **OURS), (3, 5),
        ()),
}  # fmt: skip


@contextmanager
def eager(model: Any) -> Iterator[list[Tensor]]:
    """Give the weights that the library itself computes; [] where it never holds them."""
    kept: list[Tensor] = []
    hooks: list[Any] = []

    def ask(_: Any, args: Any, options: Any) -> Any:
        return args, {**options, "need_weights": True, "average_attn_weights": False}

    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            hooks.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            hooks.append(module.register_forward_hook(lambda _, __, out: kept.append(out[1])))
        elif isinstance(getattr(module, "attn_drop", None), nn.Module):
            vars(module)["fused_attn"] = False
            hook = module.attn_drop.register_forward_hook(lambda _, __, out: kept.append(out))
            hooks.append(hook)
    if isinstance(model, transformers.PreTrainedModel):
        model.set_attn_implementation("eager")
        model.config.output_attentions = True
        hooks.append(model.register_forward_hook(lambda _, __, out: kept.extend(out.attentions)))
    yield kept
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_gradients_are_those_of_the_library(name: str) -> None:
    build, grid, prefix_tokens = MODELS[name]
    torch.manual_seed(7)
    model = build().eval()
    subject = analyze_model(model)
    layers, num_layers = subject.info.attention_layers, 3 if "swin" in name or "pool" in name else 2
    size = len(subject.info.mean), *subject.info.input_size
    x = torch.randn(2, *size, generator=torch.Generator().manual_seed(11))
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            before = subject.scores(x)
            with record(subject if grad else model) as recording:
                assert torch.equal(subject.scores(x), before)
    assert len(recording.maps) == len(layers) == num_layers
    assert not recording.unsupported
    first, tokens = recording.maps[0], len(prefix_tokens) + grid[0] * grid[1]
    assert first.values.shape == (2, 2, tokens, *grid)
    assert (first.info.layer, first.info.call, first.kind) == (0, 0, "tokens")
    for item, weights in zip(recording.maps, recording.weights, strict=True):
        if name != "swin padded":  # slots without a cell hold a share
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        placed = weights[..., -item.values.shape[-2:].numel() :]
        torch.testing.assert_close(item.values.flatten(-2), placed)
        assert not weights.requires_grad
        assert (item.info.more.get("deviation") or 0) <= 2e-6
    assert first.info.prefix_tokens == prefix_tokens
    with record(subject, differentiable=True) as differentiable:
        after = subject.scores(x)
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)
    total = after.square().sum() + after.sum()
    gradients = torch.autograd.grad(total, differentiable.weights)
    assert all(float(gradient.abs().max()) > 0 for gradient in gradients)
    assert torch.equal(subject.scores(x), before)
    with eager(model) as theirs:
        scores = subject.scores(x)
    if not theirs:
        assert name in ("ours", "sequence pool")  # whose laws are in tests/models
        return
    for weights, own in zip(recording.weights, theirs, strict=False):
        if "swin" not in name:
            torch.testing.assert_close(weights, own.view_as(weights), atol=1e-6, rtol=0)
    if name in ("torchvision", "HF swin"):  # whose outputs are copies, or by windows
        return
    expected = torch.autograd.grad(scores.square().sum() + scores.sum(), theirs)
    for index, (layer, gradient, slope) in enumerate(
        zip(layers, gradients, expected, strict=False)
    ):
        if "swin" in name:
            windows = swin_windows(layer.grid, (3, 5), (1, 2) if index == 1 else (0, 0))
            by_window = slope.unflatten(0, (2, -1)).transpose(1, 2)
            slope = window_weights_to_dense(by_window, windows, layer.grid[0] * layer.grid[1])
            gradient = gradient * (slope != 0)
        torch.testing.assert_close(gradient, slope.view_as(gradient), atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("options", [WHOLE, PADDED], ids=["whole", "padded"])
def test_dense_window_weights_times_values_equal_the_output(options: dict[str, Any]) -> None:
    torch.manual_seed(7)
    size = options["img_size"]
    model: Any = TorchvisionSwin([4, 4], 12, [2, 1], [2, 3], [3, 5], num_classes=5).eval()
    blocks = [block for part in (1, 3) for block in model.features[part]]
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for block in blocks:
        nn.init.normal_(block.attn.qkv.bias)
        nn.init.normal_(block.attn.relative_position_bias_table)
        block.norm1.register_forward_hook(lambda _, __, out: inputs.append(out))
        block.attn.register_forward_hook(lambda _, __, out: outputs.append(out))
    subject = analyze_model(model, size)
    inputs.clear()
    outputs.clear()
    with torch.no_grad(), record(subject) as recording:
        model(torch.randn(2, 3, *size))
    for block, x, out, weights in zip(blocks, inputs, outputs, recording.weights, strict=True):
        heads = weights.shape[1]
        values = block.attn.qkv(x.flatten(1, 2)).unflatten(-1, (3, heads, -1))[:, :, 2]
        empty = block.attn.qkv.bias.unflatten(0, (3, heads, -1))[2]  # the value of an empty slot
        missing = 1 - weights.sum(-1, keepdim=True)
        result = weights @ values.transpose(1, 2) + missing * empty[:, None]
        expected = block.attn.proj(result.transpose(1, 2).flatten(2))
        torch.testing.assert_close(expected, out.flatten(1, 2), atol=2e-6, rtol=1e-5)


class Masked(nn.Module):
    """Multi-head attention over a grid with key padding and attention masks."""

    def __init__(self, *, per_head: bool = False, width: int = 12, **options: bool) -> None:
        super().__init__()
        self.per_head, self.extra = per_head, width - 12
        self.stem = nn.Conv2d(3, 12, 4, 4)
        self.attend = nn.MultiheadAttention(12, 3, kdim=width, vdim=width, **options)
        self.weights: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).mT
        if not self.attend.batch_first:
            tokens = tokens.transpose(0, 1)
        hidden = torch.arange(15) % 7 == 3
        shape = (3 * len(x), 15, 15) if self.per_head else (15, 15)
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.2
        mask &= ~torch.eye(15, dtype=torch.bool)
        keys = F.pad(tokens, (0, self.extra), value=1.0)
        output, weights = self.attend(
            tokens, keys, keys, key_padding_mask=hidden.expand(len(x), -1),
            attn_mask=mask, average_attn_weights=False,
        )  # fmt: skip
        self.weights.append(weights)
        return output.mean(1 if self.attend.batch_first else 0)


def test_masks_of_multi_head_attention_are_applied() -> None:
    cases: tuple[dict[str, Any], ...] = (
        {"batch_first": False},
        {"batch_first": True, "width": 13},
        {"batch_first": True, "per_head": True, "bias": False},
    )
    for options in cases:
        torch.manual_seed(3)
        model = Masked(**options).eval()
        with record(model) as recording:
            model(torch.randn(2, 3, 12, 20))
        torch.testing.assert_close(recording.weights[0], model.weights[-1], atol=1e-6, rtol=0)
        assert recording.maps[0].site == "attend"


def test_the_model_is_restored_after_an_error_and_nothing_is_kept() -> None:
    torch.manual_seed(3)
    model, x = Masked(batch_first=True), torch.randn(1, 3, 12, 20)
    with pytest.raises(RuntimeError, match="test error"), record(model):
        raise RuntimeError("test error")
    with pytest.raises(RuntimeError, match="expected input"), record(model):
        model(torch.randn(1, 5, 12, 20))
    num_objects = 0
    for number in range(40):
        with record(model, queries=[0]) as recording:
            model(x)
        assert recording.weights[0].shape == (1, 3, 1, 15)
        model.weights.clear()
        if number == 9:
            gc.collect()
            num_objects = len(gc.get_objects())
    gc.collect()
    assert len(gc.get_objects()) - num_objects < 30  # less than one per call
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    assert model.training
    assert torch._C._len_torch_function_stack() == 0


def test_only_selected_rows_layers_and_heads_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    model, x = MODELS["distilled"][0]().eval(), torch.randn(3, 3, 48, 80)
    with record(model) as recording:
        model(x)
    shapes: list[torch.Size] = []
    computed = attention_call.dot_product_attention_weights

    def spy(*args: Any, **options: Any) -> Tensor:
        shapes.append((weights := computed(*args, **options)).shape)
        return weights

    monkeypatch.setattr(attention_call, "dot_product_attention_weights", spy)
    for queries, rows in {"class": [0], "distillation": [1], "patches": range(2, 17)}.items():
        with record(model, queries=queries, layers=-1, heads=[1]) as selected:
            model(x)
        expected = recording.weights[1][:, [1]][:, :, list(rows)]
        torch.testing.assert_close(selected.weights[0], expected, atol=1e-7, rtol=0)
        assert [item.site for item in selected.maps] == ["blocks.1.attn"]
    assert [shape[1:3] for shape in shapes] == [(1, 1), (1, 1), (1, 15)]
    for layers in ("blocks.0*", ["blocks.0.attn"], [0]):
        with record(model, layers=layers) as selected:
            model.forward_features(x)  # a part of the model
        assert [item.info.layer for item in selected.maps] == [0]
        assert torch.equal(selected.weights[0], recording.weights[0])
