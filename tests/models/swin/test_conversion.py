"""Conversion of Swin Transformers from and to timm and torchvision."""

from typing import Any

import pytest
import timm
import torch
from timm.models.swin_transformer import SwinTransformer as TimmSwin
from torch import Tensor, nn
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer as TorchvisionSwin

from visattn.models.swin.swin_transformer import SwinTransformer

SIZES: dict[str, Any] = {
    "img_size": (24, 40), "patch_size": 2, "embed_dim": 6, "depths": (2, 3), "num_heads": (2, 3),
    "window_size": (3, 5), "num_classes": 7, "dynamic_img_size": True,
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "windows that tile": {},
    "windows that do not": {"window_size": (5, 7)},
    "windows cut down to the grid": {
        "window_size": 11,
        "depths": (2, 3, 2),
        "num_heads": (2, 3, 4),
    },
    "odd grids": {"img_size": (26, 34), "depths": (2, 2, 2), "num_heads": (1, 2, 3)},
    "gray": {"in_chans": 1, "patch_size": (2, 4), "qkv_bias": False, "mlp_ratio": 2.5},
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


def timms(name: str, **options: Any) -> Any:
    return shaken(TimmSwin(**{**SIZES, **VARIANTS[name], **options}))


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_match_timm_at_any_size_and_weights_convert_back(name: str) -> None:
    theirs = timms(name)
    ours = SwinTransformer.from_timm(theirs).eval()
    back = ours.to_timm().eval()
    for size in (ours.img_size, (36, 20), (2, 4), (42, 44)):
        images = noise(2, len(ours.mean), *size)
        with torch.no_grad():
            wanted = theirs(images)
            torch.testing.assert_close(ours.classify(images), wanted, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(back(images), wanted, atol=1e-5, rtol=1e-5)
    same = back.state_dict()
    assert all(torch.equal(same[key], value) for key, value in theirs.state_dict().items())
    again = SwinTransformer.from_timm(back)
    assert (again.depths, again.num_heads, again.img_size) == (
        ours.depths,
        ours.num_heads,
        ours.img_size,
    )


@pytest.mark.parametrize("name", ["windows that tile", "windows that do not"])
def test_gradients_match_timm(name: str) -> None:
    theirs = timms(name, drop_path_rate=0.0)
    ours, images = SwinTransformer.from_timm(theirs), noise(2, 3, 24, 40)
    for scores in (ours.classify(images), theirs(images)):
        scores.square().sum().backward()
    reference = dict(theirs.named_parameters())
    converted = dict(ours.named_parameters())
    assert len(reference) == len(converted)
    for key, weight in converted.items():
        name = key.replace("patch_norm", "patch_embed.norm").replace("head.", "head.fc.")
        grad = weight.grad
        assert grad is not None
        if key.endswith("biases"):
            name = name.replace("biases", "relative_position_bias_table")
            grad = grad.flip(1, 2).flatten(1).T
        torch.testing.assert_close(grad, reference[name].grad, atol=1e-4, rtol=1e-4)


def test_published_layout_converts() -> None:
    theirs: Any = shaken(timm.create_model("swin_tiny_patch4_window7_224", embed_dim=12))
    ours, images = SwinTransformer.from_timm(theirs).eval(), noise(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours.classify(images), theirs(images), atol=1e-5, rtol=1e-5)
    assert (ours.embed_dim, ours.img_size, ours.window_size) == (12, (224, 224), (7, 7))


def test_converts_by_model_name() -> None:
    with torch.device("meta"):
        ours = SwinTransformer.from_timm(
            "swin_tiny_patch4_window7_224", class_names=("cat", "dog"), drop_path_rate=0.2
        )
    assert (ours.class_names, ours.drop_path_rate, ours.embed_dim) == (("cat", "dog"), 0.2, 96)
    assert (ours.depths, ours.num_heads) == ((2, 2, 6, 2), (3, 6, 12, 24))
    assert ours.mean == (0.485, 0.456, 0.406)


@pytest.mark.slow
def test_published_model_converts_there_and_back() -> None:
    ours = SwinTransformer.from_timm("swin_tiny_patch4_window7_224").eval()
    theirs: Any = timm.create_model("swin_tiny_patch4_window7_224").eval()
    theirs.load_state_dict(ours.to_timm().state_dict())
    images = noise(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours.classify(images), theirs(images), atol=1e-5, rtol=1e-5)


def test_headless_model_requires_class_names() -> None:
    theirs = timms("windows that tile", num_classes=0)
    with pytest.raises(ValueError, match="has no head: set class_names"):
        SwinTransformer.from_timm(theirs)
    ours = SwinTransformer.from_timm(theirs, class_names="abc").eval()
    images = noise(1, 3, 24, 40)
    wanted = theirs(images)
    torch.testing.assert_close(ours.forward_features(images).mean(1), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"always_partition": True}, "always_partition"),
        ({"window_size": ((3, 5), (2, 4))}, "window_size"),
        ({"mlp_ratio": (2, 3)}, "mlp_ratio"),
        ({"head_dim": 5}, "head_dim"),
        ({"in_chans": 4, "global_pool": "max"}, "global_pool, in_chans"),
        ({"drop_rate": 0.1, "attn_drop_rate": 0.1, "proj_drop_rate": 0.1},
         "drop_rate, attn_drop_rate, proj_drop_rate"),
    ],
)  # fmt: skip
def test_unconvertible_options_are_named(options: dict[str, Any], named: str) -> None:
    theirs = TimmSwin(**{**SIZES, **options})
    with pytest.raises(ValueError, match=f"does not support its {named}$"):
        SwinTransformer.from_timm(theirs)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(
        ValueError, match="only timm's SwinTransformer can be converted, got Linear"
    ):
        SwinTransformer.from_timm(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="unknown timm model 'swin_of_mine'"):
        SwinTransformer.from_timm("swin_of_mine")
    with pytest.raises(
        ValueError, match=r"must be one of \['swin_b', 'swin_s', 'swin_t'\], got 'swin_v2_t'"
    ):
        SwinTransformer.from_torchvision("swin_v2_t")
    with pytest.raises(ValueError, match="only torchvision's SwinTransformer can be converted"):
        SwinTransformer.from_torchvision(nn.Linear(2, 2))


def torchvisions(**options: Any) -> TorchvisionSwin:
    sizes = {"patch_size": [2, 2], "embed_dim": 6, "depths": [2, 3], "num_heads": [2, 3]}
    return TorchvisionSwin(**sizes, window_size=[3, 5], num_classes=7, **options)  # pyright: ignore[reportArgumentType]


def test_logits_match_torchvision_when_windows_tile_the_grid() -> None:
    theirs = shaken(torchvisions())
    ours = SwinTransformer.from_torchvision(theirs, img_size=(24, 40)).eval()
    for size in ((24, 40), (36, 60)):
        images = noise(2, 3, *size)
        torch.testing.assert_close(ours.classify(images), theirs(images), atol=1e-5, rtol=1e-5)
    assert ours.drop_path_rate == pytest.approx(0.1)
    with pytest.raises(ValueError, match="must be multiples of 12 and 20, .* got 24 x 30"):
        SwinTransformer.from_torchvision(theirs, img_size=(24, 30))


def test_torchvision_only_models_are_refused_by_name() -> None:
    theirs = torchvisions(downsample_layer=PatchMergingV2, dropout=0.1)
    with pytest.raises(ValueError, match=r"does not support its downsample_layer, dropout$"):
        SwinTransformer.from_torchvision(theirs, img_size=(24, 40))
