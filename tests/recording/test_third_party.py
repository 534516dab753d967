"""Attention of other people's models: exact, in its place, and nothing else is changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision.models.swin_transformer import SwinTransformer as TorchvisionSwin

from visattn.attribution.explained_model import subject_of
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.recording import attention_call as attention_calls
from visattn.recording.recorder import record


def made(name: str, **options: Any) -> Any:
    torch.manual_seed(7)
    model: Any = timm.create_model(name, num_classes=5, **options).eval()
    for part, weight in model.named_parameters():
        if "relative_position_bias" in part:  # which begin with zeros
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
    card = subject_of(model).card
    generator = torch.Generator().manual_seed(11)
    return torch.randn(count, len(card.mean), *card.size, generator=generator)


@contextmanager
def unfused(model: nn.Module) -> Iterator[list[Tensor]]:
    """Let timm compute its weights itself, and catch what it is about to drop some of."""
    caught: list[Tensor] = []
    layers: list[Any] = [part for part in model.modules() if hasattr(part, "fused_attn")]
    kept = [layer.fused_attn for layer in layers]
    handles = []
    for layer in layers:
        layer.fused_attn = False
        handles.append(layer.attn_drop.register_forward_hook(lambda _, __, out: caught.append(out)))
    try:
        yield caught
    finally:
        for layer, fused in zip(layers, kept, strict=True):
            layer.fused_attn = fused
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", MODELS)
def test_maps_are_exact_and_the_output_stays(name: str) -> None:
    timm_name, options, grid, roles = MODELS[name]
    model = made(timm_name, **options)
    x = images(model)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            before = model(x)
            with record(model) as seen:
                assert torch.equal(model(x), before)
    first = seen.maps[0]
    tokens = len(roles) + grid[0] * grid[1]
    assert first.values.shape == (3, 2, tokens, *grid)
    assert first.made["before"] == roles
    assert (first.made["layer"], first.made["call"], first.kind) == (0, 0, "tokens")
    assert len(seen.maps) == len(subject_of(model).card.layers) == (3 if "swin" in name else 2)
    assert not seen.refused
    for one, weights in zip(seen.maps, seen.weights, strict=True):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        torch.testing.assert_close(one.values.flatten(-2), weights[..., len(roles) :])
        assert not weights.requires_grad
        assert one.made["deviation"] is None or one.made["deviation"] <= 2e-6


@pytest.mark.parametrize("name", [name for name in MODELS if "swin" not in name])
def test_fused_attention_shows_what_timm_computes_without_it(name: str) -> None:
    timm_name, options, *_ = MODELS[name]
    model = made(timm_name, **options)
    x = images(model)
    with record(model) as fused:
        model(x)
    with unfused(model) as caught, record(model) as eager:
        model(x)
    assert len(caught) == len(fused.weights) == len(eager.weights)
    for a, b, c in zip(caught, fused.weights, eager.weights, strict=True):
        torch.testing.assert_close(b, a, atol=1e-6, rtol=0)
        assert torch.equal(c, a)


@pytest.mark.parametrize("options", [WINDOWS, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", ["timm", "timm fused", "torchvision"])
def test_unrolled_windows_times_the_values_are_what_the_layer_puts_out(
    kind: str, options: dict[str, Any]
) -> None:
    if kind == "torchvision":
        model, size = torchvision_swin(), options["img_size"]
        blocks = [block for part in (1, 3) for block in model.features[part]]
    else:
        model = made("swin_tiny_patch4_window7_224", **options)
        size = options["img_size"]
        blocks = [block for stage in model.layers for block in stage.blocks]
        for block in blocks:
            block.attn.fused_attn = kind == "timm fused"
    given: list[Tensor] = []
    put_out: list[Tensor] = []
    for block in blocks:
        block.norm1.register_forward_hook(lambda _, __, out: given.append(out))
        if kind == "torchvision":
            block.attn.register_forward_hook(lambda _, __, out: put_out.append(out))
        else:
            nn.init.zeros_(block.mlp.fc2.weight)  # so that a block adds its attention and no more
            nn.init.zeros_(block.mlp.fc2.bias)
            block.register_forward_hook(lambda _, args, out: put_out.append(out - args[0]))
        nn.init.normal_(block.attn.qkv.bias)
        nn.init.normal_(block.attn.relative_position_bias_table)
    subject_of(model, size)
    given.clear()
    put_out.clear()
    with torch.no_grad(), record(model) as seen:
        model(torch.randn(2, 3, *size))
    assert len(seen.weights) == len(blocks)
    for block, x, out, weights in zip(blocks, given, put_out, seen.weights, strict=True):
        heads = weights.shape[1]
        values = block.attn.qkv(x.flatten(1, 2)).unflatten(-1, (3, heads, -1))[:, :, 2]
        empty = block.attn.qkv.bias.unflatten(0, (3, heads, -1))[2]  # the value of an empty slot
        missing = 1 - weights.sum(-1, keepdim=True)
        taken = weights @ values.transpose(1, 2) + missing * empty[:, None]
        expected = block.attn.proj(taken.transpose(1, 2).flatten(2))
        torch.testing.assert_close(expected, out.flatten(1, 2), atol=2e-6, rtol=1e-5)


def test_cards_know_windows_and_shifts() -> None:
    card = subject_of(made("swin_tiny_patch4_window7_224", **WINDOWS)).card
    assert [(one.grid, one.window, one.shift) for one in card.layers] == [
        ((6, 10), (3, 5), (0, 0)), ((6, 10), (3, 5), (1, 2)), ((3, 5), None, (0, 0))
    ]  # fmt: skip


def test_only_wanted_rows_layers_and_heads_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("deit_tiny_distilled_patch16_224", **SIZED)
    x = images(model)
    with record(model) as seen:
        model(x)
    shapes: list[torch.Size] = []
    computed = attention_calls.attention_weights

    def spied(*args: Any, **options: Any) -> Tensor:
        shapes.append((found := computed(*args, **options)).shape)
        return found

    monkeypatch.setattr(attention_calls, "attention_weights", spied)
    for queries, rows in {"class": [0], "distillation": [1], "patches": range(2, 17)}.items():
        with record(model, queries=queries, layers=-1, heads=[1]) as some:
            model(x)
        expected = seen.weights[1][:, [1]][:, :, list(rows)]
        torch.testing.assert_close(some.weights[0], expected, atol=1e-7, rtol=0)
        assert [one.site for one in some.maps] == ["blocks.1.attn"]
    assert [shape[1:3] for shape in shapes] == [(1, 1), (1, 1), (1, 15)]
    for layers in ("blocks.0*", ["blocks.0.attn"], [0]):
        with record(model, layers=layers) as some:
            model(x)
        assert [one.made["layer"] for one in some.maps] == [0]
    for wrong, said in ((2, "there are 2 sites"), ("head*", "no site is called")):
        with pytest.raises(ValueError, match=said), record(model, layers=wrong):
            model(x)
    with (
        pytest.raises(ValueError, match="no register token here"),
        record(model, queries="register"),
    ):
        model(x)


def test_parts_of_a_model_may_be_called_one_by_one() -> None:
    model = made("vit_tiny_patch16_224", **SIZED)
    x = images(model)
    with record(model) as whole:
        model(x)
    with record(model) as parts:
        model.forward_features(x)
    assert all(map(torch.equal, whole.weights, parts.weights))
    with pytest.raises(ValueError, match="no image came in before it ran"), record(model.blocks):
        model.blocks(torch.randn(1, 16, 24))


def test_taps_are_not_heard_twice() -> None:
    torch.manual_seed(5)
    ours = VisionTransformer(("a", "b"), size=(24, 40), patch=8, width=12, depth=2, heads=2)
    with record(ours) as seen:
        ours(torch.zeros(1, 3, 24, 40, dtype=torch.uint8))
    assert [one.site for one in seen.maps] == ["blocks.0.attn.tap", "blocks.1.attn.tap"]


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
REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "xcit": ("xcit_nano_12_p16_224", {**SIZED, "depth": 1, "cls_attn_layers": 1},
        "blocks.0.attn", "among channels"),
    "coat": ("coat_lite_tiny", COAT, "serial_blocks1.0.factoratt_crpe", "runs over axis 2"),
    "hiera": ("hiera_tiny_224", HIERA, "blocks.3.attn", "out of the order of their grid"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_map_is_refused_with_its_reason(name: str) -> None:
    timm_name, options, site, reason = REFUSED[name]
    model = made(timm_name, **options)
    size = options["img_size"]
    size = (size, size) if isinstance(size, int) else size
    x = torch.randn(1, 3, *size)
    assert reason in dict(subject_of(model, size).card.refused)[site]
    with pytest.raises(ValueError, match=f"{site}.*{reason}"), record(model, layers=f"{site}*"):
        model(x)


def test_a_network_without_attention_says_so() -> None:
    model = made("test_resnet")
    x = images(model, 1)
    with pytest.raises(ValueError, match="neither scaled_dot_product_attention"), record(model):
        model(x)
    with pytest.raises(ValueError, match="run it inside the with block"), record(model):
        pass
