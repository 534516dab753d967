"""Receptive fields by arithmetic against gradients of cells, and what the arithmetic follows."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, pad, pixel_shuffle, unfold

from visattn.attribution.explained_model import analyze_model
from visattn.geometry.placement import GridPlacement
from visattn.recording.feature_layers import measured_placement, resolve_feature_layer
from visattn.recording.model_info import ExplainedModel, FeatureLayer, ModelInfo
from visattn.recording.receptive_field import trace_grids

SIZE = (64, 96)


def starts_and_steps(placement: GridPlacement | None, grid: tuple[int, int]) -> list[float]:
    assert placement is not None
    rows, columns = placement.centers(grid)
    return [float(rows[0]), float(columns[0]), *placement.step(grid)]


class Function(nn.Module):
    """A function of images as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def trace(function: Callable[[Tensor], Tensor], grid: tuple[int, int]) -> GridPlacement | None:
    model = nn.Sequential(Function(function))
    traced = trace_grids(model, model, (2, 3, *SIZE))
    assert traced.error == ""
    return traced.output("0", grid)


def tokens_with_class(x: Tensor) -> Tensor:
    tokens = patches(x)
    tokens = torch.cat((tokens.new_zeros(len(x), 1, 6), tokens), 1)
    return tokens + torch.randn(1, 97, 6)


def fewer_tokens_around(x: Tensor) -> Tensor:
    """Cells between a class token and two registers, which are cut off one by one."""
    tokens = patches(x)
    extra = tokens.new_zeros(len(x), 1, 6)
    return torch.cat((extra, tokens, extra, extra), 1)[:, 1:-1][:, :-1]


def in_a_buffer(x: Tensor) -> Tensor:
    tokens = patches(x)
    buffer = tokens.new_zeros(len(x), 97, 6)
    buffer[:, 1:] = tokens
    return buffer


def patches(x: Tensor) -> Tensor:
    return conv2d(x, torch.ones(6, 3, 8, 8), stride=8).flatten(2).mT


def windows(x: Tensor) -> Tensor:
    """Shifted windows of 4 x 4 cells, and back."""
    rolled = torch.roll(x, (-2, -2), (2, 3)).view(-1, 3, 16, 4, 24, 4)
    parts = rolled.permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, 3)
    mixed = torch.softmax(parts @ parts.mT, -1) @ parts
    merged = mixed.view(-1, 16, 24, 4, 4, 3).permute(0, 5, 1, 3, 2, 4).reshape(-1, 3, 64, 96)
    return torch.roll(merged, (2, 2), (2, 3))


