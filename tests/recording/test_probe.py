"""Tokens lie where their pixels are, in whatever order; what cannot be placed is refused."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import visattn as va
from visattn.attribution.cam import layer_activations
from visattn.attribution.methods import METHODS
from visattn.attribution.targets import resolve_target
from visattn.recording.feature_layers import resolve_feature_layer
from visattn.recording.places import place_tokens
from visattn.recording.probe import probe_model
from visattn.recording.subject import analyze_model

Pair = tuple[int, int]

GRID = (4, 6)
CELLS = GRID[0] * GRID[1]
X = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(5))


class Ordered(nn.Module):
    """Attention among patches in some order, with a class token among them.

    Args:
        order: Patch, by rows, of each token; -1 for the class token.
    """

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.order, self.at = torch.tensor(order), order.index(-1)
        self.embed, self.qkv = nn.Conv2d(3, 32, 8, 8), nn.Linear(32, 96)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 32))
        self.place = nn.Parameter(torch.randn(1, CELLS + 1, 32))
        self.head = nn.Linear(32, 5)
        self.weights = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).mT
        tokens = torch.cat((patches, self.cls_token.expand(len(x), -1, -1)), 1)[:, self.order]
        q, k, v = self.qkv(tokens + self.place).chunk(3, -1)
        self.weights = (q @ k.mT / 32**0.5).softmax(-1)
        return self.head((tokens + self.weights @ v)[:, self.at])


ROWS = list(range(CELLS))
SWAPPED = [ROWS[6 * row + i] for row in (1, 0, 3, 2) for i in range(6)]
ORDERS: dict[str, list[int]] = {
    "front": [-1, *ROWS],
    "middle": [*ROWS[:11], -1, *ROWS[11:]],
    "end": [*ROWS, -1],
    "rows swapped": [-1, *SWAPPED],
    "a row rolled": [-1, *ROWS[:6], *ROWS[8:12], *ROWS[6:8], *ROWS[12:]],
    "far patches swapped": [-1, 22, *ROWS[1:22], 0, 23],
    "by columns": [-1, *(6 * row + i for i in range(6) for row in range(4))],
}


@pytest.mark.parametrize("name", ORDERS)
def test_each_token_has_its_own_place(name: str) -> None:
    model = Ordered(ORDERS[name]).eval()
    [layer] = analyze_model(model, (32, 48)).info.attention_layers
    assert (layer.grid, layer.prefix_tokens) == (GRID, ("class",))
    maps = va.explain(model, X, "attention", 1, input_size=(32, 48))
    model(X)
    row = model.weights[:, model.at]
    for found, weights in zip(maps, row, strict=True):
        expected = torch.empty(CELLS)
        patches = model.order >= 0
        expected[model.order[patches]] = weights[patches]
        torch.testing.assert_close(found.values.flatten(), expected, atol=1e-6, rtol=1e-5)


class Patches(nn.Module):
    """A transformer that cuts patches by a reshape and projects them by a linear layer."""

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
# Size and patch; 4 x 16 cells could be 8 x 8 square ones, 8 x 9 ones are nearly square.
OBLONG = (((96, 96), (24, 6)), ((88, 144), (11, 16)), ((56, 88), (8, 44)))


@pytest.mark.parametrize("name", MODELS)
def test_maps_lie_where_changed_patches_are(name: str) -> None:
    for size, patch in OBLONG:
        torch.manual_seed(5)
        model = MODELS[name](size, patch).eval()
        grid = size[0] // patch[0], size[1] // patch[1]
        case = f"{name}, patches of {patch} on {size}"
        subject = analyze_model(model, size)
        info = subject.info
        placed = [*info.attention_layers, *info.feature_layers]
        assert {layer.grid for layer in placed} == {grid}, case
        x = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(3))
        target = resolve_target(1, subject)
        for method in ("rollout", "gradcam", "legrad"):
            assert METHODS[method].function(subject, x, target).shape == (1, *grid), case
        cell = (grid[0] - 2, 1)
        place = [slice(n * side, (n + 1) * side) for n, side in zip(cell, patch, strict=True)]
        changed = x.clone()
        changed[:, :, *place] += 3
        features: list[Tensor] = []
        with va.record(subject) as recording, torch.no_grad():
            for images in (x, changed):
                layer = info.feature_layers[0]
                features.append(layer_activations(subject, images, target, layer)[0])
        first = info.attention_layers[0].site
        before, after = (each.values for each in recording.maps if each.site == first)
        for change in ((features[1] - features[0]).square().sum((0, 1)),
                       (after - before).abs().sum((0, 1, 2))):  # fmt: skip
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


def test_tokens_that_no_pixel_moves_alone_have_no_place() -> None:
    generator = torch.Generator().manual_seed(0)
    y, x = torch.rand(2, 12, generator=generator)
    one = torch.ones(12)
    scattered = place_tokens(torch.stack([one, y, x, y * y, x * x]), (32, 48))
    assert scattered is None or not scattered.sure
    everywhere = torch.stack([one, 0.5 * one, 0.5 * one, one / 3, one / 3])
    assert place_tokens(everywhere, (32, 48)) is None


class Pixels(nn.Module):
    """A small network behind some function of the photo, and before one of the scores."""

    def __init__(
        self, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Any], channels: int = 3
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.after = before, after
        self.conv, self.head = nn.Conv2d(channels, 8, 8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.head(self.conv(self.before(x)).relu().mean((2, 3))))


def test_images_of_a_batch_that_affect_each_other_are_explained_alone() -> None:
    model = Pixels(lambda x: x - x.mean(0, keepdim=True) / 2, lambda y: y).eval()
    assert not analyze_model(model, (32, 48)).independent
    assert analyze_model(Pixels(lambda x: x, lambda y: y).eval(), (32, 48)).independent
    options: dict[str, Any] = {"input_size": (32, 48), "sliding_window_size": 8, "stride": 8}
    [found] = va.explain(model, X[:1], "occlusion", 1, **options)
    [alone] = va.explain(model, X[:1], "occlusion", 1, internal_batch_size=1, **options)
    torch.testing.assert_close(found.values, alone.values)


@pytest.mark.parametrize(
    "padding",
    [
        (0, 0, 0, 0), (-16, 0, -16, 0), (-8, -8, -8, -8), (-2, -2, -2, -2), (8, 8, 8, 8),
        (16, 0, 0, 0), (0, 0, 0, 8),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["constant", "reflect", "circular"])
def test_a_network_that_cuts_or_pads_its_images_has_no_map_of_features(
    padding: tuple[int, ...], mode: str
) -> None:
    if mode != "constant" and min(padding) < 0:
        pytest.skip("only zeros are cut off")

    def before(images: Tensor) -> Tensor:
        return nn.functional.pad(images, padding, mode=mode)

    subject = analyze_model(Pixels(before, lambda y: y).eval(), (32, 48))
    assert bool(subject.info.features_error) == any(padding)
    assert bool(subject.info.feature_layers) == (not any(padding))
    if any(padding):
        with pytest.raises(ValueError, match="it crops, pads or shifts its images"):
            resolve_feature_layer(subject, "conv")


def test_ranks_are_no_classes() -> None:
    info = analyze_model(Pixels(lambda x: x, lambda y: y.topk(3)[0]).eval(), (32, 48)).info
    assert "columns are ranks" in info.output.error
    assert not analyze_model(Pixels(lambda x: x, lambda y: y).eval(), (32, 48)).info.output.error


def test_a_network_that_makes_photos_gray_itself_takes_colors() -> None:
    gray = Pixels(lambda x: x[:, :3].mean(1, keepdim=True), lambda y: y, channels=1).eval()
    assert len(analyze_model(gray, (32, 48)).info.mean) == 3
    own = Pixels(lambda x: x, lambda y: y, channels=1).eval()
    info = analyze_model(own, (32, 48)).info
    assert len(info.mean) == 1
    assert "converted to gray" in info.colors


class Attention(nn.Module):
    """Self-attention of one head."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / 32**0.5).softmax(-1) @ v


