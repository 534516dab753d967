"""Default layers of gradient maps and tokens of attention lie where changed pixels say they do."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import transformers
from tool_modules import TOOLS, tool_module
from torch import Tensor, nn

from visattn.attribution.explained_model import subject_of
from visattn.attribution.methods import METHODS, refusal_of
from visattn.recording.model_info import ModelInfo
from visattn.recording.recorder import record

Built = tuple[Callable[[], Any], tuple[int, int], str, tuple[int, int]]
THIN: dict[str, Any] = {"depth": 2, "embed_dim": 24, "num_heads": 2}
PLAIN: dict[str, Any] = {
    "image_size": (48, 80), "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip


def of_timm(name: str, **options: Any) -> Callable[[], Any]:
    return lambda: timm.create_model(name, num_classes=5, **options)


STAGES: dict[str, Any] = {"depths": (1, 1), "num_heads": (2, 3), "embed_dim": 12}
MODELS: dict[str, Built] = {
    "class token": (of_timm("vit_tiny_patch16_224", img_size=(48, 80), **THIN), (48, 80),
        "blocks.1.norm1", (3, 5)),
    "mean": (of_timm("vit_base_patch16_siglip_gap_224", img_size=(48, 80), **THIN), (48, 80),
        "norm", (3, 5)),
    "attention pool": (of_timm("vit_base_patch16_siglip_224", img_size=(48, 80), **THIN), (48, 80),
        "norm", (3, 5)),
    "windows": (of_timm("swin_tiny_patch4_window7_224", img_size=(56, 88), window_size=3, **STAGES),
        (56, 88), "norm", (7, 11)),
    "pixels within patches": (of_timm("tnt_s_legacy_patch16_224", img_size=112, depth=2,
        embed_dim=24, inner_dim=8, num_heads_inner=2, num_heads_outer=2), (112, 112),
        "blocks.1.norm_out", (7, 7)),
    "channels": (of_timm("xcit_nano_12_p16_224", img_size=112, depth=2, embed_dim=24, num_heads=2),
        (112, 112), "cls_attn_blocks.1.norm1", (7, 7)),
    "mixed tokens": (of_timm("mixer_s32_224", img_size=(96, 160)), (96, 160), "norm", (3, 5)),
    "mask units": (of_timm("hiera_tiny_224", img_size=(224, 224), embed_dim=16, num_heads=1,
        stages=(1, 1, 2, 1)), (224, 224), "blocks.4", (7, 7)),
    "shared modules": (of_timm("coat_lite_tiny", img_size=224, embed_dims=(16,) * 4,
        serial_depths=(1, 1, 1, 2)), (224, 224), "serial_blocks4.1.norm1", (7, 7)),
    "gates": (of_timm("ghostnetv3_050"), (224, 224), "blocks", (7, 7)),
    "few cells": (of_timm("test_resnet"), (96, 160), "layer4", (3, 5)),
    "Hugging Face": (lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(**PLAIN)), (48, 80), "vit.layers.1.layernorm_before", (6, 10)),
}  # fmt: skip


def test_the_default_layer_is_what_is_pooled_and_lies_where_it_is_said_to() -> None:
    marked = tool_module("marked_blocks").marked
    for name, (build, size, site, grid) in MODELS.items():
        torch.manual_seed(3)
        model = build().eval()
        feature = subject_of(model, size).card.features[-1]
        assert (name, feature.site, feature.grid) == (name, site, grid)
        found = marked(name, model, size)
        assert found.features[0] >= 0.8 * found.features[1] > 0, found
        assert found.attention[0] >= 0.8 * found.attention[1], found


@pytest.mark.slow
def test_one_model_of_each_family_of_timm_answers_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(TOOLS)
    tool = tool_module("record_families")
    large = {"deepseek_vit", "gemma4_vit", "qwen3_vit", "vision_transformer_sam", "hieradet_sam2"}
    names = [one for one in tool.families(every=True) if one[0] not in large]
    found = list(tool.marks(names))
    assert len(found) == len(names) > 90
    assert [one for one in found if one.features[0] < 0.8 * one.features[1]] == []
    # Attention that halves LeViT's grid has no way around it: with random weights every block of
    # pixels shows at all of its queries alike, so that single blocks cannot be told behind it.
    missed = [one.name for one in found if one.attention[0] < 0.8 * one.attention[1]]
    assert set(missed) <= {"levit_128"}
    assert sum(one.features[1] > 0 for one in found) > 0.9 * len(names)


class HandWritten(nn.Module):
    """A transformer whose extra tokens have a name of their own, read out in one of some ways."""

    def __init__(self, read: str, extra: int = 1) -> None:
        super().__init__()
        self.read, self.extra = read, extra
        self.patch = nn.Conv2d(3, 12, 8, 8)
        self.start = nn.Parameter(torch.randn(1, extra, 12))
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(12, 2, 20, 0.0, batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).mT
        tokens = self.blocks(torch.cat((self.start.expand(len(x), -1, -1), tokens), 1))
        if self.read == "mean":
            return self.head(tokens[:, self.extra :].mean(1))
        return self.head(tokens[:, : 2 if self.read == "two" else 1].mean(1))


def test_tokens_before_the_grid_are_known_by_what_becomes_of_them() -> None:
    for read, extra, roles, pooling in (
        ("one", 1, ("class",), "class"),
        ("one", 3, ("class", "register", "register"), "class"),
        ("two", 2, ("class", "distillation"), "distilled"),
        ("mean", 1, ("register",), "mean"),
    ):
        torch.manual_seed(5)
        card = subject_of(HandWritten(read, extra).eval(), (24, 40)).card
        assert [(one.grid, one.roles) for one in card.layers] == [((3, 5), roles)] * 2
        assert card.pooling == pooling
        last = card.features[-1]
        assert last.site == ("blocks" if read == "mean" else "blocks.layers.1.norm1")
        assert (last.grid, last.before) == ((3, 5), extra)


class Runs(nn.Module):
    """Attention whose keys are means over runs of tokens, which are as many as a grid has."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).mT
        keys = nn.functional.avg_pool1d(tokens.mT, 4, 4).mT
        return self.head(nn.functional.scaled_dot_product_attention(tokens, keys, keys).mean(1))


