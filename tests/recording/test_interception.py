"""Softmax outputs are tracked up to the product with the values."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.blocks import CBAM
from visattn.recording.attention_call import IDENTITY, FusedCall, row_tolerance, sums_to_one
from visattn.recording.frozen import Float32
from visattn.recording.interception import attention_calls
from visattn.recording.recorder import record
from visattn.recording.subject import analyze_model


class Eager(nn.Module):
    """Eager attention over a grid, in one of several variants."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.variant = variant
        self.stem = nn.Conv2d(3, 14, 4, 4)
        self.qkv = nn.Linear(14, 42)
        self.mix = nn.Linear(2, 2, bias=False)
        self.used: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).mT
        q, k, v = self.qkv(tokens).unflatten(-1, (3, 2, 7)).permute(2, 0, 3, 1, 4).unbind(0)
        return getattr(self, f"_{self.variant}")(q, k, v).transpose(1, 2).flatten(2).mean(1)

    def _left(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.used = nn.functional.softmax(q @ k.mT, dim=-1, dtype=torch.float64)
        return nn.functional.dropout(self.used, 0.3, self.training).to(v.dtype) @ v

    def _right(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.used = (q @ k.mT).softmax(-1)
        return (v.mT @ self.used.transpose(-2, -1)).mT

    def _batched(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.used = torch.softmax(q[:, :1] @ k[:, :1].mT, -1)
        return torch.bmm(self.used[:, 0], v[:, 0]).unsqueeze(1)

    def _blended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        near = torch.softmax(torch.eye(15).expand(len(q), 2, 15, 15), dim=-1)
        self.used = 0.25 * (q @ k.mT).softmax(dim=-1) + 0.75 * near
        self.used /= self.used.sum(-1, keepdim=True)
        return self.used @ v

    def _talking(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.used = (q @ k.mT).softmax(-1)
        return self.mix(self.used.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v

    def _gated(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (0.5 * (q @ k.mT).softmax(-1)) @ v

    def _difference(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v - 0.5 * (((q * 2) @ k.mT).softmax(-1) @ v)

    def _sums(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q @ (k.softmax(dim=-2).mT @ v)

    def _grouped(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (3, 5)) for part in (q, k, v))
        return ((q @ k.mT).softmax(-1) @ v).flatten(2, 3)


def model(variant: str) -> Eager:
    torch.manual_seed(3)
    return Eager(variant).eval()


X = torch.randn(2, 3, 12, 20, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("variant", ["left", "right", "batched", "blended", "talking"])
def test_recorded_weights_are_those_multiplied_with_the_values(variant: str) -> None:
    eager = model(variant)
    expected = eager(X)
    with record(eager) as recording:
        assert torch.equal(eager(X), expected)
    assert eager.used is not None
    torch.testing.assert_close(recording.weights[0], eager.used.to(recording.weights[0].dtype))
    assert recording.maps[0].values.shape[-2:] == (3, 5)
    assert ("mixed" in recording.maps[0].info.more) == (variant == "talking")
    with record(eager, differentiable=True) as differentiable:
        after = eager(X)
    torch.testing.assert_close(after, expected)
    [gradient] = torch.autograd.grad(after.sum(), differentiable.weights)
    assert float(gradient.abs().max()) > 0


@pytest.mark.parametrize(("variant", "reason"), [
    ("gated", "do not sum to 1"),
    ("difference", "combines several softmaxes"),
    ("sums", "runs over axis -2"),
    ("grouped", "do not have the axes"),
])  # fmt: skip
def test_unsupported_attention_raises_an_error(variant: str, reason: str) -> None:
    eager = model(variant)
    assert reason in analyze_model(eager, (12, 20)).info.attention_error
    with pytest.raises(ValueError, match=f"the model: .*{reason}"), record(eager):
        eager(X)


class Wide(nn.Module):
    """Attention among channels, as many as the cells of a coarser grid."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 15, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).unsqueeze(1)
        return ((tokens @ tokens.mT).softmax(-1) @ tokens).squeeze(1).mT


class Sdpa(Eager):
    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("variant", ["left", "right", "batched", "sdpa", "layer"])
def test_identity_lets_each_token_read_itself_alone(variant: str) -> None:
    model: Any = nn.MultiheadAttention(14, 2, batch_first=True) if variant == "layer" else None
    model = (model or Sdpa(variant)).eval()
    x = torch.randn(2, 15, 14) if variant == "layer" else torch.randn(2, 3, 12, 20)
    outputs: list[Tensor] = []
    for weights in (IDENTITY, torch.eye(15)):
        with attention_calls(model, lambda _, own=weights: own):
            outputs.append(model(x, x, x)[0] if variant == "layer" else model(x))
    torch.testing.assert_close(*outputs)
    assert not torch.allclose(outputs[0], model(x, x, x)[0] if variant == "layer" else model(x))


def test_channel_attention_is_detected_by_its_keys() -> None:
    assert "attends to channels" in analyze_model(Wide(), (12, 20)).info.attention_error


class Fused(nn.Module):
    """Fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 14, 4, 4)

    def forward(self, x: Tensor) -> Any:
        tokens = self.stem(x).flatten(2).mT.unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)[:, 0]


def test_weights_that_do_not_reproduce_the_output_raise_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(3)
    model = Fused()
    fused = nn.functional.scaled_dot_product_attention
    with record(model) as recording:
        model(X)
    assert recording.maps[0].info.more["deviation"] < 2e-6
    monkeypatch.setattr(
        "visattn.recording.attention_call.dot_product_attention_weights",
        lambda queries, keys, **_: torch.eye(15).expand(len(queries), 1, 15, 15),
    )
    with pytest.raises(ValueError, match="must equal its output"), record(model):
        model(X)
    assert nn.functional.scaled_dot_product_attention is fused


class TwoGrids(nn.Module):
    """The same attention on a grid and on one of half its sides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.attend = (
            nn.Conv2d(3, 14, 4, 4),
            nn.MultiheadAttention(14, 2, batch_first=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        fine = self.stem(x)
        grids = (grid.flatten(2).mT for grid in (fine, nn.functional.avg_pool2d(fine, 2)))
        return torch.stack([self.attend(y, y, y)[0].mean(1) for y in grids]).sum(0)


def test_a_module_that_runs_twice_has_a_map_for_each_grid() -> None:
    torch.manual_seed(7)
    net = TwoGrids().eval()
    with record(net) as recording:
        for side in (16, 16, 32):
            net(torch.randn(2, 3, side, 24))
    grids = [item.values.shape[-2:] for item in recording.maps]
    assert grids == [(4, 6), (2, 3), (4, 6), (2, 3), (8, 6), (4, 3)]


def test_attention_beside_taps_is_recorded() -> None:
    eager = model("left").eval()
    net = nn.Sequential(CBAM(3, reduction=1), eager)
    with record(net) as recording:
        net(X)
    net(X)  # the probe of the model has left other weights
    assert [(item.site, item.kind) for item in recording.maps] == [
        ("0.channel_tap", "channel"), ("0.spatial_tap", "gate"), ("1", "tokens"),
    ]  # fmt: skip
    assert eager.used is not None
    torch.testing.assert_close(recording.weights[-1], eager.used.to(torch.float32))
    for layers, sites in (([0, "1"], ["0.channel_tap", "1"]), (-1, ["1"]), (2, ["1"])):
        with record(net, layers=layers) as recording:
            net(X)
        assert [item.site for item in recording.maps] == sites


def test_rows_may_differ_by_the_rounding_of_their_numbers_and_scores() -> None:
    half = torch.full((1, 3), 0.335).half()
    assert sums_to_one(half)
    assert not sums_to_one(1.2 * half)
    queries, keys = torch.full((1, 1, 3, 4), 2.0), torch.full((1, 1, 5, 4), -3.0)
    call = FusedCall((queries, keys, keys), {})  # scores of -24 / sqrt(4)
    assert call.largest_score(slice(2)) == 12
    assert FusedCall((queries, keys, keys), {"scale": -0.25}).largest_score(slice(2)) == 6
    assert row_tolerance(half, 1e5) == pytest.approx(0.0677, abs=1e-4)
    assert row_tolerance(half.float(), 1e5) == pytest.approx(0.0477, abs=1e-4)


def test_half_precision_is_changed_in_place_and_computed_in_float32() -> None:
    half = torch.ones(2, dtype=torch.float16)
    with Float32():
        assert half.add_(1) is half
        assert (half + 1).dtype == torch.float32
    assert half.dtype == torch.float16
