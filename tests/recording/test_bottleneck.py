"""The layer that class activation maps of a dense model use by default."""

import pytest
import torch
from torch import Tensor, nn

from visattn.attribution.analysis import describe_model
from visattn.recording.bottleneck import bottleneck_layer

SIZE = (24, 40)


class Flat(nn.Module):
    """An encoder and a decoder without modules of their own."""

    def __init__(self, *encoder: nn.Module, width: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, layer in zip(("a", "b", "c"), encoder, strict=False):
            self.add_module(name, layer)
        self.encoder, self.head = list(encoder), nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.encoder:
            x = layer(x)
        return nn.functional.interpolate(self.head(x), SIZE)


def test_depthwise_convolutions_are_no_bottleneck() -> None:
    stem, pointwise = nn.Conv2d(3, 5, 2, 2), nn.Conv2d(5, 5, 1)
    for groups, site in ((1, "b"), (5, "c")):
        down = nn.Conv2d(5, 5, 3, 2, 1, groups=groups)
        subject = describe_model(Flat(stem, down, pointwise).eval(), SIZE)
        assert bottleneck_layer(subject).site == site


def test_a_model_without_a_grid_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(2880, 7)).eval()
    with pytest.raises(ValueError, match="no layer whose features lie on a grid"):
        bottleneck_layer(describe_model(model, SIZE))