def mae() -> nn.Module:
    return transformers.ViTMAEModel(transformers.ViTMAEConfig(**PLAIN, mask_ratio=0.0))


def dropping() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=80, patch_drop_rate=0.3, **THIN)


@pytest.mark.parametrize(
    ("build", "size", "reason"),
    [
        (mae, (48, 80), "blocks of pixels that are changed show at other tokens"),
        (Runs, (32, 64), "blocks of pixels that are changed show at other tokens"),
        (lambda: dropping().train(), (80, 80), "18 tokens came and not 26, as when it was read"),
    ],
    ids=["shuffled", "runs", "dropped"],
)
def test_attention_of_tokens_that_lie_elsewhere_is_refused(
    build: Callable[[], nn.Module], size: tuple[int, int], reason: str
) -> None:
    torch.manual_seed(7)
    model = build()
    with pytest.raises(ValueError, match=reason), record(model):
        model(torch.randn(2, 3, *size))


class Streams(nn.Module):
    """Two streams of features on grids of their own, pooled one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.fine, self.coarse = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 2, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        streams = (self.fine(x).mean((2, 3)), self.coarse(x).mean((2, 3)))
        return self.head(torch.cat(streams, 1))


class Folded(nn.Module):
    """Features whose places are out of their order when they are pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.turn = nn.Conv2d(3, 8, 4, 4), nn.Flatten(2)
        self.conv, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        order = torch.randperm(x[0, 0].numel(), generator=torch.Generator().manual_seed(1))
        return self.head(self.conv(self.turn(x)[..., order].view_as(x)).mean((2, 3)))


class Blind(nn.Sequential):
    """A model that takes no gradient."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x)


def card_of(model: nn.Module) -> ModelInfo:
    torch.manual_seed(2)
    return subject_of(model.eval(), (32, 56)).card


def test_where_the_default_layer_cannot_be_said_it_is_refused_with_the_reason() -> None:
    blind = Blind(nn.Conv2d(3, 8, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for model, reason in (
        (Streams(), "several streams of features go on side by side before they are pooled"),
        (Folded(), "8 x 8 x 14 for each image) is put out by no module whose places"),
        (blind, "no gradient leads from its scores to the image"),
    ):
        card = card_of(model)
        assert card.features == ()
        assert reason in card.no_features
        assert refusal_of(METHODS["gradcam"], card) == card.no_features
        assert f"features   not known: {card.no_features}" in str(card)


def test_heads_that_begin_with_zeros_and_scores_of_places_have_features_too() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    nn.init.zeros_(model[4].weight)  # pyright: ignore[reportArgumentType]
    assert card_of(model).features[-1].site == "1"
    dense = nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.Upsample(scale_factor=4)
    )
    assert card_of(dense).features[-1].site == "1"
