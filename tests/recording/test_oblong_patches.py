"""Patches that are not square: grids are measured, and no other grid of as many cells is taken."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from visattn.attribution.layer_outputs import layer_activations
from visattn.attribution.methods import METHODS
from visattn.attribution.targets import resolve_target
from visattn.recording.feature_layers import measure_feature_layer
from visattn.recording.probe import probe_model
from visattn.recording.recorder import record
from visattn.recording.subject import analyze_model

Pair = tuple[int, int]


class Patches(nn.Module):
    """A transformer that cuts patches by a reshape and projects them by a linear layer.

    Args:
        size: Height and width of the images.
        patch: Height and width of a patch.
        by_columns: Whether the patches are taken column by column.
    """

    def __init__(self, size: Pair, patch: Pair, *, by_columns: bool = False) -> None:
        super().__init__()
        self.grid = size[0] // patch[0], size[1] // patch[1]
        self.patch, self.by_columns = patch, by_columns
        self.proj = nn.Linear(3 * patch[0] * patch[1], 12)
        self.pos = nn.Parameter(torch.randn(1, self.grid[0] * self.grid[1], 12) / 3)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(12, 2, 17, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        (rows, columns), (height, width) = self.grid, self.patch
        patches = x.unflatten(3, (columns, width)).unflatten(2, (rows, height))
        order = (0, 4, 2, 1, 3, 5) if self.by_columns else (0, 2, 4, 1, 3, 5)
        x = self.proj(patches.permute(order).flatten(3).flatten(1, 2)) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.fc(x.mean(1))


def timm_model(size: Pair, patch: Pair) -> nn.Module:
    sizes: dict[str, Any] = {"img_size": size, "patch_size": patch}
    return VisionTransformer(**sizes, embed_dim=12, depth=2, num_heads=2, num_classes=5)


MODELS: dict[str, Callable[[Pair, Pair], nn.Module]] = {
    "timm": timm_model,
    "reshape": Patches,
    "by columns": partial(Patches, by_columns=True),
}
# Size and patch; 4 x 16 cells could be 8 x 8 square ones, 12 x 16 ones are nearly square.
CASES: tuple[tuple[Pair, Pair], ...] = (
    ((104, 112), (8, 16)),
    ((96, 96), (24, 6)),
    ((112, 56), (16, 4)),
    ((132, 176), (12, 16)),
    ((56, 88), (8, 44)),
)


@pytest.mark.parametrize("name", MODELS)
def test_maps_lie_where_changed_patches_are(name: str) -> None:
    for size, patch in CASES:
        torch.manual_seed(5)
        model = MODELS[name](size, patch).eval()
        grid = size[0] // patch[0], size[1] // patch[1]
        case = f"{name}, patches of {patch} on {size}"
        subject = analyze_model(model, size)
        layers = subject.info.attention_layers
        assert [layer.grid for layer in layers] == [grid, grid], case
        site = subject.info.feature_layers[-1].site
        assert subject.info.feature_layers[-1].grid == grid, case
        assert measure_feature_layer(subject, site, None).grid == grid, case
        x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(3))
        target = resolve_target(1, subject)
        for method in ("attention", "rollout", "relevance", "gradcam", "legrad"):
            assert METHODS[method].function(subject, x, target).shape == (1, *grid), (
                case,
                method,
            )
        cell = (grid[0] - 2, 1)
        place = [slice(n * side, (n + 1) * side) for n, side in zip(cell, patch, strict=True)]
        changed = x.clone()
        changed[:, :, *place] += 3
        features: list[Tensor] = []
        attention: list[Tensor] = []
        first = subject.info.feature_layers[0]
        for images in (x, changed):
            features.append(layer_activations(subject, images, target, first)[0])
            with record(model) as recording, torch.no_grad():
                subject.forward(images)
            attention.append(recording.maps[0].values)
        change = (features[1] - features[0]).square().sum((0, 1))
        assert divmod(int(change.argmax()), grid[1]) == cell, case
        change = (attention[1] - attention[0]).abs().sum((0, 1, 2))
        assert divmod(int(change.argmax()), grid[1]) == cell, case


def test_smooth_features_are_not_read_on_another_grid() -> None:
    class Smooth(nn.Module):
        """Features with large receptive fields, as tokens."""

        def forward(self, x: Tensor) -> Tensor:
            x = avg_pool2d(x, patch)
            for _ in range(rounds):
                x = avg_pool2d(x, 5, 1, 2)
            return x.flatten(2).mT

    for *size, height, width in ((64, 112, 8, 8), (112, 112, 16, 4), (96, 96, 6, 24)):
        patch, grid = (height, width), (size[0] // height, size[1] // width)
        for rounds in range(4):
            layer = probe_model(nn.Sequential(Smooth()), (size[0], size[1]), 3).once("0")
            assert layer is None or layer.grid == grid, (size, patch, rounds)
            assert layer or rounds, (size, patch)
