"""U-Net: shapes on several encoders, gates, blocks of the catalog, refused encoders."""

import pytest
import torch
from random_numbers import numbers

import visattn
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import SmallEncoder
from visattn.models.unet import UNet

CLASSES = ("background", "cat", "dog")


def small(block: str | None = None) -> UNet:
    torch.manual_seed(5)
    return UNet(CLASSES, SmallEncoder((24, 40), channels=12), block=block).eval()


def test_stages_may_come_in_any_order() -> None:
    torch.manual_seed(1)
    first = UNet(CLASSES, TimmEncoder("test_resnet", img_size=(64, 64), stage=[0, 2, 3]))
    other = UNet(CLASSES, TimmEncoder("test_resnet", img_size=(64, 64), stage=[3, 0, 2]))
    other.load_state_dict(first.state_dict())
    images = numbers(1, 3, 64, 64, dtype=torch.float32)
    torch.testing.assert_close(first.eval()(images), other.eval()(images))


def test_gates_are_on_the_grids_of_the_skip_connections_and_recorded() -> None:
    model, images = small("gate"), numbers(2, 3, 24, 40, dtype=torch.float32)
    output = model.segment(images)
    assert [tuple(gate.shape) for gate in output.gates] == [(2, 6, 10), (2, 12, 20)]
    assert torch.equal(model(images), output.logits)
    with visattn.record(model) as recording:
        model(images)
    recorded = [recorded_map.values for recorded_map in recording.maps]
    assert len(recorded) == 2
    for values, gate in zip(recorded, output.gates, strict=True):
        torch.testing.assert_close(values.view_as(gate), gate)


def test_an_impulse_in_the_image_moves_logits_around_it() -> None:
    """A marked block on the image changes the logits there, not mirrored or shifted."""
    model = small()
    images = torch.zeros(1, 3, 24, 40)
    marked = images.clone()
    marked[..., 16:20, 28:32] = 3
    with torch.no_grad():
        change = (model(marked) - model(images)).abs().sum((0, 1))
    y, x = (change / change.sum()).sum(1), (change / change.sum()).sum(0)
    center = (float(y @ (torch.arange(24) + 0.5)), float(x @ (torch.arange(40) + 0.5)))
    assert center == (pytest.approx(18, abs=4), pytest.approx(30, abs=4))
