"""Maps that are computed where a window changed them equal those of whole images."""

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from visattn.attribution.perturbation import occlusion, occlusion_windows, window_masks
from visattn.attribution.targets import ClassTarget
from visattn.attribution.windowed_batch import WindowedBatch, windowed_batch
from visattn.recording.model_info import ExplainedModel, ModelInfo

SIZE = (61, 73)
WINDOWS = occlusion_windows(SIZE, window_size=(11, 13), stride=(7, 11))[::7]


class Branches(nn.Module):
    """Branches of unequal reach, in place and joined; no module is like its neighbor."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 5, (5, 3), stride=2, padding=(1, 2))
        self.norm = nn.BatchNorm2d(5)
        self.deep = nn.Conv2d(5, 5, 3, padding=2, dilation=2, groups=5)
        self.wide = nn.Conv2d(10, 7, 2, stride=(1, 2))
        self.scale = nn.Parameter(torch.rand(7, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu_()
        pooled = F.avg_pool2d(F.pad(x, (1, 0, 1, 0), value=0.5).mul_(2), 2, 1)
        branch = F.hardswish(self.deep(x))
        branch += x
        x = self.wide(torch.cat([branch, pooled], 1)) * self.scale
        return F.max_pool2d(x, 3, 2, 1)


def whole_and_windowed(model: nn.Module, images: Tensor, baseline: Tensor) -> tuple[Tensor, Tensor]:
    masks = window_masks(WINDOWS, SIZE)[:, None, None]
    with torch.no_grad():
        whole = model(torch.where(masks, baseline, images).flatten(0, 1))
        windowed = model(windowed_batch(images, WINDOWS, baseline))
    return whole, windowed


def network(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    model = make().double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # at 0 a branch hides what changes in it
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            nn.init.uniform_(module.get_buffer("running_mean"), -0.5, 0.5)
    return model


def test_boxes_equal_the_whole_maps_and_are_small() -> None:
    images, baseline = torch.randn(2, 3, *SIZE).double(), torch.randn(1, 3, 1, 1).double()
    whole, windowed = whole_and_windowed(network(Branches), images, baseline)
    assert isinstance(windowed, WindowedBatch)
    assert windowed.crops is not None
    assert windowed.crops[0, 0].numel() < 0.5 * whole[0, 0].numel()
    torch.testing.assert_close(windowed.full(), whole)


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "mobilenetv2_035",
        "test_efficientnet",
        "test_convnext",
        "densenet121",
    ],
)
def test_networks_give_the_scores_of_whole_images(name: str) -> None:
    model = network(lambda: timm.create_model(name, num_classes=7))
    images = torch.randn(1, 3, *SIZE).double()
    whole, windowed = whole_and_windowed(model, images, torch.zeros(1, 3, 1, 1).double())
    assert float(whole.std(0).max()) > 1e-6
    torch.testing.assert_close(windowed, whole)


class Late(nn.Module):
    """Operations on whole maps and views, which later ones change in place."""

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.25)
        x[:, 1:].mul_(2)
        same = x.detach()
        same.add_(x.roll(3, 2))
        return x.flatten(1).cumsum(1)[:, ::50]


def test_views_and_changes_in_place_reach_the_maps_but_not_the_images() -> None:
    images, baseline = torch.randn(2, 3, *SIZE).double(), torch.zeros(1, 3, 1, 1).double()
    images = images.contiguous(memory_format=torch.channels_last)
    before = images.clone()
    whole, windowed = whole_and_windowed(Late(), images, baseline)
    torch.testing.assert_close(windowed, whole)
    torch.testing.assert_close(images, before)


class Unpooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, stride=8)
        self.last = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        values, indices = F.max_pool2d(x, 2, return_indices=True)
        return self.last(F.max_unpool2d(values, indices, [2, 2], output_size=x.shape).mean((2, 3)))


class Strides(nn.Sequential):
    """What is whole in it has 4 x 5 cells, as few as pay."""

    def __init__(self) -> None:
        layers = [nn.Conv2d(channels, 4, 3, 2, 1) for channels in (3, 4, 4, 4)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))


@pytest.mark.parametrize(("make", "is_local"), [(Unpooling, False), (Strides, True)])
def test_occlusion_is_that_of_a_plain_loop(make: Callable[[], nn.Module], is_local: bool) -> None:
    model, images = network(make), torch.randn(2, 3, *SIZE).double()
    windows = occlusion_windows(SIZE, window_size=(11, 11), stride=(7, 7))
    total, counts = torch.zeros(2, *SIZE).double(), torch.zeros(SIZE)
    with torch.no_grad():
        original = model(images)[:, 2]
        for mask in window_masks(windows, SIZE):
            total += (original - model(images * ~mask)[:, 2])[:, None, None] * mask
            counts += mask
    info = ModelInfo("small", "other", SIZE, (0.5,) * 3, (0.25,) * 3, "none")
    inputs: list[type[Tensor]] = []
    model.register_forward_pre_hook(lambda _, args: inputs.append(type(args[0])))
    options = {"sliding_window_size": 11, "stride": 7, "score_type": "logits"}
    explained = ExplainedModel(model, info, model)
    result = occlusion(explained, images, ClassTarget([2, 2]), **options)
    torch.testing.assert_close(result, total / counts)
    assert inputs[1] is WindowedBatch
    assert (inputs[-1] is WindowedBatch) == is_local


def test_a_whole_map_of_more_cells_than_allowed_is_refused() -> None:
    images, baseline = torch.randn(1, 3, *SIZE).double(), torch.zeros(1, 3, 1, 1).double()
    batch = windowed_batch(images, WINDOWS, baseline, most_cells=100)
    with torch.no_grad(), pytest.raises(RuntimeError, match="at most 100 cells.*needs 30 x 38"):
        network(lambda: nn.Conv2d(3, 5, (5, 3), 2, (1, 2)))(batch).mean((2, 3))
