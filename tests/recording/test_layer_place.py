"""Any module is a layer of gradient maps if its output lies on the image, or is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.attribution.cam import activations_and_gradients, gradcam
from visattn.attribution.explained_model import subject_of
from visattn.attribution.targets import target_of
from visattn.functional.attribution.cam import grad_cam
from visattn.recording.feature_layers import feature_site

SIZE = (40, 56)


class Turned(nn.Module):
    """Puts features out in another layout."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        tokens = x.flatten(2).mT
        extra = x.new_zeros(len(x), 2, x.shape[1])
        order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(5))
        ways: dict[str, Any] = {
            "last": lambda: x.movedim(1, -1),
            "tokens": lambda: tokens,
            "channels first": lambda: tokens.mT,
            "after two": lambda: torch.cat((extra, tokens), 1),
            "before two": lambda: torch.cat((tokens, extra), 1),
            "tuple": lambda: (x, None),
            "mapping": lambda: {"x": x},
            "shuffled": lambda: tokens[:, order],
            "turned": lambda: x.transpose(2, 3),
            "mirrored": lambda: x.flip(3),
            "dropped": lambda: tokens[:, :24],
            "products": lambda: (tokens @ tokens.mT)[:, None],
            "windows": lambda: x.unflatten(2, (5, -1)).movedim(2, 1).flatten(0, 1),
            "pooled": lambda: x.mean((2, 3)),
            "nothing": lambda: None,
        }
        return ways[self.kind]()


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.turned = nn.Conv2d(3, 11, 8, 8), Turned(kind)
        self.head = nn.Linear(11, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.first(x)
        self.turned(features)
        return self.head(features.mean((2, 3)))


def test_layouts_are_recognized_by_where_changed_blocks_show() -> None:
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
        site = feature_site(subject_of(Net(kind), SIZE), "turned")
        assert (site.layout, site.before, site.after) == layout, kind
        assert site.grid == (5, 7), kind


def test_what_does_not_lie_on_the_image_is_refused_by_name() -> None:
    for kind in ("shuffled", "turned", "mirrored", "dropped", "products"):
        with pytest.raises(ValueError, match=r"turned of Net puts out .* not show at their place"):
            feature_site(subject_of(Net(kind), SIZE), "turned")
    for kind in ("windows", "pooled"):
        with pytest.raises(ValueError, match="no features on a grid of each image"):
            feature_site(subject_of(Net(kind), SIZE), "turned")
    with pytest.raises(ValueError, match="does not run, or puts out no tensor"):
        feature_site(subject_of(Net("nothing"), SIZE), "turned")


class Shared(nn.Module):
    """One activation runs three times, at the end in place, on two grids."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(3, 5, 4, 4), nn.Conv2d(5, 7, 2, 2)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.a(x))
        x = self.act(self.b(x) + 0.1)
        return self.head(self.act(x - 0.05).mean((2, 3)))


def test_of_several_runs_the_last_counts_or_the_one_that_is_named() -> None:
    model = Shared().eval()
    subject, x = subject_of(model, SIZE), torch.randn(2, 3, *SIZE)
    one = torch.relu(model.a(x)).detach().requires_grad_()
    two = torch.relu(model.b(one) + 0.1)
    three = torch.relu(two - 0.05)
    score = model.head(three.mean((2, 3)))[:, 1].sum()
    gradients = torch.autograd.grad(score, [one, two, three])
    target = target_of(1, subject)
    runs = (("act#1", one), ("act#2", two), ("act#3", three))
    for (layer, features), gradient in zip(runs, gradients, strict=True):
        site = feature_site(subject, layer)
        assert site.run == int(layer[-1])
        found, own = activations_and_gradients(subject, x, target, site)
        torch.testing.assert_close(found, features.detach())
        torch.testing.assert_close(own, gradient)
    last = grad_cam(three.detach(), gradients[2])
    for layer in ("act", model.act):
        assert feature_site(subject, layer).run == 3
        torch.testing.assert_close(gradcam(subject, x, target, layer=layer), last)
    with pytest.raises(ValueError, match="one of its 3 runs, counted from 1: act#1 to act#3"):
        feature_site(subject, "act#0")


def test_modules_that_are_none_are_refused_with_close_ones() -> None:
    subject = subject_of(Shared(), SIZE)
    with pytest.raises(ValueError, match="no features at layer 'heed'; did you mean head"):
        feature_site(subject, "heed")
    with pytest.raises(ValueError, match="no features at layer 'act#x'; did you mean act"):
        feature_site(subject, "act#x")
    with pytest.raises(ValueError, match="a module of the Shared, got a ReLU that is no part"):
        feature_site(subject, nn.ReLU())
    assert all(not part._forward_hooks for part in subject.model.modules())
