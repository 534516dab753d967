"""The conformance suite detects faulty blocks and passes correct ones."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.testing.block_under_test import BlockUnderTest
from visattn.testing.suite import CHECKS, format_results, format_table, run_check, run_checks

Make = Callable[[int], nn.Module]
TRACED = ("export", "fx", "compile")


class Function(nn.Module):
    """A block without parameters, or with the parameters that it receives."""

    def __init__(self, function: Callable[..., object], *parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for index, part in enumerate(parts):
            setattr(self, f"part{index}", part)

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def of(function: Callable[..., object], *makers: Callable[[int], nn.Module | nn.Parameter]) -> Make:
    return lambda channels: Function(function, *(make(channels) for make in makers))


def weight(channels: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(channels, 1, 1))


def gated(gate: Callable[[Tensor], Tensor]) -> Make:
    return of(lambda _, x: x * gate(x))


def energies(_: nn.Module, x: Tensor) -> Tensor:
    """SimAM computed in the dtype of its input, as in its copies."""
    squares = (x - x.mean((2, 3), keepdim=True)).square()
    spread = squares.sum((2, 3), keepdim=True) / (x[0, 0].numel() - 1)
    return x * (squares / (4 * (spread + 1e-4)) + 0.5).sigmoid()


def narrowed(channels: int) -> nn.Module:
    """Squeeze-and-excitation whose hidden layer may have zero units."""
    hidden = channels // 16
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, hidden), nn.ReLU(),
        nn.Linear(hidden, channels), nn.Sigmoid(), nn.Unflatten(1, (channels, 1, 1)),
    )  # fmt: skip


def written_over(_: nn.Module, x: Tensor) -> Tensor:
    x[:, 0] = 0
    return x * 1


def grown(block: Any, x: Tensor) -> Tensor:
    if not hasattr(block, "late"):
        block.late = nn.Parameter(torch.ones(()))
    return x * block.late


def counted(block: Any, x: Tensor) -> Tensor:
    block.part0.count.add_(1)
    return x * 1


class Half(torch.autograd.Function):
    """A function with half of its gradient."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def backward(ctx: object, *grad_outputs: Tensor) -> Tensor:
        return grad_outputs[0]


def counter(_: int) -> nn.Module:
    part = nn.Module()
    part.register_buffer("count", torch.zeros(()))
    return part


def unpicklable(_: int) -> nn.Module:
    part = nn.Module()
    part.generator = (number for number in ())  # type: ignore[assignment]
    return part


TRAPS: list[tuple[str, Make, str]] = [
    ("shape", lambda c: nn.Conv2d(c, c, 3),
     r"32x32, eval mode: returns \[3, 32, 30, 30\] for \[3, 3"),
    ("shape", gated(lambda x: torch.ones(32, 32)),
     r"20x33, eval mode: RuntimeError: The size of te"),
    ("shape", of(energies), r"1x1, eval mode: 100% of it is not finite"),
    ("shape", of(lambda _, x: (x, x)), r"32x32, eval mode: returns a tuple instead of a tensor"),
    ("channels", lambda c: nn.GroupNorm(8, c), r"C=1: ValueError: num_channels"),
    ("batch 1", nn.BatchNorm2d, r"1x1: ValueError: Expected more than 1 value per channel"),
    ("batch 1", of(lambda b, x: x + b.part0(x.mean((2, 3)))[..., None, None], nn.BatchNorm1d),
     r"11x13: ValueError: Expected more than 1"),
    ("half", of(energies), r"float16, 40x48, large: off by 0\.\d+ of the largest value"),
    ("half", of(lambda _, x: x + torch.ones(1)),
     r"float16, 11x13: returns torch.float32 for torch"),
    ("scale", gated(lambda x: x.exp()), r"x100, eval mode: \d+% of it is not finite"),
    ("scale", gated(lambda x: (x - x).square().sum().sqrt() + 1),
     r"x0.0001, eval mode: a gradient"),
    ("batch", gated(lambda x: x.softmax(0)), r"alone and in a batch differ by 0\.\d+ of the"),
    ("deterministic", of(lambda _, x: nn.functional.dropout(x)),
     r"eval mode, the same features differ by"),
    ("deterministic", of(counted, counter), r"eval mode, part0\.count changes"),
    ("in-place", of(written_over), r"eval mode, 100% of the input rows are overwritten"),
    ("memory format", of(lambda _, x: x.view(len(x), -1).view(x.shape)),
     r"channels last: RuntimeError"),
    ("memory format", of(lambda _, x: x + x.stride(1)), r"channels last: differs by"),
    ("gradients", of(lambda b, x: x * b.part0, weight, weight),
     r"no gradient in two steps for part1"),
    ("gradients", of(grown), r"late is added or removed in the forward pass"),
    ("gradcheck", of(lambda _, x: Half.apply(x)), r"differs from finite differences in float64"),
    ("depends", gated(lambda x: torch.tensor(0.5, dtype=x.dtype)),
     r"C=1: the gate is constant.*; C=24: "),
    ("depends", lambda c: Function(lambda b, x: x * b.part0(x), narrowed(c)),
     r"C=1: the gate .*C=8"),
    ("copy", of(lambda _, x: x * 1, unpicklable), r"deepcopy: TypeError: cannot pickle"),
    ("device", gated(lambda x: torch.ones(x.shape[2:])),
     r"on meta, eval mode: RuntimeError: .*cpu"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # a hidden layer of none
@pytest.mark.parametrize(("check", "make", "said"), TRAPS)
def test_every_trap_is_caught(check: str, make: Make, said: str) -> None:
    finding = run_check(BlockUnderTest("trap", make), check)
    assert not finding.passed, finding.details
    assert re.match(said, finding.details), finding.details


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in TRACED])
def test_correct_blocks_pass(check: str) -> None:
    finding = run_check(BlockUnderTest("sigmoid", lambda _: nn.SiLU()), check)
    assert finding.passed, finding.details


