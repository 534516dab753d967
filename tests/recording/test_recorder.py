"""Recording of maps: order, metadata, selected rows, wrappers, recordings inside each other."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import visattn as va
from visattn.blocks.tap import RecordRequest, Tap
from visattn.recording.recorder import record


class GateAndWords(nn.Module):
    """A spatial gate, and attention over a flattened grid."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Tap("gate")
        self.words = Tap("words")

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x.sigmoid())
        self.words.grid = (x.shape[-2], x.shape[-1])
        return gate.sum() + self.words(x.flatten(-2).softmax(-1)).sum()


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


def test_maps_are_recorded_in_order_with_site_kind_and_call() -> None:
    model, x = GateAndWords(), torch.rand(2, 1, 3, 5, requires_grad=True)
    with record(model) as recording:
        expected = model(x)
        model(x)
    assert [(item.site, item.kind, item.info.call) for item in recording.maps] == [
        ("gate", "gate", 0), ("words", "words", 0), ("gate", "gate", 1), ("words", "words", 1),
    ]  # fmt: skip
    assert all(item.values.shape == (2, 1, 3, 5) for item in recording.maps)
    gate, words = (item.values for item in recording.maps[:2])
    torch.testing.assert_close(gate, x.detach().sigmoid())
    torch.testing.assert_close(words.flatten(-2), x.detach().flatten(-2).softmax(-1))
    assert not any(item.values.requires_grad for item in recording.maps)
    torch.testing.assert_close(model(x), expected)
    with record(model) as outer:
        with record(model.gate) as inner:
            model(torch.rand(1, 1, 2, 2))
        assert hooks(model) == 2
    assert [item.site for item in inner.maps] == [""]
    assert len(outer.maps) == 2
    with pytest.raises(KeyError, match="mine"), record(model):
        raise KeyError("mine")  # not replaced by the error of no maps
    assert hooks(model) == 0


def test_compiled_models_run_uncompiled_inside_and_compiled_again_afterwards() -> None:
    def backend(*_: object) -> Any:
        raise AssertionError("it was compiled")

    wrapper: Any = torch.compile(GateAndWords(), backend=backend)
    in_place = nn.Sequential(GateAndWords())
    in_place[0].compile(backend=backend)
    for model in (wrapper, in_place):
        with record(model) as recording:
            model(torch.rand(1, 1, 2, 2))
        assert [item.kind for item in recording.maps] == ["gate", "words"]
        with pytest.raises(Exception, match="it was compiled"):
            model(torch.rand(1, 1, 2, 2))


def test_tokens_are_located_by_calls_with_the_arguments_of_the_user() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = timm.create_model(
                "vit_tiny_patch16_224", depth=1, embed_dim=12, num_heads=2, img_size=(32, 48)
            )

        def forward(self, scale: float, images: Tensor) -> Tensor:
            return self.vit(scale * images)

    model = Scaled().eval()
    with record(model) as recording:
        model(0.5, torch.rand(1, 3, 32, 48))
    assert recording.maps[0].values.shape[-2:] == (2, 3)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_the_model_inside_a_wrapper_is_explained(wrap: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    photo = torch.rand(1, 3, 24, 24)
    [right], [result] = (va.explain(each, photo, "gradcam", 2) for each in (model, wrap(model)))
    assert (result.site, result.values.tolist()) == (right.site, right.values.tolist())
    known = timm.create_model("resnet10t", num_classes=3).eval()  # with a preprocessing of its own
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    [right], [result] = (va.explain(each, pixels, "gradcam", 2) for each in (known, wrap(known)))
    assert torch.equal(result.values, right.values)
    assert result.info == right.info


class Attention(nn.Module):
    """Attention with four heads, a class token and a grid, which computes the requested rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tap = Tap("tokens")
        self.received: list[RecordRequest] = []

    def forward(self, weights: Tensor) -> None:
        if self.tap.wanted:
            request = self.tap.request
            self.received.append(request)
            self.tap.grid, self.tap.roles, self.tap.fulfilled = (2, 3), ("class",), request
            self.tap(
                weights[:, request.head_indices(4)][:, :, request.query_indices(("class",), 7)]
            )


WEIGHTS = torch.rand(2, 4, 7, 7, generator=torch.Generator().manual_seed(3))


def test_each_recording_gets_the_rows_that_it_requests_and_no_others_are_computed() -> None:
    model = Attention()
    with record(model, queries="class", heads=(3, 0)) as recording:
        model(WEIGHTS)
    [item] = recording.maps
    assert torch.equal(item.values, WEIGHTS[:, [3, 0], :1, 1:].unflatten(-1, (2, 3)))
    assert torch.equal(recording.weights[0], WEIGHTS[:, [3, 0], :1])
    assert (item.info.call, item.info.layer, item.info.prefix_tokens) == (0, 0, ("class",))
    assert item.info.more == {"queries": "class", "heads": (3, 0)}
    assert set(model.received) == {RecordRequest("class", (3, 0))}
    with record(model) as complete, record(model, queries=[6, -6], heads=2) as selected:
        model(WEIGHTS)
        with record(model, queries=[6, -6], heads=[2]) as again:
            model(WEIGHTS)
    assert torch.equal(complete.weights[1], WEIGHTS)
    for each in (selected, again):
        assert torch.equal(each.weights[0], WEIGHTS[:, [2]][:, :, [6, 1]])
    with record(model), record(model, queries=[-1]) as last:
        model(WEIGHTS[:, :, :5])  # fewer queries than keys
    assert torch.equal(last.weights[0], WEIGHTS[:, :, 4:5])
    model.received.clear()
    model(WEIGHTS)
    assert (model.received, model.tap.requests) == ([], [])


def test_gates_have_no_rows_to_select_and_need_no_grid() -> None:
    gate = nn.Sequential(Tap("gate"))
    with record(gate, queries="class", heads=[0]) as recording:
        gate(torch.rand(2, 3, 5, 7))
    assert recording.maps[0].values.shape == (2, 3, 5, 7)
