"""timm backbones as encoders: features against timm, frozen stages, weight files."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from visattn.models.backbones.timm_encoder import CHAINS, TimmEncoder, network_after
from visattn.models.config import build_model, model_config

RESNET, VIT, NHWC = "test_resnet", "test_vit", "test_mambaout"
SWIN = "swin_tiny_patch4_window7_224"
TINY_SWIN = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2), "window_size": 4}
DISTILLED = "deit_tiny_distilled_patch16_224"  # two prefix tokens, two classifiers
TINY_VIT: dict[str, Any] = {"depth": 2, "embed_dim": 24, "num_heads": 3}


def noise(*shape: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=random)


@pytest.mark.parametrize(
    ("name", "size", "arguments"),
    [
        (RESNET, (97, 61), {}),
        (RESNET, (96, 64), {"output_stride": 8}),
        (VIT, (96, 64), {}),
        (DISTILLED, (32, 48), {**TINY_VIT, "img_size": (32, 48)}),
        (NHWC, (96, 64), {}),
        (SWIN, (96, 64), {**TINY_SWIN, "img_size": (96, 64)}),
    ],
)
def test_final_features_equal_timm_forward_features(
    name: str, size: tuple[int, int], arguments: dict[str, Any]
) -> None:
    encoder = TimmEncoder(name, img_size=size, timm_kwargs=arguments).eval()
    images = noise(2, 3, *size)
    with torch.no_grad():
        grid = encoder(images)
        backbone: Any = encoder.backbone
        final, maps = backbone.forward_intermediates(encoder.normalize(images), norm=True)
        if final.ndim == 3:  # timm's own way from tokens to a grid
            final = maps[-1]
        elif final.shape[1:] != grid.shape[1:]:
            final = final.permute(0, 3, 1, 2)
    assert grid.shape == (2, encoder.channels, *encoder.grid_size)
    torch.testing.assert_close(grid, final)


@pytest.mark.parametrize(
    ("name", "stage", "arguments"),
    [
        (RESNET, 2, {}),
        (RESNET, -2, {}),
        (VIT, 1, {}),
        (NHWC, 0, {}),
        (SWIN, 0, {**TINY_SWIN, "img_size": (96, 64)}),
    ],
)
def test_stage_equals_timm_features_only(name: str, stage: int, arguments: dict[str, Any]) -> None:
    encoder = TimmEncoder(name, img_size=(96, 64), stage=stage, timm_kwargs=arguments).eval()
    images = noise(2, 3, 96, 64)
    with torch.no_grad():
        backbone: Any = encoder.backbone
        _, maps = backbone.forward_intermediates(
            encoder.normalize(images), output_fmt="NCHW", norm=False
        )
        grid = encoder(images)
    torch.testing.assert_close(grid, maps[stage])
    assert grid.shape[1:] == (encoder.channels, *encoder.grid_size)


@pytest.mark.parametrize(
    ("name", "stage", "arguments"),
    [
        (RESNET, [2, None], {}),
        (RESNET, [None, 0, -2], {}),
        (VIT, [1, None, 0], {}),
        (NHWC, [None, 1], {}),
        (SWIN, [0, None], {**TINY_SWIN, "img_size": (96, 64)}),
        ("test_efficientnet", [-1, None], {}),
        ("test_convnext", [3, 1], {}),
    ],
)
def test_several_stages_equal_each_stage_alone(
    name: str, stage: list[int | None], arguments: dict[str, Any]
) -> None:
    encoder = TimmEncoder(name, img_size=(96, 64), stage=stage, timm_kwargs=arguments).eval()
    images = noise(2, 3, 96, 64)
    with torch.no_grad():
        grids = encoder.stage_features(images)
        for index, grid in zip(stage, grids, strict=True):
            alone = TimmEncoder(name, img_size=(96, 64), stage=index, timm_kwargs=arguments).eval()
            alone.load_state_dict(encoder.state_dict())
            torch.testing.assert_close(grid, alone(images))
        joined = encoder(images)
        assert torch.equal(joined, encoder.merge_stages(grids))
    assert encoder.stage_shapes == tuple(tuple(grid.shape[1:]) for grid in grids)
    assert joined.shape[1:] == (encoder.channels, *encoder.grid_size)
    assert encoder.channels == sum(grid.shape[1] for grid in grids)
    assert encoder.grid_size == max(tuple(grid.shape[2:]) for grid in grids)


def calls_of(encoder: TimmEncoder, *parts: str) -> list[str]:
    """Return which of these modules of the backbone run, in order, for an image."""
    ran: list[str] = []
    for part in parts:
        encoder.backbone.get_submodule(part).register_forward_hook(
            lambda *_, part=part: ran.append(part)
        )
    with torch.no_grad():
        encoder(noise(1, 3, *encoder.img_size))
    return ran


def test_one_forward_returns_all_stages_and_skips_later_layers() -> None:
    parts = "conv1", "layer1", "layer3", "layer4"
    several = TimmEncoder(RESNET, img_size=(64, 64), stage=[1, 3, None])
    assert calls_of(several, *parts) == list(parts)
    inner = TimmEncoder(RESNET, img_size=(64, 64), stage=[3, 1])
    assert calls_of(inner, *parts) == ["conv1", "layer1", "layer3"]
    assert calls_of(TimmEncoder(RESNET, img_size=(64, 64), stage=1), *parts) == ["conv1", "layer1"]


def test_mobilenet_stages_match_the_paper() -> None:
    encoder = TimmEncoder("mobilenetv2_100", stage=[3, None], timm_kwargs={"pad_type": "same"})
    assert encoder.stage_shapes == ((96, 14, 14), (1280, 7, 7))
    assert (encoder.channels, encoder.grid_size) == (1376, (14, 14))


def test_building_does_not_change_the_weights(weights: Path) -> None:
    encoder = TimmEncoder(RESNET, img_size=(64, 64), weights=str(weights), stage=[1, None])
    original = load_file(weights)
    kept = encoder.backbone.state_dict()
    assert all(torch.equal(kept[name], original[name]) for name in kept)
    assert encoder.training


def test_config_roundtrip_with_several_stages() -> None:
    encoder = TimmEncoder(RESNET, img_size=(97, 61), stage=[None, 2, -4]).eval()
    described = json.loads(json.dumps(model_config(encoder)))
    assert described["arguments"]["stage"] == [None, 2, -4]
    again = build_model(described).eval()
    again.load_state_dict(encoder.state_dict())
    assert isinstance(again, TimmEncoder)
    assert again.stage == encoder.stage == (None, 2, -4)
    with torch.no_grad():
        assert torch.equal(again(noise(1, 3, 97, 61)), encoder(noise(1, 3, 97, 61)))


@pytest.mark.parametrize(
    ("name", "train_from", "frozen"),
    [
        (RESNET, None, True),
        (RESNET, 0, False),
        (RESNET, 5, False),
        (RESNET, 4, True),
        (VIT, 4, False),  # tokens do not pass as one grid: nothing is cached
        (NHWC, 2, False),
    ],
)
def test_frozen_parameters_never_receive_gradients(
    name: str, *, train_from: int | None, frozen: bool
) -> None:
    encoder = TimmEncoder(name, img_size=(64, 64), unfreeze_from_stage=train_from)
    assert encoder.frozen == frozen
    next(encoder.backbone.parameters()).requires_grad = True
    assert not encoder.frozen


def test_feature_grid_has_the_orientation_of_the_image() -> None:
    """A bright spot at the bottom left appears in the features at the bottom left."""
    for name in (RESNET, VIT, NHWC):
        encoder = TimmEncoder(name, img_size=(160, 96)).eval()
        dark = torch.zeros(1, 3, 160, 96, dtype=torch.uint8)
        spot = dark.clone()
        spot[..., 128:160, 0:32] = 255
        with torch.no_grad():
            change = (encoder(spot) - encoder(dark)).abs().sum(1)[0]
        y, x = divmod(int(change.argmax()), change.shape[1])
        assert (y + 0.5) / change.shape[0] > 0.7
        assert (x + 0.5) / change.shape[1] < 0.4


def frozen_names(encoder: TimmEncoder) -> set[str]:
    return {name for name, p in encoder.backbone.named_parameters() if not p.requires_grad}


def test_frozen_encoder_has_no_gradient_and_constant_statistics() -> None:
    encoder = TimmEncoder(RESNET, img_size=(64, 64)).train()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    for _ in range(3):
        assert not encoder(noise(4, 3, 64, 64)).requires_grad
    assert encoder.training
    assert not any(module.training for module in encoder.backbone.modules())
    after = encoder.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def stages(module: str) -> str:
    return module.split(".")[0]


@pytest.mark.parametrize(
    ("name", "train_from", "trained"),
    [
        (RESNET, 0, {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"}),
        (RESNET, 1, {"layer1", "layer2", "layer3", "layer4"}),
        (RESNET, 4, {"layer4"}),
        (RESNET, 5, set()),
        (RESNET, None, set()),
        ("test_efficientnet", 5, {"conv_head", "bn2"}),
    ],
)
def test_stages_before_unfreeze_from_stage_are_frozen(
    name: str, train_from: int | None, trained: set[str]
) -> None:
    encoder = TimmEncoder(name, img_size=(64, 64), unfreeze_from_stage=train_from).train()
    assert {
        stages(name) for name, p in encoder.backbone.named_parameters() if p.requires_grad
    } == trained
    assert {stages(name) for name in frozen_names(encoder)}.isdisjoint(trained)
    for name, module in encoder.backbone.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.training == (stages(name) in trained), name


def test_upper_half_of_a_transformer_is_trainable() -> None:
    encoder = TimmEncoder(VIT, img_size=(96, 64), unfreeze_from_stage=4)
    trained = {name for name, p in encoder.backbone.named_parameters() if p.requires_grad}
    assert {".".join(name.split(".")[:2]) for name in trained if "blocks" in name} == {
        "blocks.4",
        "blocks.5",
    }
    assert {"cls_token", "pos_embed", "patch_embed.proj.weight"} <= frozen_names(encoder)
    assert any(name.startswith("norm") for name in trained)


def test_running_statistics_change_in_trained_stages_only() -> None:
    encoder = TimmEncoder(RESNET, img_size=(64, 64), unfreeze_from_stage=3).train()
    before = {name: tensor.clone() for name, tensor in encoder.backbone.named_buffers()}
    encoder(noise(4, 3, 64, 64)).sum().backward()
    for name, tensor in encoder.backbone.named_buffers():
        if "running" in name:
            moved = not torch.equal(before[name], tensor)
            assert moved == name.startswith(("layer3", "layer4")), name


def test_freeze_bn_keeps_running_statistics() -> None:
    encoder = TimmEncoder(RESNET, img_size=(64, 64), unfreeze_from_stage=3, freeze_bn=True).train()
    before = {name: tensor.clone() for name, tensor in encoder.backbone.named_buffers()}
    encoder(noise(4, 3, 64, 64)).sum().backward()
    assert all(torch.equal(before[name], now) for name, now in encoder.backbone.named_buffers())
    weight = encoder.backbone.get_submodule("layer4.0.bn1").get_parameter("weight")
    assert weight.grad is not None


def test_parameter_free_layers_follow_the_mode_of_their_stage() -> None:
    encoder = TimmEncoder(
        "test_convnext",
        img_size=(96, 64),
        unfreeze_from_stage=2,
        timm_kwargs={"drop_path_rate": 0.5},
    ).train()
    drops = {
        stages(name) + "." + name.split(".")[1]: module.training
        for name, module in encoder.backbone.named_modules()
        if type(module).__name__ == "DropPath"
    }
    assert drops["stages.3"]
    assert not drops.get("stages.1", False)
    encoder.eval()
    assert not any(module.training for module in encoder.modules())


def test_mean_and_std_default_to_those_of_the_backbone() -> None:
    own = TimmEncoder(RESNET, img_size=(64, 64))
    config: Any = own.backbone.pretrained_cfg
    assert own.mean == tuple(config["mean"])
    assert own.std == tuple(config["std"])
    said = TimmEncoder(RESNET, img_size=(64, 64), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    assert (said.mean, said.std) == ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    zero, highest = own.normalize(torch.tensor([0, 255]).byte().view(2, 1, 1, 1).repeat(1, 3, 1, 1))
    torch.testing.assert_close((highest - zero).flatten() * torch.tensor(own.std), torch.ones(3))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file in timm's format, with the classifier."""
    model = timm.create_model(RESNET)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def test_weights_load_from_a_file(weights: Path) -> None:
    encoder = TimmEncoder(RESNET, img_size=(64, 64), weights=str(weights))
    model: Any = timm.create_model(RESNET)
    timm.models.load_checkpoint(model, str(weights))
    images = noise(2, 3, 64, 64)
    with torch.no_grad():
        expected = model.eval().forward_features(encoder.normalize(images))
        torch.testing.assert_close(encoder.eval()(images), expected)
    assert encoder.weights is None  # a description never contains a local path


