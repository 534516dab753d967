"""Any module is a feature layer if its output lies on the image; others raise an error."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.attribution import METHODS
from visattn.attribution.cam import activations_and_gradients, grad_cam
from visattn.attribution.targets import resolve_target
from visattn.models.base import SmallEncoder
from visattn.models.unet import UNet
from visattn.recording.feature_layers import bottleneck_layer, resolve_feature_layer
from visattn.recording.subject import analyze_model, describe_model

SIZE = (40, 56)


class Rearrange(nn.Module):
    """Return features in another layout."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        tokens = x.flatten(2).mT
        extra = x.new_zeros(len(x), 2, x.shape[1])
        order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(5))
        outputs: dict[str, Any] = {
            "last": lambda: x.movedim(1, -1),
            "tokens": lambda: tokens,
            "channels first": lambda: tokens.mT,
            "after two": lambda: torch.cat((extra, tokens), 1),
            "before two": lambda: torch.cat((tokens, extra), 1),
            "tuple": lambda: (x, None),
            "mapping": lambda: {"x": x},
            "shuffled": lambda: tokens[:, order],
            "transposed": lambda: x.transpose(2, 3),
            "mirrored": lambda: x.flip(3),
            "dropped": lambda: tokens[:, :24],
            "products": lambda: (tokens @ tokens.mT)[:, None],
            "windows": lambda: x.unflatten(2, (5, -1)).movedim(2, 1).flatten(0, 1),
            "pooled": lambda: x.mean((2, 3)),
            "nothing": lambda: None,
        }
        return outputs[self.kind]()


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.rearrange = nn.Conv2d(3, 11, 8, 8), Rearrange(kind)
        self.head = nn.Linear(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x)
        self.rearrange(features)
        return self.head(features.mean((2, 3)))


def test_layouts_are_measured_with_changed_blocks() -> None:
    expected = {
        "last": ("b y x c", 0, 0),
        "tokens": ("b n c", 0, 0),
        "channels first": ("b c n", 0, 0),
        "after two": ("b n c", 2, 0),
        "before two": ("b n c", 0, 2),
        "tuple": ("b c y x", 0, 0),
        "mapping": ("b c y x", 0, 0),
    }
    for kind, layout in expected.items():
        layer = resolve_feature_layer(analyze_model(Net(kind), SIZE), "rearrange")
        assert (layer.layout, layer.num_prefix_tokens, layer.num_suffix_tokens) == layout, kind
        assert layer.grid == (5, 7), kind


def test_outputs_that_do_not_lie_on_the_image_raise_an_error() -> None:
    for kind in ("mirrored", "dropped", "products", "windows", "pooled", "nothing"):
        with pytest.raises(ValueError, match=r"rearrange of Net .* positions on the image"):
            resolve_feature_layer(analyze_model(Net(kind), SIZE), "rearrange")


