"""Recording of timm and torchvision models: exact weights, positions, unchanged output."""

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models.swin_transformer import SwinTransformer as TorchvisionSwin

from visattn.models.vit import VisionTransformer
from visattn.recording import attention_call
from visattn.recording.recorder import record
from visattn.recording.subject import analyze_model


def create(name: str, **options: Any) -> Any:
    torch.manual_seed(7)
    model: Any = timm.create_model(name, num_classes=5, **options).eval()
    for parameter, weight in model.named_parameters():
        if "relative_position_bias" in parameter:  # initialized with zeros
            nn.init.normal_(weight)
    return model


def torchvision_swin(**options: Any) -> Any:
    torch.manual_seed(7)
    return TorchvisionSwin([4, 4], 12, [2, 1], [2, 3], [3, 5], num_classes=5, **options).eval()


SMALL = {"depth": 2, "embed_dim": 24, "num_heads": 2}
SIZED = {**SMALL, "img_size": (48, 80)}
SWIN: dict[str, Any] = {
    "depths": (2, 1),
    "num_heads": (2, 3),
    "embed_dim": 12,
    "window_size": (3, 5),
}
WINDOWS: dict[str, Any] = {**SWIN, "img_size": (24, 40)}
PADDED: dict[str, Any] = {**SWIN, "img_size": (28, 52)}
MODELS: dict[str, tuple[str, dict[str, Any], tuple[int, int], tuple[str, ...]]] = {
    "vit": ("vit_tiny_patch16_224", SIZED, (3, 5), ("class",)),
    "deit": ("deit_tiny_patch16_224", SIZED, (3, 5), ("class",)),
    "distilled": ("deit_tiny_distilled_patch16_224", SIZED, (3, 5), ("class", "distillation")),
    "register": ("vit_wee_patch16_reg1_gap_256", SIZED, (3, 5), ("register",)),
    "mean": ("vit_base_patch16_siglip_gap_224", SIZED, (3, 5), ()),
    "dinov2": ("vit_small_patch14_reg4_dinov2", {**SMALL, "img_size": (168, 280)}, (12, 20),
        ("class", *["register"] * 4)),
    "eva02": ("eva02_tiny_patch14_224", {**SMALL, "img_size": (42, 70)}, (3, 5), ("class",)),
    "beit": ("beit_base_patch16_224", SIZED, (3, 5), ("class",)),
    "swin": ("swin_tiny_patch4_window7_224", WINDOWS, (6, 10), ()),
    "swinv2": ("swinv2_tiny_window8_256", WINDOWS, (6, 10), ()),
}  # fmt: skip


