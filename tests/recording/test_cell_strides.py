"""Cells of feature maps lie where their pixels are: from edge to edge, or inside of a margin."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d, relu

import visattn as va
from visattn.recording.feature_layers import resolve_feature_layer
from visattn.recording.subject import analyze_model, describe_model

IMAGES = tuple[int, int]


class LeNet(nn.Module):
    """Convolutions without padding, and pooling by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 8, 5)
        self.head = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = max_pool2d(relu(self.first(x)), 2)
        return self.head(max_pool2d(relu(self.second(x)), 2).flatten(1))


class Resized(nn.Module):
    """A network that gets its images at another size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 4, 2, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.conv(interpolate(x, (16, 32), mode="bilinear")).mean((2, 3)))


def nature() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 8, 4, 2), nn.ReLU(), nn.Conv2d(8, 8, 3),
        nn.ReLU(), nn.Flatten(), nn.LazyLinear(4),
    )  # fmt: skip


def padded(kernel: int) -> nn.Sequential:
    steps = (nn.Conv2d(3 if i == 0 else 4, 4, kernel, 2, 1) for i in range(3))
    return nn.Sequential(*steps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def looked_at(model: nn.Module, layer: str, size: IMAGES, cell: tuple[int, int]) -> Tensor:
    """Return the center (x, y) of the pixels of the input that change a cell."""
    subject = analyze_model(model, size)
    found = resolve_feature_layer(subject, layer)
    outputs: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda *c: outputs.append(c[-1]))
    x = torch.rand(64, 3, *size, requires_grad=True)
    model(x)
    handle.remove()
    found.to_grid(outputs[0])[:, :, cell[0], cell[1]].sum().backward()
    assert x.grad is not None
    rows, columns = (x.grad.abs().sum((0, 1)) > 0).nonzero(as_tuple=True)
    ends = [(float(i.min()) + float(i.max()) + 1) / 2 for i in (columns, rows)]
    return torch.tensor(ends)


def drawn_at(model: nn.Module, layer: str, size: IMAGES, cell: tuple[int, int]) -> Tensor:
    """Return where the center (x, y) of a cell of a map of Grad-CAM is drawn."""
    photo = np.zeros((*size, 3), np.uint8)
    [heatmap] = va.explain(model, photo, "gradcam", layers=layer, input_size=size)
    geometry = heatmap.geometry
    assert geometry is not None
    (rows, columns), (height, width) = heatmap.values.shape, geometry.input_size
    center = torch.tensor([(cell[1] + 0.5) / columns * width, (cell[0] + 0.5) / rows * height])
    return geometry.to_image(center[None])[0]


# Without padding cells lie over what they see; with it from edge to edge, which is within half a
# cell of that. One pixel is the rounding to whole ones.
STRIDES: list[tuple[Callable[[], nn.Module], str, IMAGES, float]] = [
    (nature, "4", (84, 100), 1.0),
    (nature, "0", (84, 84), 1.0),
    (LeNet, "second", (28, 32), 1.0),
    (partial(padded, 4), "2", (64, 96), 0.08),
    (partial(padded, 3), "2", (64, 96), 4.0),
]


@pytest.mark.parametrize(("build", "layer", "size", "pixels"), STRIDES)
def test_cells_are_drawn_over_the_pixels_that_they_see(
    build: Callable[[], nn.Module], layer: str, size: IMAGES, pixels: float
) -> None:
    torch.manual_seed(0)
    model = build().eval()
    model(torch.zeros(1, 3, *size))
    for cell in ((0, 0), (3, 2), (2, 5)) if layer != "2" else ((4, 5),):
        drawn = drawn_at(model, layer, size, cell)
        torch.testing.assert_close(drawn, looked_at(model, layer, size, cell), atol=pixels, rtol=0)
        assert layer != "2" or drawn.tolist() == [5.5 * 8, 4.5 * 8]


def test_what_a_network_resizes_itself_lies_from_edge_to_edge() -> None:
    assert describe_model(Resized(), (32, 48)).margin((8, 16)) == (0, 0)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_035", "vit_tiny_patch16_224"])
def test_networks_of_timm_have_no_margin(name: str) -> None:
    model = timm.create_model(name).eval()
    grid = (14, 14) if name.startswith("vit") else (7, 7)
    assert describe_model(model, (224, 224)).margin(grid) == (0, 0)


def test_a_recorded_gate_lies_where_the_explained_one_does() -> None:
    torch.manual_seed(0)
    model = nature()
    model(torch.zeros(1, 3, 84, 84))
    example = torch.zeros(1, 3, 84, 84)
    va.insert(model, "spatial", position=lambda name, _: name == "4", example=example)
    photo = np.random.default_rng(0).integers(0, 256, (168, 168, 3), np.uint8)
    explainer = va.Explainer(model.eval(), input_size=84)
    batch = explainer.prepare(photo)
    [gate] = explainer.map(batch, "gates")
    with va.record(model) as recording:
        model(batch.inputs)
    [recorded] = (each for each in recording.maps if each.kind == "gate")
    assert gate.margin == recorded.margin == (14, 14)
    again = recorded.with_geometry(batch.geometries[0])
    assert again.geometry == gate.geometry
    assert gate.input_geometry == batch.geometries[0]
    restored = va.AttentionMap.from_dict(gate.to_dict())
    assert (restored.margin, restored.geometry) == (gate.margin, gate.geometry)


def test_attributions_of_the_input_have_its_size() -> None:
    torch.manual_seed(0)
    model = nature()
    model(torch.zeros(1, 3, 84, 84))
    [heatmap] = va.explain(model.eval(), torch.rand(1, 3, 84, 84), "gradcam", layers="4")
    fine = heatmap.to_attributions()
    assert fine.shape == (1, 3, 84, 84)
    own = heatmap.resize_to_image()
    torch.testing.assert_close(fine[0].sum(0)[14:70, 14:70], own[14:70, 14:70])
