"""Blocks inside timm's networks, and our models in timm's factory."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data.config import resolve_model_data_config
from timm.optim._optim_factory import create_optimizer_v2
from torch import nn

import visattn as va
from visattn.blocks import CBAM
from visattn.integrations.timm import attn_layer, register_models
from visattn.models import create_vit


@pytest.mark.parametrize("name", ["se", "eca", "cbam", "coordinate", "simam"])
def test_a_block_is_built_into_each_residual_unit(name: str) -> None:
    model = timm.create_model("resnet18", block_args={"attn_layer": attn_layer(name)}).eval()
    blocks = [module.se for module in model.modules() if hasattr(module, "se")]
    assert {type(block) for block in blocks} == {type(va.create_block(name, 64))}
    images = torch.rand(1, 3, 64, 64)
    with va.record(model) as recording:
        model(images)
    assert len(recording.maps) >= 8


def test_options_and_device_arguments_arrive() -> None:
    block = attn_layer("cbam", reduction=4)(64, device="cpu", dtype=torch.float64)
    assert isinstance(block, CBAM)
    assert {parameter.dtype for parameter in block.parameters()} == {torch.float64}


def test_an_unknown_block_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="cbam"):
        attn_layer("cbma")


def test_models_are_registered_once_and_equal_ours() -> None:
    names = register_models()
    assert names == register_models()
    assert set(names) <= set(timm.list_models("visattn_*"))
    model = timm.create_model("visattn_vit_lite_6_4", num_classes=7, img_size=24).eval()
    own = create_vit("vit_lite_6_4", [str(k) for k in range(7)], img_size=(24, 24)).eval()
    own.load_state_dict(model.state_dict())
    images = torch.rand(2, 3, 24, 24)
    assert torch.equal(model(images), own(images))
    assert resolve_model_data_config(model)["input_size"] == (3, 24, 24)


def test_a_saved_model_is_a_checkpoint(tmp_path: Path) -> None:
    model = timm.create_model("visattn_cct_2_3x2", num_classes=3)
    va.save(model, tmp_path / "m.safetensors")
    again = timm.create_model(
        "visattn_cct_2_3x2", num_classes=3, checkpoint_path=tmp_path / "m.safetensors"
    )
    assert all(map(torch.equal, again.state_dict().values(), model.state_dict().values()))


def test_optimizers_of_timm_know_layers_and_weight_decay() -> None:
    model = timm.create_model("visattn_vit_lite_6_4", num_classes=7)
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    groups = optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decay, scale = {}, {}
    for group in groups:
        for parameter in group["params"]:
            decay[names[id(parameter)]] = group["weight_decay"]
            scale[names[id(parameter)]] = group["lr_scale"]
    assert (decay["pos_embed"], decay["blocks.0.attn.proj.weight"]) == (0.0, 0.1)
    layers = ["pos_embed", *(f"blocks.{k}.attn.proj.weight" for k in range(6)), "head.weight"]
    assert [scale[name] for name in layers] == [0.5**k for k in range(7, -1, -1)]


def test_options_as_those_of_models_of_timm() -> None:
    gray = timm.create_model("visattn_cct_2_3x2", num_classes=3, in_chans=1, drop_rate=0.0).eval()
    assert gray(torch.zeros(1, 1, 32, 32)).shape == (1, gray.num_classes)
    assert resolve_model_data_config(gray)["input_size"] == (1, 32, 32)
    options: list[dict[str, Any]] = [{"num_classes": 0}, {"in_chans": 2}, {"drop_rate": 0.1}]
    for option in options:
        with pytest.raises(ValueError, match=f"{next(iter(option))} of|no dropout"):
            timm.create_model("visattn_cct_2_3x2", **option)


def test_pretrained_weights_are_refused() -> None:
    with pytest.raises((ValueError, RuntimeError), match="no pretrained weights"):
        timm.create_model("visattn_vit_tiny", pretrained=True)


def test_a_registered_model_has_maps() -> None:
    model = timm.create_model("visattn_cct_2_3x2", num_classes=3).eval()
    assert isinstance(model, nn.Module)
    assert "rollout" in va.methods_for(model) or "attention" in va.methods_for(model)