def test_operations_move_centers() -> None:
    ones = torch.ones(3, 3, 3, 3)
    cases: list[tuple[str, Callable[[Tensor], Tensor], tuple[int, int], list[float]]] = [
        ("convolution", lambda x: conv2d(x, ones, stride=2, padding=1), (32, 48), [0.5, 0.5, 2, 2]),
        ("dilation", lambda x: conv2d(x, ones, dilation=3), (58, 90), [3.5, 3.5, 1, 1]),
        ("patches", patches, (8, 12), [4, 4, 8, 8]),
        ("class token", tokens_with_class, (8, 12), [4, 4, 8, 8]),
        ("registers", fewer_tokens_around, (8, 12), [4, 4, 8, 8]),
        ("buffer", in_a_buffer, (8, 12), [4, 4, 8, 8]),
        ("without it", lambda x: tokens_with_class(x)[:, 1:], (8, 12), [4, 4, 8, 8]),
        ("same", lambda x: conv2d(pad(x, (0, 1, 0, 1)), ones, stride=2), (32, 48),
            [1.5, 1.5, 2, 2]),
        ("crop", lambda x: x[..., 8:40, 16:64], (32, 48), [8.5, 16.5, 1, 1]),
        ("every third", lambda x: x[:, :, 1::3, 2::3], (21, 32), [1.5, 2.5, 3, 3]),
        ("max pooling", lambda x: nn.functional.max_pool2d(x, 3, 2, 1), (32, 48), [0.5, 0.5, 2, 2]),
        ("average pooling", lambda x: nn.functional.avg_pool2d(x, 2), (32, 48), [1, 1, 2, 2]),
        ("adaptive pooling", lambda x: nn.functional.adaptive_avg_pool2d(x, (8, 12)), (8, 12),
            [4, 4, 8, 8]),
        ("nearest", lambda x: interpolate(x[:, :, ::2, ::2], scale_factor=2), (64, 96),
            [0, 0, 1, 1]),
        ("bilinear", lambda x: interpolate(x, (16, 24), mode="bilinear"), (16, 24), [2, 2, 4, 4]),
        ("corners", lambda x: interpolate(x, (22, 20), mode="bilinear", align_corners=True),
            (22, 20), [0.5, 0.5, 3, 5]),
        ("transposed", lambda x: nn.functional.conv_transpose2d(
            x[:, :, ::2, ::2], torch.ones(3, 2, 2, 2), stride=2), (64, 96), [0, 0, 1, 1]),
        ("pixel shuffle", lambda x: pixel_shuffle(
            x[:, :1, ::2, ::2].expand(-1, 4, -1, -1), 2), (64, 96), [0, 0, 1, 1]),
        ("space to depth", lambda x: conv2d(x.view(-1, 3, 32, 2, 48, 2).permute(0, 3, 5, 1, 2, 4)
            .reshape(-1, 12, 32, 48), torch.ones(5, 12, 1, 1)), (32, 48), [1, 1, 2, 2]),
        ("interleaved", lambda x: torch.cat([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)],
            1), (32, 48), [1, 1, 2, 2]),
        ("unfold", lambda x: unfold(x, 4, padding=1, stride=4).mT @ torch.ones(48, 5), (16, 24),
            [1, 1, 4, 4]),
        ("windows", windows, (64, 96), [0.5, 0.5, 1, 1]),
        ("rolled back", lambda x: torch.roll(nn.functional.avg_pool2d(torch.roll(
            x, (-2, 4), (2, 3)), 2), (1, -2), (2, 3)), (32, 48), [1, 1, 2, 2]),
        ("split", lambda x: x.split([24, 40], 2)[1].chunk(3, 3)[2], (40, 32),
            [24.5, 64.5, 1, 1]),
        ("unbind", lambda x: patches(x)[:, None].unbind(1)[0], (8, 12), [4, 4, 8, 8]),
        ("unbind the first axis", lambda x: x[None].unbind()[0], (64, 96), [0.5, 0.5, 1, 1]),
        ("repeat", lambda x: x[:, 0].repeat(2, 5, 1, 1), (64, 96), [0.5, 0.5, 1, 1]),
        ("dilated pooling", lambda x: nn.functional.max_pool2d(x, 3, 1, dilation=2), (60, 92),
            [2.5, 2.5, 1, 1]),
        ("flip", lambda x: x.flip(2), (64, 96), [63.5, 0.5, -1, 1]),
        ("attention", lambda x: nn.functional.scaled_dot_product_attention(
            patches(x), patches(x), patches(x)), (8, 12), [4, 4, 8, 8]),
        ("channel gate", lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(), (64, 96),
            [0.5, 0.5, 1, 1]),
        ("coordinate gate", lambda x: x * x.mean(2, keepdim=True) * x.mean(3, keepdim=True),
            (64, 96), [0.5, 0.5, 1, 1]),
        ("mixing", lambda x: patches(x) + (patches(x).mT @ torch.ones(96, 96)).mT, (8, 12),
            [4, 4, 8, 8]),
    ]  # fmt: skip
    for name, function, grid, expected in cases:
        placement = trace(function, grid)
        assert starts_and_steps(placement, grid) == pytest.approx(expected), name
        if name in ("patches", "crop", "flip"):
            assert (placement and placement.covered) == {"crop": (16, 8, 64, 40)}.get(name)


def test_what_cannot_be_followed_is_lost() -> None:
    order = torch.randperm(96, generator=torch.Generator().manual_seed(0))
    cases: list[tuple[Callable[[Tensor], Tensor], tuple[int, int]]] = [
        (lambda x: x[..., order], SIZE),
        (lambda x: x.cumsum(3), SIZE),
        (lambda x: torch.fft.fft2(x).real, SIZE),
        (lambda x: torch.roll(x, 5, 3), SIZE),
        (lambda x: x.mean((2, 3), keepdim=True), (1, 1)),
        (lambda x: x[:, :, ::2, ::2] + x[:, :, :32, :48], (32, 48)),
    ]
    for index, (function, grid) in enumerate(cases):
        placement = trace(function, grid)
        lost = placement is None or (placement.covered is None and grid == (1, 1))
        assert lost, index


def test_branches_give_their_mean_and_how_far_they_lie_apart() -> None:
    def branches(x: Tensor) -> Tensor:
        padded = conv2d(x, torch.ones(3, 3, 3, 3), stride=2, padding=1)
        return padded + nn.functional.avg_pool2d(x, 2)

    placement = trace(branches, (32, 48))
    assert placement is not None
    assert placement.spread == (0.5, 0.5)
    assert starts_and_steps(placement, (32, 48)) == [0.75, 0.75, 2, 2]


def test_a_crop_is_all_that_cells_see() -> None:
    def cropped(x: Tensor) -> Tensor:
        return conv2d(x[..., 8:40, 16:64], torch.ones(2, 3, 8, 8), stride=8)

    placement = trace(cropped, (4, 6))
    assert placement is not None
    assert placement.extent == placement.covered == (16, 8, 64, 40)


def test_models_that_read_their_activations_run_on_zeros() -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :, ::2, ::2] if float(x.sum()) == 0 else x

    model = nn.Sequential(Reads())
    traced = trace_grids(model, model, (2, 3, *SIZE))
    assert starts_and_steps(traced.output("0", (32, 48)), (32, 48)) == [0.5, 0.5, 2, 2]


def test_centers_are_followed_in_inference_mode_too() -> None:
    def function(x: Tensor) -> Tensor:
        x = conv2d(x, torch.ones(3, 3, 3, 3), stride=2, padding=1)
        return nn.functional.linear(x.flatten(2).mT, torch.ones(5, 3))

    with torch.inference_mode():
        inside = trace(function, (32, 48))
    assert inside is not None
    assert inside == trace(function, (32, 48))


