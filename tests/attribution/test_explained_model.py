"""What is found out about a model: right, once, and without a trace."""

import gc
import weakref
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from visattn.attribution.explained_model import subject_of
from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.recording import probe_cache as reading_caches
from visattn.recording.model_info import FeatureSite


def vit(**options: Any) -> Any:
    torch.manual_seed(3)
    small = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": (48, 80), "num_classes": 5}
    return timm.create_model("deit_tiny_distilled_patch16_224", **small, **options)


def test_a_card_of_timm_is_a_table() -> None:
    model = vit()
    subject = subject_of(model)
    assert str(subject.card) == "\n".join([
        "deit_tiny_distilled_patch16_224 (timm)",
        "  input      48 x 80, mean 0.485 0.456 0.406, std 0.229 0.224 0.225",
        "  pooling    distilled",
        "  attention  2 layers",
        "    blocks.0.attn  3 x 5, 2 heads, after class, distillation",
        "    blocks.1.attn  3 x 5, 2 heads, after class, distillation",
        "  features   2 layers",
        "    blocks.0.norm1  3 x 5, [b n c]",
        "    blocks.1.norm1  3 x 5, [b n c]",
    ])  # fmt: skip
    x = torch.randn(2, 3, 48, 80)
    model.eval()
    assert torch.equal(subject.scores(x), model(x))
    assert subject.classes == ()


def test_ours_know_their_classes_and_take_normalized_images() -> None:
    model = VisionTransformer(
        ("cat", "dog"), size=(24, 40), patch=8, width=12, depth=1, heads=2, pool="attention",
        mean=(0.4,), std=(0.3,),
    ).eval()  # fmt: skip
    subject = subject_of(model)
    assert subject.classes == ("cat", "dog")
    assert subject.card.source == "visattn"
    assert (subject.card.mean, subject.card.pooling) == ((0.4,), "attention")
    assert [(one.site, one.lone) for one in subject.card.layers] == [
        ("blocks.0.attn.tap", False), ("attn_pool.tap", True)
    ]  # fmt: skip
    x = torch.randn(2, 1, 24, 40)
    assert torch.equal(subject.scores(x), model.classify(x))


NETWORKS = {
    "torchvision": (lambda: torchvision.models.mobilenet_v3_small(), "features", (2, 3)),
    "overwritten": (lambda: torchvision.models.densenet121(), "features.denseblock4", (2, 3)),
    "timm": (lambda: timm.create_model("test_resnet"), "layer4", (2, 3)),
    "ours": (lambda: TimmClassifier(("a", "b"), "test_resnet", block="se", size=(64, 96)),
        "backbone.layer4", (2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_features_of_networks_end_where_nothing_overwrites_them(name: str) -> None:
    build, site, grid = NETWORKS[name]
    card = subject_of(build(), (64, 96)).card
    assert card.features[-1] == FeatureSite(site, "b c y x", grid)
    assert card.layers == ()
    assert card.refusal == "it has no attention among tokens"
    assert card.pooling == "none"


def test_a_model_is_read_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vit(dynamic_img_size=True)
    ran: list[Tensor] = []
    model.patch_embed.register_forward_hook(lambda _, args, __: ran.append(args[0]))
    first = subject_of(model)
    assert subject_of(model).card is first.card
    once = [(4, 3, 48, 80), (2, 3, 48, 80), (1, 3, 48, 80)]  # marks, zeros, a gradient
    assert [tuple(one.shape) for one in ran] == once
    assert subject_of(model, (64, 80)).card.layers[0].grid == (4, 5)
    assert len(ran) == 6
    model.blocks.append(nn.Identity())
    subject_of(model)
    assert len(ran) == 9
    kept = len(reading_caches._READ), len(reading_caches._POOLED)
    gone = weakref.ref(model)
    del model, first
    ran.clear()
    gc.collect()
    assert gone() is None
    left = len(reading_caches._READ), len(reading_caches._POOLED)
    assert left == (kept[0] - 1, kept[1] - 1)


def test_a_model_comes_back_as_it_was() -> None:
    model: Any = timm.create_model("test_resnet", drop_rate=0.5).train()
    model.layer1.eval()
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    random = torch.get_rng_state()
    subject_of(model)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert model.training
    assert not model.layer1.training
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())
    assert all(weight.grad is None for weight in model.parameters())


def test_a_model_that_takes_another_size_says_so() -> None:
    other = r"could not be run on .* 32 x 32 pixels .*it runs on 48 x 80: .*size=\(48, 80\)\), or"
    with pytest.raises(ValueError, match=other):
        subject_of(vit(), (32, 32))


def test_half_precision_carries_numbers_of_tokens_too() -> None:
    options: dict[str, Any] = {"depths": (2,), "num_heads": (2,), "embed_dim": 12}
    model: Any = timm.create_model(
        "swin_tiny_patch4_window7_224", **options, window_size=(3, 5), img_size=(60, 100)
    )
    for dtype in (torch.float32, torch.bfloat16):
        card = subject_of(model.to(dtype)).card
        assert [one.shift for one in card.layers] == [(0, 0), (1, 2)]
        reading_caches._READ.clear()
