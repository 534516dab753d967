"""Attention gates with the gating signal of another module."""

import copy
import io
from typing import Any

import pytest
import torch
from host_models import UNet, image
from torch import Tensor, nn

from visattn.insertion.cost import summary
from visattn.insertion.insertion import insert
from visattn.insertion.weights import bake, remove
from visattn.recording.recorder import record


def gated() -> UNet:
    """A U-Net with a gate at each skip and nonzero identity scales."""
    torch.manual_seed(0)
    model = UNet().eval()
    for level in (1, 2):
        report = insert(
            model, "gate", position=f"skip{level}", signal=f"up{level}", example=image()
        )
        assert report.num_identity_scales == 1
    with torch.no_grad():
        for level in (1, 2):
            model.get_parameter(f"skip{level}.visattn.gate_scale").fill_(0.5)
    return model


def test_gate_receives_the_signal_and_starts_as_the_identity() -> None:
    torch.manual_seed(0)
    bare, x = UNet().eval(), image()
    model = copy.deepcopy(bare)
    insert(model, "gate", position="skip2", signal="up2", example=x, reduction=3)
    assert torch.equal(model(x), bare(x))
    gate, second = model.get_submodule("skip2.visattn.gate"), bare.enc2(bare.pool(bare.enc1(x)))
    signal = bare.up2(bare.mid(bare.pool(second)))
    with record(model) as recording:
        model(x)
    with record(gate) as expected:
        gate(second, signal)
    assert torch.equal(recording.maps[0].values, expected.maps[0].values)
    assert all(".visattn.gate" in key for key in model.state_dict() if key not in bare.state_dict())


def test_the_signal_may_have_its_channels_last() -> None:
    class ChannelsLast(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input).movedim(1, -1)

    torch.manual_seed(0)
    deep = ChannelsLast(5, 7, 2, stride=2)

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.deep, self.skip = nn.Conv2d(3, 5, 1), deep, nn.Identity()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            features = self.first(x)
            return self.deep(features), self.skip(features)

    model, x = Skipping().eval(), image()
    insert(model, "gate", position="skip", signal="deep", example=x, reduction=3)
    with record(model) as recording:
        model(x)
    features = model.first(x)
    with record(gate := model.get_submodule("skip.visattn.gate")) as expected:
        gate(features, deep(features).movedim(-1, 1))
    assert torch.equal(recording.maps[0].values, expected.maps[0].values)


def test_each_block_has_gradients_and_costs() -> None:
    model, x = gated(), image()
    model.train()(x).square().sum().backward()
    blocks = {name: p.grad for name, p in model.named_parameters() if ".visattn." in name}
    assert [name for name, grad in blocks.items() if grad is None or not grad.any()] == []
    assert [row.blocks for row in summary(model, x).rows] == ["", "gate", "gate"]


def test_deepcopy_has_its_own_signal() -> None:
    model, x = gated(), image()
    output, file = model(x), io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(twin(x), output)
        with torch.no_grad():
            twin.get_parameter("up1.bias").add_(1)
        assert not torch.equal(twin(x), output)
        assert torch.equal(model(x), output)


def test_copies_have_no_stored_outputs() -> None:
    model = gated()
    model.get_submodule("up2")(torch.zeros(1, 11, 3, 5))  # the source ran, and its block did not
    block: Any = model.get_submodule("skip2.visattn")
    twin = copy.deepcopy(block)
    assert [len(each.signal.outputs) for each in (block, twin)] == [1, 0]


def test_remove_leaves_no_hook_and_baking_is_refused() -> None:
    model, x = gated(), image()
    with pytest.raises(ValueError, match="gate after skip2 takes a signal from up2"):
        bake(model)
    assert sorted(remove(model)) == ["skip1", "skip2"]
    torch.manual_seed(0)
    assert torch.equal(model(x), UNet().eval()(x))
    assert [name for name, part in model.named_modules() if part._forward_hooks] == []


@pytest.mark.compile
def test_export_includes_the_signal() -> None:
    model, x = gated(), image()
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-5, atol=1e-6)


def test_invalid_signals_are_refused() -> None:
    model, x = UNet().eval(), image()
    keys = list(model.state_dict())
    for at, block, signal, said in (
        (
            "skip2",
            "gate",
            None,
            "gates the features of skip2 by a signal .* pass signal='NAME'",
        ),
        ("skip2", ["se", "gate"], None, "gates the features of skip2"),
        ("enc2", "gate", "up2", r"up2 runs after it; put an nn.Identity\(\) .*after up2"),
        ("skip2", "gate", "up3", "no module 'up3' for the signal; did you mean up2"),
        ("skip2", "gate", "skip2", "is the site itself"),
        ("skip2", "gate", "enc2", "is the tensor that it gates"),
        ("skip2", "gate", "pool", "must be a feature map .* but pool returns"),
        ("skip2", "se", "up2", "se takes no gating signal, got signal='up2'"),
    ):
        with pytest.raises(ValueError, match=said):
            insert(model, block, position=at, signal=signal, example=x)
        assert list(model.state_dict()) == keys
        assert [name for name, part in model.named_modules() if part._forward_hooks] == []


def test_signal_of_another_aspect_ratio_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 1), nn.AdaptiveAvgPool2d((3, 28)), nn.Identity())
    model.append(nn.Upsample((20, 28)))
    with pytest.raises(
        ValueError, match="20 x 28 and a signal of 3 x 28 from 1 have different aspect ratios"
    ):
        insert(model, "gate", position="3", signal="1", example=image())


def test_submodule_alone_has_no_signal() -> None:
    model = gated()
    with pytest.raises(RuntimeError, match="up1 must run before it, in the same forward pass"):
        model.skip1(torch.zeros(1, 5, 20, 28))