def images(model: nn.Module, count: int = 3) -> Tensor:
    info = analyze_model(model).info
    generator = torch.Generator().manual_seed(11)
    return torch.randn(count, len(info.mean), *info.input_size, generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_maps_are_exact_and_the_output_does_not_change(name: str) -> None:
    timm_name, options, grid, prefix_tokens = MODELS[name]
    model = create(timm_name, **options)
    x = images(model)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            before = model(x)
            with record(model) as recording:
                assert torch.equal(model(x), before)
    first = recording.maps[0]
    tokens = len(prefix_tokens) + grid[0] * grid[1]
    assert first.values.shape == (3, 2, tokens, *grid)
    assert first.info.prefix_tokens == prefix_tokens
    assert (first.info.layer, first.info.call, first.kind) == (0, 0, "tokens")
    assert (
        len(recording.maps)
        == len(analyze_model(model).info.attention_layers)
        == (3 if "swin" in name else 2)
    )
    assert not recording.unsupported
    for item, weights in zip(recording.maps, recording.weights, strict=True):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        torch.testing.assert_close(item.values.flatten(-2), weights[..., len(prefix_tokens) :])
        assert not weights.requires_grad
        deviation = item.info.more["deviation"]
        assert deviation is None or deviation <= 2e-6


@pytest.mark.parametrize("options", [WINDOWS, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", ["timm", "timm fused", "torchvision"])
def test_dense_window_weights_times_values_equal_the_output(
    kind: str, options: dict[str, Any]
) -> None:
    if kind == "torchvision":
        model, size = torchvision_swin(), options["img_size"]
        blocks = [block for part in (1, 3) for block in model.features[part]]
    else:
        model = create("swin_tiny_patch4_window7_224", **options)
        size = options["img_size"]
        blocks = [block for stage in model.layers for block in stage.blocks]
        for block in blocks:
            block.attn.fused_attn = kind == "timm fused"
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for block in blocks:
        block.norm1.register_forward_hook(lambda _, __, out: inputs.append(out))
        if kind == "torchvision":
            block.attn.register_forward_hook(lambda _, __, out: outputs.append(out))
        else:
            nn.init.zeros_(block.mlp.fc2.weight)  # so that a block only adds its attention
            nn.init.zeros_(block.mlp.fc2.bias)
            block.register_forward_hook(lambda _, args, out: outputs.append(out - args[0]))
        nn.init.normal_(block.attn.qkv.bias)
        nn.init.normal_(block.attn.relative_position_bias_table)
    analyzed = analyze_model(model, size)
    inputs.clear()
    outputs.clear()
    with torch.no_grad(), record(analyzed) as recording:
        model(torch.randn(2, 3, *size))
    assert len(recording.weights) == len(blocks)
    for block, x, out, weights in zip(blocks, inputs, outputs, recording.weights, strict=True):
        heads = weights.shape[1]
        values = block.attn.qkv(x.flatten(1, 2)).unflatten(-1, (3, heads, -1))[:, :, 2]
        empty = block.attn.qkv.bias.unflatten(0, (3, heads, -1))[2]  # the value of an empty slot
        missing = 1 - weights.sum(-1, keepdim=True)
        result = weights @ values.transpose(1, 2) + missing * empty[:, None]
        expected = block.attn.proj(result.transpose(1, 2).flatten(2))
        torch.testing.assert_close(expected, out.flatten(1, 2), atol=2e-6, rtol=1e-5)


def test_only_selected_rows_layers_and_heads_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = create("deit_tiny_distilled_patch16_224", **SIZED)
    x = images(model)
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
            model(x)
        assert [item.info.layer for item in selected.maps] == [0]


def test_modules_of_a_model_can_be_called_separately() -> None:
    model = create("vit_tiny_patch16_224", **SIZED)
    x = images(model)
    with record(model) as whole:
        model(x)
    with record(model) as parts:
        model.forward_features(x)
    assert all(map(torch.equal, whole.weights, parts.weights))
    with (
        pytest.raises(ValueError, match="no image was passed in before it ran"),
        record(model.blocks),
    ):
        model.blocks(torch.randn(1, 16, 24))


def test_taps_are_not_recorded_twice() -> None:
    torch.manual_seed(5)
    model = VisionTransformer(
        ("a", "b"), img_size=(24, 40), patch_size=8, embed_dim=12, depth=2, num_heads=2
    )
    with record(model) as recording:
        model(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
    assert [item.site for item in recording.maps] == ["blocks.0.attn.tap", "blocks.1.attn.tap"]


COAT: dict[str, Any] = {
    "embed_dims": (16,) * 4,
    "serial_depths": (1,) * 4,
    "num_heads": 8,
    "img_size": 64,
}
HIERA: dict[str, Any] = {
    "embed_dim": 8,
    "num_heads": 1,
    "stages": (1, 1, 1, 1),
    "img_size": (64, 64),
}
UNSUPPORTED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "xcit": ("xcit_nano_12_p16_224", {**SIZED, "depth": 1, "cls_attn_layers": 1},
        "blocks.0.attn", "to channels"),
    "coat": ("coat_lite_tiny", COAT, "serial_blocks1.0.factoratt_crpe", "runs over axis 2"),
    "hiera": ("hiera_tiny_224", HIERA, "blocks.3.attn", "not in the order of their grid"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_attention_raises_an_error_with_the_reason(name: str) -> None:
    timm_name, options, site, reason = UNSUPPORTED[name]
    model = create(timm_name, **options)
    size = options["img_size"]
    size = (size, size) if isinstance(size, int) else size
    x = torch.randn(1, 3, *size)
    assert reason in dict(analyze_model(model, size).info.unsupported_layers)[site]
    with pytest.raises(ValueError, match=f"{site}.*{reason}"), record(model, layers=f"{site}*"):
        model(x)


def test_a_model_without_attention_raises_an_error() -> None:
    model = create("test_resnet")
    x = images(model, 1)
    with pytest.raises(ValueError, match="nor ran scaled_dot_product_attention"), record(model):
        model(x)
    with pytest.raises(ValueError, match="must run inside the with block"), record(model):
        pass
