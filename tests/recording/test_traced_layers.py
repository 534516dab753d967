"""Layers and tokens by arithmetic: what pixels show, and left to pixels where it is open."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from visattn.attribution.explained_model import analyze_model
from visattn.recording import probe_cache
from visattn.recording.model_info import ModelInfo

SWIN: dict[str, Any] = {"depths": (2, 2), "num_heads": (1, 2), "embed_dim": 8, "window_size": 4}
TINY: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "test_resnet": (lambda: timm.create_model("test_resnet"), (64, 96)),
    "test_convnext": (lambda: timm.create_model("test_convnext"), (64, 96)),
    "test_vit": (lambda: timm.create_model("test_vit", img_size=(64, 96)), (64, 96)),
    "swin": (
        lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=(64, 96), **SWIN),
        (64, 96),
    ),
}


def analyzed(model: nn.Module, size: tuple[int, int]) -> tuple[ModelInfo, set[int]]:
    """Return the metadata of a model, and with how many images it ran."""
    batches = set[int]()
    handle = model.register_forward_pre_hook(
        lambda _, args: None if args[0].is_meta else batches.add(len(args[0]))
    )
    info = analyze_model(model.eval(), size).info
    handle.remove()
    return info, batches


@pytest.mark.parametrize("name", TINY)
def test_arithmetic_says_what_changed_pixels_show(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, size = TINY[name]
    infos: list[ModelInfo] = []
    for without_images in (probe_cache._probe_without_images, lambda *_: None):
        torch.manual_seed(0)
        monkeypatch.setattr(probe_cache, "_probe_without_images", without_images)
        info, batches = analyzed(build(), size)
        infos.append(info)
        assert (4 in batches) == (len(infos) == 2)
    assert infos[0] == infos[1]
    assert infos[0].feature_layers


class Changed(nn.Module):
    """Features that lie elsewhere than their indices say, or whose place is lost."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 1))
        self.change = change
        self.last = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.change(self.body(x))).mean((2, 3)))


def by_value(x: Tensor) -> Tensor:
    """Return features that are turned around on images, but not on zeros."""
    return x.flip(2) if x.std() > 0.01 else x


def shuffled(x: Tensor) -> Tensor:
    return x[:, :, torch.randperm(x.shape[2], generator=torch.Generator().manual_seed(1))]


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "flipped": lambda x: x.flip(2),
    "shuffled": shuffled,
    "a corner": lambda x: x[:, :, :4, :6],
    "by value": by_value,
    "rolled": lambda x: x.roll((4, 6), (2, 3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_features_out_of_place_are_left_to_pixels_and_refused(change: str) -> None:
    info, batches = analyzed(Changed(CHANGES[change]), (32, 48))
    assert 4 in batches
    assert all(layer.site != "last" for layer in info.feature_layers)