CHANGES: dict[str, Any] = {
    "mirrored": lambda x: x.flip(3),
    "upside down": lambda x: x.flip(2),
    "transposed": lambda x: x.mT,
    "turned": lambda x: x.rot90(1, (2, 3)),
    "rolled": lambda x: x.roll(2, 2),
    "halves swapped": lambda x: x.roll(x.shape[3] // 2, 3),
    "cut to four rows": lambda x: x[:, :, :4],
    "padded to twelve rows": lambda x: nn.functional.pad(x, (0, 0, 0, 12 - x.shape[2])),
}


class Changed(nn.Module):
    """A plain network that changes the order of its cells in between, or its images before."""

    def __init__(self, change: Any, before: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.change, self.before = change, before
        self.stem, self.conv = nn.Conv2d(3, 32, 16, 16), nn.Conv2d(32, 32, 3, padding=1)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.change(self.stem(self.before(x) if self.before else x).relu())
        return self.head(self.conv(input=x).relu().mean((2, 3)))  # layers may be called by keyword


def test_what_a_network_changes_between_its_layers_is_never_drawn_as_it_is() -> None:
    plain = analyze_model(Changed(lambda x: x).eval(), (128, 128))
    assert plain.info.feature_layers[-1].site == "conv"
    assert plain.pooled().probe is None  # a plain network needs no probe of all its layers
    for name, change in CHANGES.items():
        info = analyze_model(Changed(change).eval(), (128, 128)).info
        assert "conv" not in [layer.site for layer in info.feature_layers], name
        before = lambda x, change=change: change(x)  # noqa: E731
        if "rows" not in name:
            info = analyze_model(Changed(lambda x: x, before).eval(), (128, 128)).info
            assert info.feature_layers == (), name


class Shared(nn.Module):
    """One in-place activation is called three times, on two grids."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 5, 4, 4), nn.Conv2d(5, 7, 2, 2)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.a(x))
        x = self.act(self.b(x) + 0.1)
        return self.head(self.act(x - 0.05).mean((2, 3)))


def test_the_last_call_counts_or_the_selected_one() -> None:
    model = Shared().eval()
    subject, x = analyze_model(model, SIZE), torch.randn(2, 3, *SIZE)
    first = torch.relu(model.a(x)).detach().requires_grad_()
    second = torch.relu(model.b(first) + 0.1)
    third = torch.relu(second - 0.05)
    score = model.head(third.mean((2, 3)))[:, 1].sum()
    gradients = torch.autograd.grad(score, [first, second, third])
    target = resolve_target(1, subject)
    calls = (("act#1", first), ("act#2", second), ("act#3", third))
    for (name, features), gradient in zip(calls, gradients, strict=True):
        layer = resolve_feature_layer(subject, name)
        assert layer.call == int(name[-1])
        [(activations, gradient_of_layer)] = activations_and_gradients(subject, x, target, layer)
        torch.testing.assert_close(activations, features.detach())
        torch.testing.assert_close(gradient_of_layer, gradient)
    last = grad_cam(third.detach(), gradients[2])
    for layer in ("act", model.act):
        assert resolve_feature_layer(subject, layer).call == 3
        torch.testing.assert_close(
            METHODS["gradcam"].function(subject, x, target, layers=layer), last
        )
    with pytest.raises(ValueError, match="a call of the module, act#1 to act#3; got act#0"):
        resolve_feature_layer(subject, "act#0")


def test_blocks_of_oblong_images_are_as_oblong() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.Identity(), nn.Flatten(), nn.Linear(1800, 2))
    subject = analyze_model(model, (24, 240))
    for image in (subject, analyze_model(model, (240, 24))):
        layer = resolve_feature_layer(image, "1")
        assert layer.grid == tuple(side // 4 for side in image.info.input_size)


class Beside(Net):
    """Tokens on a finer grid than the features that are pooled."""

    def __init__(self, kind: str, sides: tuple[int, int]) -> None:
        super().__init__(kind)
        self.coarse = nn.Conv2d(3, 11, sides, sides)

    def forward(self, x: Tensor) -> Tensor:
        self.rearrange(self.first(x))
        return self.head(self.coarse(x).relu().mean((2, 3)))


def test_a_grid_may_have_one_row() -> None:
    for kind in ("tokens", "channels first"):
        for size, grid, sides in (((8, 64), (1, 8), (8, 16)), ((64, 8), (8, 1), (16, 8))):
            subject = analyze_model(Beside(kind, sides).eval(), size)
            assert grid not in {layer.grid for layer in subject.info.feature_layers}
            assert resolve_feature_layer(subject, "rearrange").grid == grid


class EncoderAndHead(nn.Module):
    """An encoder and a decoder without modules of their own."""

    def __init__(self, *encoder: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, layer in zip(("a", "b", "c"), encoder, strict=False):
            self.add_module(name, layer)
        self.encoder, self.head = list(encoder), nn.Conv2d(5, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.encoder:
            x = layer(x)
        return nn.functional.interpolate(self.head(x), (24, 40))


def test_depthwise_convolutions_are_no_bottleneck() -> None:
    stem, pointwise = nn.Conv2d(3, 5, 2, 2), nn.Conv2d(5, 5, 1)
    for groups, site in ((1, "b"), (5, "c")):
        down = nn.Conv2d(5, 5, 3, 2, 1, groups=groups)
        subject = describe_model(EncoderAndHead(stem, down, pointwise).eval(), (24, 40))
        assert bottleneck_layer(subject).site == site


def test_a_model_without_a_grid_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2880, 7)).eval()
    with pytest.raises(ValueError, match="no layer with features on a grid"):
        bottleneck_layer(describe_model(model, (24, 40)))


def test_a_map_whose_lines_see_the_whole_image_is_followed_to_the_map_before() -> None:
    for seed, block in ((7, None), (16, "gate")):
        torch.manual_seed(seed)
        model = UNet(("a", "b", "c"), SmallEncoder((24, 40), channels=8), block=block).eval()
        layer = bottleneck_layer(describe_model(model))
        assert (layer.site, layer.grid) == ("encoder.refine", (3, 5))
        assert describe_model(model).probe.once(layer.site) is None