@pytest.mark.compile
@pytest.mark.parametrize("check", TRACED)
def test_untraceable_blocks_are_caught(check: str) -> None:
    def branching(_: nn.Module, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 1 else x

    caught = not run_check(BlockUnderTest("branching", of(branching)), check).passed
    assert caught == (check != "fx")  # fx traces an inserted block as one node


def test_documented_refusal_is_not_a_failure() -> None:
    def refusing(_: nn.Module, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("needs a batch of at least 2 to train, got 1")
        return x * 1

    finding = run_check(BlockUnderTest("refusing", of(refusing)), "batch 1")
    assert (finding.passed, finding.details) == (
        True,
        "refuses 11x13, 7x7, 1x1 with an informative error",
    )
    assert format_table({"one": {"batch 1": finding}}).splitlines()[2:] == [
        "| one | refuses |",
        "",
        "- one, batch 1: refuses 11x13, 7x7, 1x1 with an informative error",
    ]


def test_layer_norm_over_two_channels_fails_the_gate_check() -> None:
    """Over two channels it outputs the sign of a difference only; over four it passes."""

    def normed(channels: int, hidden: int) -> nn.Module:
        gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, hidden, 1), nn.GroupNorm(1, hidden),
            nn.Conv2d(hidden, channels, 1), nn.Sigmoid(),
        )  # fmt: skip
        return Function(lambda block, x: x * block.part0(x), gate)

    two, four = (
        run_check(
            BlockUnderTest("norm", lambda c, many=many: normed(c, many), widths=(24,)), "depends"
        )
        for many in (2, 4)
    )
    assert not two.passed
    assert two.details.startswith("C=24: the gate is constant")
    assert four.passed


def test_input_sizes_are_configurable() -> None:
    def eighths(_: nn.Module, x: Tensor) -> Tensor:
        if x.shape[2] % 8 or x.shape[3] % 8:
            raise ValueError(f"sides must be multiples of 8, got {list(x.shape[2:])}")
        return x * x.sigmoid()

    subject = BlockUnderTest("eighths", of(eighths), size=(8, 16))
    results = run_checks(subject, [check for check in CHECKS if check not in TRACED])
    failed = {check for check, finding in results.items() if not finding.passed}
    assert failed == {"shape"}


def test_result_tables_are_formatted() -> None:
    results = run_checks(
        BlockUnderTest("norm", nn.BatchNorm2d, widths=(4,)), ["shape", "batch 1", "depends"]
    )
    assert format_results(results).splitlines()[0] == "shape   ok    32x32 20x33 7x7 5x3 1x9 1x1"
    assert [line[:12] for line in format_results(results).splitlines()[1:]] == [
        "batch 1 FAIL",
        "depends FAIL",
    ]
    table = format_table({"norm": results, "other": {"shape": results["shape"]}})
    assert table.splitlines()[:4] == [
        "| block | shape | batch 1 | depends |",
        "|---|---|---|---|",
        "| norm | ok | **no** | **no** |",
        "| other | ok |  |  |",
    ]
    assert table.splitlines()[5].startswith("- norm, batch 1: 1x1: ValueError: Expected more")
