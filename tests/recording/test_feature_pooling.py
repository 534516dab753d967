"""Features before pooling and attention tokens are located correctly, for all model families."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from location_checks import check_locations
from timm.models import model_entrypoint
from torch import Tensor, nn

from visattn.attribution.methods import METHODS, supported_methods
from visattn.recording.model_info import ModelInfo
from visattn.recording.subject import analyze_model

Built = tuple[Callable[[], Any], tuple[int, int], str, tuple[int, int]]
THIN: dict[str, Any] = {"depth": 2, "embed_dim": 24, "num_heads": 2}


def timm_model(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: timm.create_model(name, num_classes=5, **options)


MODELS: dict[str, Built] = {
    "pixels within patches": (timm_model("tnt_s_legacy_patch16_224", img_size=112, depth=2,
        embed_dim=24, inner_dim=8, num_heads_inner=2, num_heads_outer=2), (112, 112),
        "blocks.1.norm_out", (7, 7)),
    "channels": (timm_model("xcit_nano_12_p16_224", img_size=112, depth=2, embed_dim=24,
        num_heads=2),
        (112, 112), "cls_attn_blocks.1.norm1", (7, 7)),
    "mixed tokens": (timm_model("mixer_s32_224", img_size=(96, 160), mlp_ratio=(0.1, 0.5)),
        (96, 160), "norm", (3, 5)),
    "few cells": (timm_model("test_resnet"), (96, 160), "layer4", (3, 5)),
    "four cells": (timm_model("regnetx_002"), (64, 64), "s4", (2, 2)),
}  # fmt: skip


def test_the_default_layer_is_pooled_and_aligned_with_the_image() -> None:
    for name, (build, size, site, grid) in MODELS.items():
        torch.manual_seed(3)
        result = check_locations(name, build().eval(), size)
        assert result.layer == f"{site}, {grid[0]} x {grid[1]}", name
        assert result.features[0] >= 0.8 * result.features[1] > 0, result
        assert result.attention[0] >= 0.8 * result.attention[1], result


SIZES = (
    "test", "pico", "nano", "atto", "femto", "wee", "xxxs", "xxs", "xs", "xtiny", "tiny", "ti",
    "mini", "t0", "b0", "t8", "m0", "s0", "s1", "5m", "s", "small", "medium", "m", "base",
)  # fmt: skip
SMALL = {
    "byoanet": "botnet26t_256", "cait": "cait_xxs24_224", "fastvit": "fastvit_sa12",
    "metaformer": "caformer_s18",
    "vision_transformer_sam": "samvit_base_patch16_224", "edgenext": "edgenext_xx_small",
    "iformer": "iformer_t",
}  # fmt: skip
MORE = (
    "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "pit_ti_224", "vitamin_small_224",
    "eva02_tiny_patch14_224", "vit_small_patch14_reg4_dinov2", "vit_wee_patch16_reg1_gap_256",
    "vit_base_patch16_siglip_224", "vit_tiny_r_s16_p8_224", "mobilenetv4_hybrid_medium",
    "maxvit_rmlp_pico_rw_256", "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256",
    "halonet26t",
)  # fmt: skip
LARGE = {"deepseek_vit", "gemma4_vit", "qwen3_vit", "vision_transformer_sam", "hieradet_sam2"}


def family(name: str) -> str:
    """Return the file of timm that defines a model."""
    return model_entrypoint(name).__module__.rpartition(".")[2]


def zoo() -> list[str]:
    """Return a small model of each file of timm, and more of some."""
    groups: dict[str, list[str]] = {}
    for name in timm.list_models():
        groups.setdefault(family(name), []).append(name)
    small = [SMALL.get(each) or min(names, key=rank) for each, names in groups.items()]
    return sorted(name for name in {*MORE, *small} if family(name) not in LARGE)


def rank(name: str) -> tuple[int, int, str]:
    ranks = [SIZES.index(word) for word in name.split("_") if word in SIZES]
    digits = [int(digits) for digits in re.findall(r"\d{3}", name)]
    return (min(ranks, default=len(SIZES)), min(digits, default=0), name)


@pytest.mark.slow
def test_one_model_of_each_timm_family_is_aligned_with_the_image() -> None:
    results, names = [], zoo()
    for name in names:
        torch.manual_seed(0)
        options: dict[str, Any] = {"depth": 2} if family(name) == "naflexvit" else {}
        model: Any = timm.create_model(name, **options).eval()
        if not model.num_classes:  # most of timm's models come with a classifier, some without
            model.reset_classifier(5)
        results.append(check_locations(name, model))
    assert len(results) == len(names) > 90
    assert [item for item in results if item.features[0] < 0.8 * item.features[1]] == []
    assert [item for item in results if item.attention[0] < 0.8 * item.attention[1]] == []
    assert sum(item.features[1] > 0 for item in results) > 0.9 * len(names)


class HandWritten(nn.Module):
    """A transformer with prefix tokens of an unknown name, and one of several kinds of pooling."""

    def __init__(self, pooling: str, num_prefix_tokens: int = 1) -> None:
        super().__init__()
        self.pooling, self.num_prefix_tokens = pooling, num_prefix_tokens
        self.patch = nn.Conv2d(3, 12, 8, 8)
        self.start = nn.Parameter(torch.randn(1, num_prefix_tokens, 12))
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(12, 2, 20, 0.0, batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).mT
        tokens = self.blocks(torch.cat((self.start.expand(len(x), -1, -1), tokens), 1))
        if self.pooling == "mean":
            return self.head(tokens[:, self.num_prefix_tokens :].mean(1))
        return self.head(tokens[:, : 2 if self.pooling == "two" else 1].mean(1))


def test_kinds_of_prefix_tokens_are_inferred_from_their_use() -> None:
    for read_out, count, prefix_tokens, pooling in (
        ("one", 1, ("class",), "class"),
        ("one", 3, ("class", "register", "register"), "class"),
        ("two", 2, ("class", "distillation"), "distilled"),
        ("mean", 1, ("register",), "mean"),
    ):
        torch.manual_seed(5)
        info = analyze_model(HandWritten(read_out, count).eval(), (24, 40)).info
        assert [(layer.grid, layer.prefix_tokens) for layer in info.attention_layers] == [
            ((3, 5), prefix_tokens)
        ] * 2
        assert info.pooling == pooling
        last = info.feature_layers[-1]
        assert last.site == ("blocks" if read_out == "mean" else "blocks.layers.1.norm1")
        assert (last.grid, last.num_prefix_tokens) == ((3, 5), count)


class PooledKeys(nn.Module):
    """Attention whose keys are means of consecutive tokens, as many as a coarser grid has."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).mT
        keys = nn.functional.avg_pool1d(tokens.mT, 4, 4).mT
        return self.head(nn.functional.scaled_dot_product_attention(tokens, keys, keys).mean(1))


