"""timm backbones as encoders: features as timm computes them, frozen stages, the cached part."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from random_numbers import pixels
from safetensors.torch import load_file, save_file
from torch import nn

from visattn.models.backbones.timm_encoder import CHAINS, TimmEncoder
from visattn.models.config import build_model, model_config

RESNET, VIT, NHWC = "test_resnet", "test_vit", "test_mambaout"
TINY_SWIN = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2), "window_size": 4}
DISTILLED = "deit_tiny_distilled_patch16_224"  # two prefix tokens, two classifiers
TINY_VIT: dict[str, Any] = {"depth": 2, "embed_dim": 24, "num_heads": 3}


@pytest.mark.parametrize(
    ("name", "size", "stages", "arguments"),
    [
        (RESNET, (97, 61), [2, None, 0], {}),
        (RESNET, (96, 64), [-2], {"output_stride": 8}),
        (VIT, (96, 64), [1, None, 0], {}),
        (DISTILLED, (32, 48), [0], {**TINY_VIT, "img_size": (32, 48)}),
        (NHWC, (96, 64), [None, 1], {}),
        ("swin_tiny_patch4_window7_224", (96, 64), [0, None], {**TINY_SWIN, "img_size": (96, 64)}),
        ("test_efficientnet", (96, 64), [-1, None], {}),
    ],
)
def test_features_are_those_of_timm(
    name: str, size: tuple[int, int], stages: list[int | None], arguments: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"img_size": size, "timm_kwargs": arguments}
    encoder = TimmEncoder(name, stage=stages, **options).eval()
    images = pixels(2, 3, *size)
    with torch.no_grad():
        backbone: Any = encoder.backbone
        x = encoder.normalize(images)
        _, maps = backbone.forward_intermediates(x, output_fmt="NCHW")
        final = backbone.forward_features(x)
        if final.ndim == 3:  # timm's own way from tokens to a grid
            final = backbone.forward_intermediates(x, norm=True, output_fmt="NCHW")[1][-1]
        elif final.shape[-1] == maps[-1].shape[1] != final.shape[1]:
            final = final.permute(0, 3, 1, 2)
        grids = encoder.stage_features(images)
        for stage, grid in zip(stages, grids, strict=True):
            torch.testing.assert_close(grid, final if stage is None else maps[stage])
            alone = TimmEncoder(name, stage=stage, **options).eval()
            alone.load_state_dict(encoder.state_dict())
            assert torch.equal(alone(images), grid)
        joined = encoder(images)
    assert encoder.stage_shapes == tuple(tuple(grid.shape[1:]) for grid in grids)
    assert joined.shape == (2, encoder.channels, *encoder.grid_size)
    assert encoder.channels == sum(grid.shape[1] for grid in grids)
    assert encoder.grid_size == max(tuple(grid.shape[2:]) for grid in grids)


def test_one_forward_returns_all_stages_and_skips_later_layers() -> None:
    for stage, ran in (([1, 3, None], "1234"), ([3, 1], "123"), (1, "1")):
        encoder = TimmEncoder(RESNET, img_size=(64, 64), stage=stage)
        calls: dict[str, bool] = {}
        for n in "1234":
            part = encoder.backbone.get_submodule(f"layer{n}")
            part.register_forward_hook(lambda *_, n=n, calls=calls: calls.update({n: True}))
        encoder(pixels(1, 3, 64, 64))
        assert "".join(calls) == ran


def test_mean_and_std_default_to_those_of_the_backbone() -> None:
    own = TimmEncoder(RESNET, img_size=(64, 64))
    config: Any = own.backbone.pretrained_cfg
    assert (own.mean, own.std) == (tuple(config["mean"]), tuple(config["std"]))
    said = TimmEncoder(RESNET, img_size=(64, 64), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    assert (said.mean, said.std) == ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))


# ------------------------------------------------------------------ weights


def test_weights_load_from_a_file_and_stay_with_the_config(tmp_path: Path) -> None:
    model: Any = timm.create_model(RESNET).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    file = tmp_path / "weights.safetensors"
    state = {k: v for k, v in model.state_dict().items() if "num_batches" not in k}  # as old files
    save_file(state, file)
    encoder = TimmEncoder(RESNET, img_size=(97, 61), weights=str(file), stage=[None, 2]).eval()
    images = pixels(2, 3, 97, 61)
    with torch.no_grad():
        expected = model.forward_features(encoder.normalize(images))
        torch.testing.assert_close(encoder.stage_features(images)[0], expected)
    stored = load_file(file)
    kept = {k: v for k, v in encoder.backbone.state_dict().items() if "num_batches" not in k}
    assert all(torch.equal(stored[name], value) for name, value in kept.items())
    described = json.loads(json.dumps(model_config(encoder)))
    assert described["arguments"]["weights"] is None  # a description never contains a local path
    again = build_model(described).eval()
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(images), encoder(images))


def test_both_heads_of_a_distilled_model_are_dropped(tmp_path: Path) -> None:
    arguments = {**TINY_VIT, "img_size": (32, 48)}
    model = timm.create_model(DISTILLED, **arguments)
    file = tmp_path / "distilled.safetensors"
    save_file(model.state_dict(), file)
    encoder = TimmEncoder(DISTILLED, img_size=(32, 48), weights=str(file), timm_kwargs=arguments)
    weight = encoder.backbone.get_parameter("blocks.1.attn.qkv.weight")
    assert torch.equal(weight, model.get_parameter("blocks.1.attn.qkv.weight"))


# ------------------------------------------------------------------ frozen and trained stages


@pytest.mark.parametrize(
    ("name", "first", "trained"),
    [
        (RESNET, 0, {"conv1", "bn1", "layer1", "layer2", "layer3", "layer4"}),
        (RESNET, 1, {"layer1", "layer2", "layer3", "layer4"}),
        (RESNET, 4, {"layer4"}),
        (RESNET, 5, set[str]()),
        (RESNET, None, set[str]()),
        ("test_efficientnet", 5, {"conv_head", "bn2"}),
        ("test_convnext", 2, {"stages.2", "stages.3", "head"}),
        (VIT, 4, {"blocks.4", "blocks.5", "norm"}),
    ],
)
def test_stages_before_unfreeze_from_stage_are_frozen(
    name: str, first: int | None, trained: set[str]
) -> None:
    kwargs = {"drop_path_rate": 0.5} if "convnext" in name else {}
    encoder = TimmEncoder(name, img_size=(64, 64), unfreeze_from_stage=first, timm_kwargs=kwargs)

    def inside(part: str) -> bool:
        return any(f"{part}.".startswith(f"{each}.") for each in trained)

    for key, parameter in encoder.backbone.named_parameters():
        assert parameter.requires_grad == inside(key), key
    for key, module in encoder.train().backbone.named_modules():
        if isinstance(module, nn.BatchNorm2d) or type(module).__name__ == "DropPath":
            assert module.training == inside(key), key
    before = {key: buffer.clone() for key, buffer in encoder.backbone.named_buffers()}
    features = encoder(pixels(4, 3, 64, 64))
    assert features.requires_grad == bool(trained)
    moved = {k for k, b in encoder.backbone.named_buffers() if not torch.equal(before[k], b)}
    assert all(map(inside, moved))
    encoder.eval()
    assert not any(module.training for module in encoder.modules())


def test_freeze_bn_keeps_running_statistics() -> None:
    encoder = TimmEncoder(RESNET, img_size=(64, 64), unfreeze_from_stage=3, freeze_bn=True).train()
    before = {name: tensor.clone() for name, tensor in encoder.backbone.named_buffers()}
    encoder(pixels(4, 3, 64, 64)).sum().backward()
    assert all(torch.equal(before[name], now) for name, now in encoder.backbone.named_buffers())
    weight = encoder.backbone.get_submodule("layer4.0.bn1").get_parameter("weight")
    assert weight.grad is not None


# ------------------------------------------------------------------ the cached part

# A network of each class, and a stage that another one ends before it.
CNNS: dict[str, tuple[str, int]] = {
    "ByobNet": ("test_byobnet", 2),
    "ConvNeXt": ("test_convnext", 2),
    "EfficientNet": ("test_efficientnet", 3),
    "GhostNet": ("ghostnet_050", 3),
    "MobileNetV3": ("mobilenetv3_small_050", 2),
    "NormFreeNet": ("test_nfnet", 2),
    "RegNet": ("regnetx_002", 3),
    "ResNet": (RESNET, 3),
    "ResNetV2": ("resnetv2_18", 3),
    "RexNet": ("rexnet_100", 3),
}


def test_the_frozen_part_and_its_tail_compose_to_the_encoder_in_each_class_of_timm() -> None:
    assert CNNS.keys() == CHAINS
    for kind, (name, first) in CNNS.items():
        cut = TimmEncoder(name, img_size=(64, 96), unfreeze_from_stage=first).eval()
        assert type(cut.backbone).__name__ == kind
        whole = TimmEncoder(name, img_size=(64, 96)).eval()
        whole.load_state_dict(cut.state_dict())
        images = pixels(2, 3, 64, 96)
        with torch.no_grad():
            kept = cut.stage_features(images)
            assert cut.frozen
            assert [tuple(grid.shape[1:]) for grid in kept] == list(cut.stage_shapes)
            assert kept[0].shape != whole(images).shape
            torch.testing.assert_close(cut.merge_stages(kept), whole(images), msg=name)
        assert (cut.channels, cut.grid_size) == (whole.channels, whole.grid_size)


def test_what_is_not_a_chain_is_not_cached() -> None:
    for name, first, frozen in ((VIT, 4, False), (NHWC, 2, False), (RESNET, 4, True)):
        encoder = TimmEncoder(name, img_size=(64, 64), unfreeze_from_stage=first)
        assert encoder.frozen == frozen
        next(encoder.backbone.parameters()).requires_grad = True
        assert not encoder.frozen


def test_convolutions_after_the_cut_run_without_autocast_on_a_cpu() -> None:
    encoder = TimmEncoder("test_efficientnet", img_size=(64, 64), unfreeze_from_stage=3).eval()
    grids = encoder.stage_features(pixels(2, 3, 64, 64))
    plain = encoder.merge_stages(grids)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(encoder.merge_stages(grids), plain)


def test_training_updates_the_tail_only_and_copies_train_alone() -> None:
    encoder = TimmEncoder(RESNET, img_size=(64, 64), unfreeze_from_stage=3).train()
    assert list(encoder.state_dict()) == list(TimmEncoder(RESNET, img_size=(64, 64)).state_dict())
    other, images = copy.deepcopy(encoder), pixels(4, 3, 64, 64)
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
    now = encoder.stage_feature_weights()
    assert all(torch.equal(before[name], tensor) for name, tensor in now.items())
    assert {name.split(".")[1] for name in kept} == {"conv1", "bn1", "layer1", "layer2"}
    assert torch.equal(other.merge_stages(grids), first)