def test_num_batches_tracked_may_be_missing(weights: Path) -> None:
    tensors = load_file(weights)
    kept = {name: t for name, t in tensors.items() if not name.endswith("num_batches_tracked")}
    assert len(kept) < len(tensors)
    save_file(kept, weights)
    encoder = TimmEncoder(RESNET, img_size=(64, 64), weights=str(weights))
    assert torch.equal(encoder.state_dict()["backbone.bn1.weight"], tensors["bn1.weight"])


def test_both_heads_of_a_distilled_model_are_dropped(tmp_path: Path) -> None:
    model = timm.create_model(DISTILLED, img_size=(32, 48), **TINY_VIT)
    file = tmp_path / "distilled.safetensors"
    save_file(model.state_dict(), file)
    arguments = {**TINY_VIT, "img_size": (32, 48)}
    encoder = TimmEncoder(DISTILLED, img_size=(32, 48), weights=str(file), timm_kwargs=arguments)
    torch.testing.assert_close(
        encoder.state_dict()["backbone.norm.weight"], model.state_dict()["norm.weight"]
    )


def damaged(tmp_path: Path, weights: Path) -> Iterator[tuple[Path, type[Exception], str]]:
    (tmp_path / "torn.safetensors").write_bytes(weights.read_bytes()[:1000])
    yield tmp_path / "torn.safetensors", ValueError, "damaged or no safetensors file"
    (tmp_path / "empty.safetensors").write_bytes(b"")
    yield tmp_path / "empty.safetensors", ValueError, "empty.safetensors is damaged or no"
    yield tmp_path / "none.safetensors", FileNotFoundError, "No such file"
    other = timm.create_model("test_efficientnet")
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    yield tmp_path / "other.safetensors", ValueError, "does not fit ResNet: .* missing"
    model = timm.create_model(RESNET, in_chans=1)
    save_file(model.state_dict(), tmp_path / "gray.safetensors")
    yield tmp_path / "gray.safetensors", ValueError, "1 of another shape .*conv1"