def test_keys_lie_where_their_pixels_are() -> None:
    torch.manual_seed(7)
    [layer] = analyze_model(PooledKeys().eval(), (32, 64)).info.attention_layers
    assert (layer.grid, layer.key_grid) == ((8, 16), (8, 4))  # and not 4 x 8


class Streams(nn.Module):
    """Two feature streams on different grids, pooled separately."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.fine, self.coarse = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 2, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        streams = (self.fine(x).mean((2, 3)), self.coarse(x).mean((2, 3)))
        return self.head(torch.cat(streams, 1))


class Permuted(nn.Module):
    """Features whose positions are permuted before they are pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.flatten = nn.Conv2d(3, 8, 4, 4), nn.Flatten(2)
        self.conv, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        order = torch.randperm(x[0, 0].numel(), generator=torch.Generator().manual_seed(1))
        return self.head(self.conv(self.flatten(x)[..., order].view_as(x)).mean((2, 3)))


class NoGrad(nn.Sequential):
    """A model without gradients."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x)


def info_of(model: nn.Module) -> ModelInfo:
    torch.manual_seed(2)
    return analyze_model(model.eval(), (32, 56)).info


def test_an_unknown_default_layer_has_a_reason() -> None:
    no_grad = NoGrad(nn.Conv2d(3, 8, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for model, reason in (
        (Streams(), "through several later layers (fine, coarse) that run in parallel"),
        (
            Permuted(),
            "through several later layers (conv) that run in parallel or have no",
        ),
        (no_grad, "its scores have no gradient with respect to the image"),
    ):
        subject = analyze_model(model.eval(), (32, 56))
        info = subject.info
        assert info.feature_layers == ()
        assert reason in info.features_error
        assert METHODS["gradcam"].supports(subject).startswith(info.features_error)


@pytest.mark.filterwarnings("ignore")
def test_quantized_layers_have_no_gradient() -> None:
    if torch.backends.quantized.engine == "none":
        pytest.skip("no kernels of quantized layers")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=80, **THIN).eval()
    int8 = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    explained = analyze_model(int8)
    assert "no gradient with respect to the image" in explained.info.gradient_error
    assert "input_gradient" not in supported_methods(explained)


def test_zero_initialized_heads_and_dense_scores_have_features() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    nn.init.zeros_(model[4].weight)  # pyright: ignore[reportArgumentType]
    assert info_of(model).feature_layers[-1].site == "1"
    dense = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.Upsample(scale_factor=4)
    )
    assert info_of(dense).feature_layers[-1].site == "1"