def test_a_model_is_not_changed() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trace_grids(model, model, (2, 3, *SIZE))
    assert model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def gradient_center(model: nn.Module, site: str, grid: tuple[int, int]) -> list[float]:
    """Return the centroid of the squared input gradient of the middle cell, in pixels."""
    random = torch.Generator().manual_seed(1)
    images = torch.randn(4, 3, *SIZE, generator=random).requires_grad_()
    outputs: list[Tensor] = []
    handle = model.get_submodule(site).register_forward_hook(lambda *call: outputs.append(call[2]))
    model(images)
    handle.remove()
    features = outputs[-1]
    if features.ndim == 3:
        features = features[:, -grid[0] * grid[1] :].mT.unflatten(-1, grid)
    cell = features[:, :, grid[0] // 2, grid[1] // 2]
    mixtures = torch.randn(8, features.shape[1], generator=random)
    density = torch.zeros(SIZE, dtype=torch.float64)
    for mixture in mixtures:
        [gradient] = torch.autograd.grad((cell @ mixture).sum(), images, retain_graph=True)
        density += gradient.double().square().sum((0, 1))
    rows, columns = (torch.arange(side).double() + 0.5 for side in SIZE)
    total = density.sum()
    return [float(density.sum(1) @ rows / total), float(density.sum(0) @ columns / total)]


def test_centers_equal_those_of_gradients() -> None:
    torch.manual_seed(3)
    models = {
        "test_resnet": "layer4", "test_efficientnet": "blocks.4", "test_byobnet": "stages.3",
        "test_convnext2": "stages.3", "test_nfnet": "stages.3", "test_vit": "blocks.1",
    }  # fmt: skip
    moved = 0
    for name, site in models.items():
        options: dict[str, Any] = {"img_size": SIZE} if name == "test_vit" else {}
        model: Any = timm.create_model(name, **options)
        explained = analyze_model(model.eval(), SIZE)
        layer = resolve_feature_layer(explained, site)
        placement, grid = layer.placement, layer.grid
        assert placement is not None, name
        centers, step = placement.centers(grid), placement.step(grid)
        measured = gradient_center(model, site, grid)
        for axis in (0, 1):
            expected = float(centers[axis][grid[axis] // 2])
            assert abs(measured[axis] - expected) / step[axis] < 0.06, (name, axis)
        moved += max(map(abs, placement.shift(grid))) > 0.04
    assert moved >= 3


def test_where_branches_disagree_the_weights_decide() -> None:
    class Branches(nn.Module):
        """A padded convolution beside average pooling, weighted."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 6, 4, 4)
            self.conv = nn.Conv2d(6, 6, 3, 2, 1)
            self.merge, self.fc = nn.Identity(), nn.Linear(6, 5)
            self.share = share
            nn.init.constant_(self.conv.weight, 0.1)  # a symmetric field

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x).relu()
            x = self.share * self.conv(x) + (1 - self.share) * nn.functional.avg_pool2d(x, 2)
            return self.fc(self.merge(x * 1).relu().mean((2, 3)))

    starts: list[float] = []
    for share in (1.0, 0.0):
        torch.manual_seed(5)
        explained = analyze_model(Branches(share).eval(), SIZE)
        placement = resolve_feature_layer(explained, "merge").placement
        assert placement is not None
        assert placement.evidence == "gradient"
        starts.append(float(placement.centers((8, 12))[0][0]))
    # 8 i + 2 of the convolution, 8 i + 4 of the pooling
    assert starts == pytest.approx([2, 4], abs=0.4)


class Backwardless(torch.autograd.Function):
    """Branches that disagree, without a backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise NotImplementedError("no backward pass")


def test_where_no_gradient_can_be_measured_the_mean_of_the_branches_stays() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv = nn.Conv2d(3, 6, 4, 4), nn.Conv2d(6, 6, 3, 2, 1)
            self.merge = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(Backwardless.apply(x))
            return self.merge(self.conv(x) + nn.functional.avg_pool2d(x, 2))

    model = Net().eval()
    info = ModelInfo("net", "other", SIZE, (0.5,) * 3, (0.5,) * 3, "none")
    explained = ExplainedModel(model, info, model)
    traced = trace_grids(model, model, (2, 3, *SIZE)).output("merge", (8, 12))
    assert traced is not None
    assert max(traced.spread) > 0
    layer = FeatureLayer("merge", "b c y x", (8, 12))
    assert measured_placement(explained, layer, traced) == traced


def test_gated_linear_units_keep_centers_unless_they_fold_columns() -> None:
    gated = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GLU(1))
    traced = trace_grids(gated, gated, (2, 3, 12, 20))
    assert traced.output("1", (6, 10)) == traced.output("0", (6, 10))
    assert traced.output("1", (6, 10)) is not None
    folded = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GLU(3))
    assert trace_grids(folded, folded, (2, 3, 12, 20)).output("1", (6, 5)) is None
