"""Conversion of Vision Transformers from and to timm, torchvision and DINOv2."""

from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.layers.mlp import GluMlp, SwiGLUPacked
from timm.layers.norm import RmsNorm
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import (
    VisionTransformer as TimmVisionTransformer,
    checkpoint_filter_fn,
)
from torch import Tensor, nn
from torchvision.models.vision_transformer import (
    ConvStemConfig,
    VisionTransformer as TorchvisionTransformer,
)

from visattn.models.vit.vision_transformer import VisionTransformer

SIZES: dict[str, Any] = {
    "img_size": (24, 40), "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3,
    "num_classes": 7, "dynamic_img_size": True,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gray, patches that are not square": {"in_chans": 1, "patch_size": (8, 4)},
    "registers": {"reg_tokens": 3},
    "registers without places": {"reg_tokens": 4, "no_embed_class": True, "init_values": 0.3},
    "mean": {"global_pool": "avg", "class_token": False, "qk_norm": True},
    "mean beside a class token": {"global_pool": "avg", "reg_tokens": 1, "fc_norm": False},
    "attention pooling": {"global_pool": "map", "class_token": False, "qkv_bias": False},
    "no positions": {"pos_embed": "none", "mlp_ratio": 2.7},
    "gated": {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 2.66667 * 2},
    "padded": {"dynamic_img_pad": True, "img_size": (23, 37)},
}


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def shaken(model: Any) -> Any:
    """Return a model with random values in all parameters, also constant ones."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def timms(name: str) -> Any:
    return shaken(TimmVisionTransformer(**{**SIZES, **VARIANTS[name]}))


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_and_gradients_match_timm(name: str) -> None:
    theirs = timms(name)
    ours = VisionTransformer.from_timm(theirs).eval()
    images = noise(2, len(ours.mean), *ours.img_size)
    actual, expected = ours.classify(images), theirs(images)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.forward_features(images), theirs.forward_features(images))
    for scores in (actual, expected):
        scores.square().sum().backward()
    reference = dict(theirs.named_parameters())
    assert set(reference) == {key for key, _ in ours.named_parameters()}
    for key, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, reference[key].grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_other_sizes_match_timm_and_weights_convert_back(name: str) -> None:
    theirs = timms(name)
    ours = VisionTransformer.from_timm(theirs).eval()
    back = ours.to_timm().eval()
    size = (29, 21) if ours.dynamic_img_pad else (40, 32)
    for images in (noise(1, len(ours.mean), *size), noise(2, len(ours.mean), *ours.img_size)):
        with torch.no_grad():
            wanted = theirs(images)
            torch.testing.assert_close(ours.classify(images), wanted, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(back(images), wanted, atol=1e-5, rtol=1e-5)
    same = back.state_dict()
    assert all(torch.equal(same[key], value) for key, value in theirs.state_dict().items())


def test_distilled_models_average_both_heads() -> None:
    theirs = shaken(VisionTransformerDistilled(**SIZES))
    ours, images = VisionTransformer.from_timm(theirs).eval(), noise(2, 3, 24, 40)
    assert ours.prefix_roles == ("class", "distillation")
    torch.testing.assert_close(ours.classify(images), theirs(images), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.to_timm().eval()(images), theirs(images))
    assert len(ours.parameter_groups()["head"]) == 4
    counted = sum(len(parameters) for parameters in ours.parameter_groups().values())
    assert counted == len(list(ours.parameters()))


def test_converts_by_name_and_with_other_classes() -> None:
    ours = VisionTransformer.from_timm("test_vit", class_names=("cat", "dog"), drop_path_rate=0.1)
    assert ours.class_names == ("cat", "dog")
    assert ours.drop_path_rate == 0.1
    theirs = timm.create_model("test_vit", num_classes=0).eval()
    kept = {key: value for key, value in ours.state_dict().items() if not key.startswith("head")}
    theirs.load_state_dict(kept)
    images, model = noise(1, 3, *ours.img_size), ours.eval()
    torch.testing.assert_close(theirs(images), model.pool(*model.encode(images))[:, 0])
    with pytest.raises(ValueError, match="has no head: set class_names"):
        VisionTransformer.from_timm(theirs)
    with pytest.raises(ValueError, match="unknown timm model 'vit_of_mine'"):
        VisionTransformer.from_timm("vit_of_mine")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pre_norm": True}, "pre_norm"),
        ({"global_pool": "max"}, "global_pool"),
        ({"attn_layer": "diff", "num_heads": 3}, "attn_layer"),
        ({"block_fn": timm.models.vision_transformer.ResPostBlock}, "block_fn"),
        ({"mlp_layer": GluMlp}, "act_layer"),
        ({"norm_layer": RmsNorm}, "norm_layer"),
        ({"scale_attn_norm": True, "proj_drop_rate": 0.1}, "scale_attn_norm, proj_drop_rate"),
        ({"in_chans": 4, "drop_rate": 0.1}, "in_chans, drop_rate"),
    ],
)
def test_unconvertible_timm_options_are_named(options: dict[str, Any], named: str) -> None:
    theirs = TimmVisionTransformer(**{**SIZES, **options})
    with pytest.raises(ValueError, match=f"does not support its {named};"):
        VisionTransformer.from_timm(theirs)


def test_options_without_a_timm_equivalent_are_named() -> None:
    ours = partial(
        VisionTransformer, "ab", img_size=(16, 16), patch_size=8, embed_dim=24, depth=1, num_heads=3
    )
    with pytest.raises(
        ValueError, match=r"does not support stem='shifted', attn_type='linear', so"
    ):
        ours(stem="shifted", attn_type="linear").to_timm()
    with pytest.raises(ValueError, match="VisionTransformerDistilled has no registers"):
        ours(distilled=True, num_registers=1).to_timm()
    with pytest.raises(
        ValueError, match=r"support global_pool='mean', use_fc_norm=True, qk_norm=True, so"
    ):
        ours(global_pool="mean", qk_norm=True).to_torchvision()
    with pytest.raises(ValueError, match="only timm's VisionTransformer and"):
        VisionTransformer.from_timm(nn.Linear(2, 2))


def torchvisions(**options: Any) -> TorchvisionTransformer:
    sizes = {"image_size": 24, "patch_size": 8, "num_layers": 2, "num_heads": 3}
    return TorchvisionTransformer(**sizes, hidden_dim=24, mlp_dim=50, num_classes=7, **options)  # pyright: ignore[reportArgumentType]


def test_logits_and_gradients_match_torchvision_and_weights_convert_back() -> None:
    theirs: Any = shaken(torchvisions())
    ours, images = VisionTransformer.from_torchvision(theirs).train(), noise(2, 3, 24, 24)
    theirs.train()  # its fast path is another kernel
    actual, expected = ours.classify(images), theirs(images)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    for scores in (actual, expected):
        scores.square().sum().backward()
    pairs = [
        (ours.patch_embed.get_parameter("proj.weight"), theirs.conv_proj.weight),
        (ours.pos_embed, theirs.encoder.pos_embedding),
        (ours.get_parameter("blocks.0.attn.qkv.weight"),
         theirs.encoder.layers[0].self_attention.in_proj_weight),
    ]  # fmt: skip
    for first, second in pairs:
        assert first is not None
        torch.testing.assert_close(first.grad, second.grad, atol=1e-4, rtol=1e-4)
    back = ours.to_torchvision().state_dict()
    assert all(torch.equal(back[key], value) for key, value in theirs.state_dict().items())


def test_torchvision_only_models_are_refused_by_name() -> None:
    for options, named in (
        ({"representation_size": 5, "dropout": 0.1}, "representation_size, dropout"),
        ({"conv_stem_configs": [ConvStemConfig(8, 3, 8)]}, "conv_stem_configs"),
    ):
        with pytest.raises(ValueError, match=f"does not support its {named}"):
            VisionTransformer.from_torchvision(torchvisions(**options))
    with pytest.raises(ValueError, match=r"model must be one of .*, got 'resnet18'"):
        VisionTransformer.from_torchvision("resnet18")


@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2_layout_is_read_as_by_timm(registers: int) -> None:
    theirs: Any = TimmVisionTransformer(
        **{**SIZES, "num_classes": 0}, init_values=0.5, reg_tokens=registers,
        no_embed_class=registers > 0,
    )  # fmt: skip
    state = {key: torch.randn_like(value) / 5 for key, value in theirs.state_dict().items()}
    state |= {"mask_token": torch.randn(1, 24), "pos_embed": torch.randn(1, 16, 24)}
    if registers:
        state["register_tokens"] = state.pop("reg_token")
    ours = VisionTransformer.from_dinov2(
        state, class_names="ab", img_size=(24, 40), num_heads=3
    ).eval()
    theirs.load_state_dict(checkpoint_filter_fn(dict(state), theirs))
    images = noise(2, 3, 24, 40)
    wanted = theirs.eval().forward_features(images)
    torch.testing.assert_close(ours.forward_features(images), wanted, atol=1e-5, rtol=1e-5)
    assert ours.pos_interpolation == ("timm" if registers else "dino")
    with pytest.raises(
        ValueError,
        match="position embedding has 15 patches, which does not fit patches of 8 x 8 on",
    ):
        VisionTransformer.from_dinov2(state, class_names="ab", num_heads=3)
    with pytest.raises(ValueError, match=r"not a DINOv2 state dict: blocks\.0\.ls1\.gamma are"):
        VisionTransformer.from_dinov2(
            {key: value for key, value in state.items() if "ls1" not in key}, class_names="ab"
        )
