"""Gates of positions, and of channels and positions, against their equations, in float64."""

import pytest
import torch
from named_weights import fill
from random_numbers import numbers
from timm.layers.coord_attn import CoordAttn
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, interpolate, linear

from visattn.blocks import (
    BAM,
    CBAM,
    SCSE,
    AttentionGate,
    CoordinateAttention,
    SimAM,
    SpatialGate,
    SpatialSE,
    TripletAttention,
)
from visattn.recording.recorder import record

NORM = ("running_mean", "running_var", "weight", "bias")


def sigmoid(score: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-score))


def mapped(x: Tensor, layer: nn.Module, dilation: int = 1) -> Tensor:
    """Return a linear layer of `b c`, or a convolution of `b c y x`."""
    state = layer.state_dict()
    weight, bias = state["weight"], state.get("bias")
    if weight.ndim == 2:
        return linear(x, weight, bias)
    reach = weight.shape[-1] // 2 * dilation
    return conv2d(x, weight, bias, padding=reach, dilation=dilation)


def normalized(x: Tensor, norm: nn.Module) -> Tensor:
    state = norm.state_dict()
    return batch_norm(x, *(state[name] for name in NORM))


def pooled(x: Tensor, dim: int) -> Tensor:
    return torch.stack((x.sort(dim).values.select(dim, -1), x.sum(dim) / x.shape[dim]), 1)


def of_mlp(x: Tensor, block: nn.Module) -> Tensor:
    hidden = mapped(x, block.get_submodule("squeeze")).clamp_min(0)
    return mapped(hidden, block.get_submodule("excite"))


def of_conv(x: Tensor, dim: int, gate: nn.Module) -> Tensor:
    score = mapped(pooled(x, dim), gate.get_submodule("conv"))
    return sigmoid(normalized(score, gate.get_submodule("norm")))


def cbam(x: Tensor, block: nn.Module) -> Tensor:
    scores = of_mlp(x.mean((2, 3)), block) + of_mlp(x.flatten(2).sort(2).values[..., -1], block)
    x = x * sigmoid(scores)[:, :, None, None]
    return x * of_conv(x, 1, block)


def bam_scores(x: Tensor, block: BAM, dilation: int) -> tuple[Tensor, Tensor]:
    first, norm, _, last = block.channel
    channel = mapped(normalized(mapped(x.mean((2, 3)), first), norm).clamp_min(0), last)
    for layer, apart in ((0, 1), (3, dilation), (6, dilation)):
        x = mapped(x, block.spatial[layer], apart)
        x = normalized(x, block.spatial[layer + 1]).clamp_min(0)
    return channel[:, :, None, None], mapped(x, block.spatial[9])


def scse(x: Tensor, block: nn.Module) -> tuple[Tensor, Tensor]:
    channel = sigmoid(of_mlp(x.mean((2, 3)), block))[:, :, None, None]
    return x * channel, x * sigmoid(mapped(x, block.get_submodule("project")))


def triplet(x: Tensor, block: nn.Module) -> Tensor:
    """Mean of three gated copies, as in the paper: the axis that is pooled is moved to dim 1."""
    places, rows, columns = (block.get_submodule(name) for name in ("places", "rows", "columns"))
    copies = [x * of_conv(x, 1, places)]
    for order, gate in (((0, 3, 2, 1), rows), ((0, 2, 1, 3), columns)):
        turned = x.permute(order)
        copies.append((turned * of_conv(turned, 1, gate)).permute(order))
    return sum(copies, x * 0) / 3


def simam(x: Tensor, e_lambda: float = 1e-4) -> Tensor:
    d = (x - x.mean((2, 3), keepdim=True)).square()
    variance = d.sum((2, 3), keepdim=True) / max(x.shape[2] * x.shape[3] - 1, 1)
    return x * sigmoid(d / (4 * (variance + e_lambda)) + 0.5)


@pytest.mark.parametrize("size", [(5, 7), (1, 2)])
def test_gates_match_their_equations(size: tuple[int, int]) -> None:
    x = numbers(2, 6, *size)
    cases: list[tuple[nn.Module, object]] = [
        (SpatialGate(6, kernel_size=3), lambda block: x * of_conv(x, 1, block)),
        (SpatialSE(6), lambda block: x * sigmoid(mapped(x, block.squeeze))),
        (CBAM(6, reduction=2, kernel_size=5), lambda block: cbam(x, block)),
        (BAM(6, reduction=2), lambda block: x + x * sigmoid(torch.add(*bam_scores(x, block, 4)))),
        (
            BAM(6, reduction=2, dilation=1, combine="mul"),
            lambda block: x + x * sigmoid(torch.mul(*bam_scores(x, block, 1))),
        ),
        (SCSE(6), lambda block: sum(scse(x, block))),
        (SCSE(6, combine="max"), lambda block: torch.maximum(*scse(x, block))),
        (TripletAttention(6, kernel_size=3), lambda block: triplet(x, block)),
        (SimAM(6), lambda _: simam(x)),
        (SimAM(6, e_lambda=0.1), lambda _: simam(x, 0.1)),
    ]
    for block, expected in cases:
        y = fill(block.double())(x)
        torch.testing.assert_close(y, expected(block), rtol=0, atol=1e-10)  # type: ignore[operator]
        learning = block(x.clone().requires_grad_())  # other kernels, and nothing in place
        torch.testing.assert_close(learning, y, rtol=0, atol=1e-12)


def test_attention_gate_matches_the_equation_with_and_without_a_signal() -> None:
    x, signal = numbers(2, 6, 8, 14), numbers(2, 5, 3, 2, seed=1)
    for stride in (1, 2):
        for width, given in ((5, signal), (6, None)):
            block = fill(AttentionGate(6, signal_channels=width, stride=stride).double())
            features = conv2d(x, block.theta.weight, stride=stride)
            gating = mapped(x if given is None else given, block.phi)
            grid = features.shape[2:]
            gating = interpolate(gating, grid, mode="bilinear", align_corners=False)
            gate = sigmoid(mapped((features + gating).clamp_min(0), block.psi))
            gate = interpolate(gate, (8, 14), mode="bilinear", align_corners=False)
            with record(block) as recording:
                y = block(x) if given is None else block(x, given)
            torch.testing.assert_close(y, x * gate, rtol=0, atol=1e-10)
            assert torch.equal(recording.maps[0].values[:, None] * x, y)


@pytest.mark.parametrize("training", [True, False])
def test_coordinate_attention_matches_timm(training: bool) -> None:
    theirs, ours = CoordAttn(64, rd_channels=8, bias=True), CoordinateAttention(64).double()
    fill(theirs.double()).train(training)
    names = {"squeeze": "conv1", "norm": "bn1", "rows": "conv_h", "columns": "conv_w"}
    ours.load_state_dict(
        {
            f"{own}.{part}": value.squeeze(-1) if value.ndim == 4 else value
            for own, name in names.items()
            for part, value in theirs.get_submodule(name).state_dict().items()
        }
    )
    x = numbers(3, 64, 5, 7)
    torch.testing.assert_close(ours.train(training)(x), theirs(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_simam_in_half_precision_is_accurate_to_its_resolution(kind: torch.dtype) -> None:
    for spread in (1e-4, 1.0, 20.0, 1e4):
        x = (spread * numbers(1, 2, 56, 57)).to(kind)
        y = SimAM(2)(x)
        assert y.dtype == kind
        digits = 2 * torch.finfo(kind).eps
        torch.testing.assert_close(y.double(), simam(x.double()), rtol=digits, atol=1e-7)