def test_mismatching_weight_files_are_refused(tmp_path: Path, weights: Path) -> None:
    for file, kind, reason in damaged(tmp_path, weights):
        with pytest.raises(kind, match=reason):
            TimmEncoder(RESNET, img_size=(64, 64), weights=str(file))


CASES: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("test_resnett", {}, ValueError, "unknown timm model 'test_resnett'; did you mean test_resnet"),
    (RESNET, {"stage": 5}, IndexError, "out of range"),
    (RESNET, {"stage": [3, -2]}, ValueError, r"distinct stages of 5, got \(3, -2\)"),
    (RESNET, {"timm_kwargs": {"nonsense": 3}}, ValueError, "does not take these .*'nonsense'"),
    (RESNET, {"timm_kwargs": {"checkpoint_path": "x"}}, ValueError, "may not contain checkpoint"),
    (RESNET, {"pretrained": True, "weights": "x"}, ValueError, "set either pretrained or weights"),
    ("vit_tiny_patch16_224", {"timm_kwargs": TINY_VIT}, AssertionError, "doesn't match model"),
]


@pytest.mark.parametrize(("name", "options", "kind", "reason"), CASES)
def test_refusals(name: str, options: dict[str, Any], kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        TimmEncoder(name, img_size=(64, 96), **options)


# A network of each class, and a stage that another one ends before it.
CNNS: dict[str, tuple[str, int]] = {
    "ByobNet": ("test_byobnet", 2),
    "ConvNeXt": ("test_convnext", 2),
    "CspNet": ("cspresnet50", 3),
    "EfficientNet": ("test_efficientnet", 3),
    "GhostNet": ("ghostnet_050", 3),
    "MobileNetV3": ("mobilenetv3_small_050", 2),
    "NormFreeNet": ("test_nfnet", 2),
    "RegNet": ("regnetx_002", 3),
    "ResNet": (RESNET, 3),
    "ResNetV2": ("resnetv2_18", 3),
    "RexNet": ("rexnet_100", 3),
    "VovNet": ("vovnet39a", 3),
}


def test_the_frozen_part_and_its_tail_compose_to_the_encoder_in_each_class_of_timm() -> None:
    assert CNNS.keys() == CHAINS
    for kind, (name, first) in CNNS.items():
        options: dict[str, Any] = {"img_size": (64, 96)}
        cut = TimmEncoder(name, **options, unfreeze_from_stage=first).eval()
        assert type(cut.backbone).__name__ == kind
        whole = TimmEncoder(name, **options).eval()
        whole.load_state_dict(cut.state_dict())
        images = noise(2, 3, 64, 96)
        with torch.no_grad():
            kept = cut.stage_features(images)
            assert cut.frozen
            assert [tuple(grid.shape[1:]) for grid in kept] == list(cut.stage_shapes)
            assert kept[0].shape != whole(images).shape
            torch.testing.assert_close(cut.merge_stages(kept), whole(images), msg=name)
        assert (cut.channels, cut.grid_size) == (whole.channels, whole.grid_size)


def test_tail_returns_several_stages() -> None:
    cut = TimmEncoder(
        "test_resnet", img_size=(96, 64), stage=[None, 3], unfreeze_from_stage=3
    ).eval()
    whole = TimmEncoder("test_resnet", img_size=(96, 64), stage=[None, 3]).eval()
    whole.load_state_dict(cut.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(cut(noise(2, 3, 96, 64)), whole(noise(2, 3, 96, 64)))
    assert len(cut.stage_shapes) == 1
    early = TimmEncoder("test_resnet", img_size=(96, 64), stage=[None, 1], unfreeze_from_stage=3)
    assert not early.frozen, "a stage before the cut is selected: nothing is cut"
    assert early(noise(1, 3, 96, 64)).shape[1] == early.channels


def test_the_last_frozen_stage_is_read_from_the_cached_grid() -> None:
    options: dict[str, Any] = {"img_size": (96, 64), "stage": [2, None]}
    cut = TimmEncoder("test_resnet", **options, unfreeze_from_stage=3).eval()
    whole = TimmEncoder("test_resnet", **options).eval()
    whole.load_state_dict(cut.state_dict())
    with torch.no_grad():
        kept = cut.stage_features(noise(2, 3, 96, 64))
        merged = cut.merge_stages(kept)
        torch.testing.assert_close(merged, whole(noise(2, 3, 96, 64)))
    assert cut.frozen
    assert cut.grid_size == tuple(kept[0].shape[-2:])  # the finer of both grids
    torch.testing.assert_close(merged[:, : kept[0].shape[1]], kept[0])
    final = merged[:, kept[0].shape[1] :]  # a coarse cell covers 2×2 fine ones
    torch.testing.assert_close(
        final, final[..., ::2, ::2].repeat_interleave(2, 2).repeat_interleave(2, 3)
    )


def test_convolutions_after_the_cut_run_without_autocast_on_a_cpu() -> None:
    encoder = TimmEncoder("test_efficientnet", img_size=(64, 64), unfreeze_from_stage=3).eval()
    grids = encoder.stage_features(noise(2, 3, 64, 64))
    plain = encoder.merge_stages(grids)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoder.merge_stages(grids), plain)
        assert encoder(noise(2, 3, 64, 64)).dtype == torch.float32


def test_training_updates_the_tail_only() -> None:
    encoder = TimmEncoder("test_resnet", img_size=(64, 64), unfreeze_from_stage=3).train()
    images = noise(4, 3, 64, 64)
    kept, grids = dict(encoder.stage_feature_weights()), encoder.stage_features(images)
    before = {name: tensor.clone() for name, tensor in kept.items()}
    first = encoder.merge_stages(grids).detach()
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1.0)
    encoder.merge_stages(grids).square().mean().backward()
    assert all(parameter.grad is not None for parameter in trained)
    optimizer.step()
    assert not torch.allclose(encoder.merge_stages(grids), first)
    assert torch.equal(encoder.stage_features(images)[0], grids[0])
    assert all(
        torch.equal(before[name], now) for name, now in encoder.stage_feature_weights().items()
    )
    assert {name.split(".")[1] for name in kept} == {"conv1", "bn1", "layer1", "layer2"}


def test_deepcopy_trains_independently() -> None:
    encoder = TimmEncoder("test_resnet", img_size=(64, 64), unfreeze_from_stage=3).eval()
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        for parameter in other.backbone.get_submodule("layer4").parameters():
            parameter.add_(1)
        assert not torch.equal(other(noise(1, 3, 64, 64)), encoder(noise(1, 3, 64, 64)))


def test_no_weight_is_stored_twice() -> None:
    cut = TimmEncoder("test_resnet", img_size=(64, 64), unfreeze_from_stage=3)
    whole = TimmEncoder("test_resnet", img_size=(64, 64))
    assert list(cut.state_dict()) == list(whole.state_dict())
    assert cut.double()(noise(1, 3, 64, 64)).dtype == torch.float64


def test_unfrozen_modules_are_shared() -> None:
    whole = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Sequential(nn.ReLU(), nn.Conv2d(5, 7, 1)))
    tail = network_after(whole, {whole[0]})
    assert tail is not whole
    features = torch.randn(1, 5, 2, 3)
    assert torch.equal(tail(features), whole[1](features))
    assert network_after(whole, set()) is whole
