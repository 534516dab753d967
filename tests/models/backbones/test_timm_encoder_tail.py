"""Encoders cut after their frozen part: both parts compose to the encoder."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from visattn.models.backbones.timm_encoder import TimmEncoder, intermediate_output, network_after

CNNS = ["test_resnet", "test_efficientnet", "test_convnext", "test_mambaout"]


def noise(*shape: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=random)


@pytest.mark.parametrize("name", CNNS)
@pytest.mark.parametrize("stage", [None, -1])
def test_frozen_part_and_tail_compose_to_the_encoder(name: str, stage: int | None) -> None:
    whole = TimmEncoder(name, img_size=(96, 64), stage=stage).eval()
    cut = TimmEncoder(name, img_size=(96, 64), stage=stage, unfreeze_from_stage=3).eval()
    cut.load_state_dict(whole.state_dict())
    images = noise(2, 3, 96, 64)
    with torch.no_grad():
        kept = cut.stage_features(images)
        assert [tuple(grid.shape[1:]) for grid in kept] == list(cut.stage_shapes)
        assert kept[0].shape != whole(images).shape
        torch.testing.assert_close(cut.merge_stages(kept), whole(images))
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


def test_cut_without_a_feature_grid_is_refused() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.never = nn.Flatten(2), nn.Identity()

        def forward_features(self, images: torch.Tensor) -> Any:
            return self.first(images)

    backbone, images = Tokens(), torch.zeros(1, 3, 5, 7)
    for part in (backbone.first, backbone.never):
        with pytest.raises(ValueError, match="does not output a feature grid"):
            intermediate_output(backbone, part, images)
        assert not part._forward_hooks


def test_unfrozen_modules_are_shared() -> None:
    whole = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Sequential(nn.ReLU(), nn.Conv2d(5, 7, 1)))
    tail = network_after(whole, {whole[0]})
    assert tail is not whole
    features = torch.randn(1, 5, 2, 3)
    assert torch.equal(tail(features), whole[1](features))
    assert network_after(whole, set()) is whole