class Pruned(nn.Module):
    """Some tokens are dropped after the first layer, others for each image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.head = nn.Conv2d(3, 32, 8, 8), nn.Linear(32, 5)
        self.layers = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).mT
        x = x + self.layers[0](x)
        kept = x.norm(dim=2).topk(17).indices.sort().values
        x = torch.stack([each[own] for each, own in zip(x, kept, strict=True)])
        for layer in (self.layers[1], self.layers[2]):
            x = x + layer(x)
        return self.head(x.mean(1))


def test_a_map_says_which_layer_it_shows_if_it_is_not_the_last() -> None:
    [found] = va.explain(Pruned().eval(), X[:1], "attention", 1, input_size=(32, 48))
    assert found.info.layer == "layers.0"
    assert found.info.note.startswith("layer 1 of 3; the last 2 not supported: it attends")
    with pytest.raises(ValueError, match=r"layers\.1 is not supported"):
        va.explain(Pruned().eval(), X[:1], "rollout", 1, input_size=(32, 48))


def test_an_error_of_the_model_is_located_in_its_own_code() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x.flatten(1) @ torch.ones(5, 2))

    with pytest.raises(ValueError, match=rf"in {re.escape(__file__)}, line \d+, in forward: "):
        analyze_model(Broken(), (32, 48))
