"""Gates of attention blocks as maps on photos."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import visattn as va
from visattn.blocks.tap import Tap
from visattn.recording.subject import analyze_model


class Brightness(nn.Module):
    """A host whose features are the brightness of patches of 4 x 4 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 4, 4, bias=False)
        self.stem.weight.data[:] = torch.arange(1.0, 5.0).view(4, 1, 1, 1) / 48
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x).mean((2, 3)))


def gated(block: Any, **options: Any) -> nn.Module:
    torch.manual_seed(3)
    model = Brightness()
    x = torch.zeros(1, 3, 32, 32)
    va.insert(model, block, position="stem", example=x, init="paper", **options)
    return model.eval()


class MeanGate(nn.Module):
    """One gate for all channels, with an axis of its own."""

    def __init__(self, _: int) -> None:
        super().__init__()
        self.tap = Tap("gate")

    def forward(self, x: Tensor) -> Tensor:
        return x * self.tap(x.mean(1, keepdim=True).sigmoid())


@pytest.mark.parametrize("resize_mode", ["crop", "pad", "squash"])
@pytest.mark.parametrize("block", ["simam", MeanGate])
def test_a_gate_lies_on_the_photo_where_the_network_looks(block: Any, resize_mode: Any) -> None:
    model = gated(block)
    photo = np.zeros((64, 96, 3), np.uint8)
    photo[40:48, 56:64] = 255
    options = {"input_size": 32, "resize_mode": resize_mode}
    [gate], [plain] = (va.explain(model, each, "gates", **options) for each in (photo, 0 * photo))
    change = (gate.resize_to_image() - plain.resize_to_image()).abs().nan_to_num()
    y, x = divmod(int(change.argmax()), 96)
    assert abs(y - 44) <= 12
    assert abs(x - 60) <= 12
    assert gate.kind == "gate"
    explainer = va.Explainer(model, **options)
    with va.record(model) as recording:
        model(explainer.prepare(photo).inputs)
    [recorded] = (each for each in recording.maps if each.kind == "gate")
    assert gate.values.equal(recorded.values[0].mean(0))
    assert gate.margin == recorded.margin == (0, 0)
    assert gate.info.layer == recorded.site == gate.site


def test_the_gate_of_each_site_is_chosen_by_index_or_name() -> None:
    model = gated(["spatial", "sse"])
    photo = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    first, last = "stem.visattn.spatial.tap", "stem.visattn.sse.tap"
    for layer, site in ((0, first), (-1, last), ("stem.visattn.spatial", first), (last, last)):
        [gate] = va.explain(model, photo, "gates", input_size=32, layers=layer)
        assert gate.info.layer == site
    inside = model.get_submodule("stem.visattn.sse")
    [gate] = va.explain(model, photo, "gates", input_size=32, layers=inside)
    assert gate.info.layer == last
    for layer in (2, "stem", "stm"):
        with pytest.raises(ValueError, match=f"got {layer!r}; the gates are {first}, {last}"):
            va.explain(model, photo, "gates", input_size=32, layers=layer)


def test_gates_of_channels_are_refused_and_drawn_as_bars() -> None:
    model, photo = gated("se", reduction=1), np.zeros((32, 32, 3), np.uint8)
    with pytest.raises(ValueError, match=r"channel gates: channel gates have no .* as bars"):
        va.explain(model, photo, "gates", input_size=32)
    assert "gates" not in va.methods_for(model, input_size=32)
    with pytest.raises(ValueError, match="it has no attention gates; visattn.insert"):
        va.explain(Brightness(), photo, "gates", input_size=32)
    with pytest.raises(ValueError, match="got 'stem.visattn.se': channel gates have no"):
        va.explain(gated(["se", "sse"]), photo, "gates", input_size=32, layers="stem.visattn.se")
    with va.record(model) as recording:
        model(torch.rand(1, 3, 32, 32))
    assert va.figure(recording.maps[0]).axes[0].get_ylim() == (0, 1)
    info = analyze_model(gated("cbam", reduction=1), 32).info
    assert info.gates == ("stem.visattn.cbam.spatial_tap",)
    assert info.channel_gates == ("stem.visattn.cbam.channel_tap",)
