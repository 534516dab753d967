"""Every block of the catalog conforms; the checks see faults."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from conformance import CHECKS, depends_on_its_input, is_traced
from torch import Tensor, nn

from visattn.blocks.registry import create_block, list_blocks


def maker(name: str) -> Callable[[int], nn.Module]:
    return partial(create_block, name)


@pytest.mark.parametrize("name", list_blocks())
def test_a_block_conforms(name: str) -> None:
    for check in CHECKS:
        if (name, check) != ("gct", "depends"):
            CHECKS[check](maker(name))


def test_gct_depends_on_its_input_with_several_channels() -> None:
    """A single channel always has the norm of all channels, so that its gate is constant."""
    depends_on_its_input(maker("gct"), (4, 24))
    with pytest.raises(AssertionError, match="C=1: the gate .* is constant"):
        depends_on_its_input(maker("gct"), (1,))


@pytest.mark.compile
@pytest.mark.parametrize("name", list_blocks())
def test_a_block_is_traced_without_graph_breaks(name: str) -> None:
    is_traced(maker(name))


class Function(nn.Module):
    """A faulty block."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def energies(x: Tensor) -> Tensor:
    """SimAM computed in the dtype of its input, as in its copies."""
    squares = (x - x.mean((2, 3), keepdim=True)).square()
    spread = squares.sum((2, 3), keepdim=True) / (x[0, 0].numel() - 1)
    return x * (squares / (4 * (spread + 1e-4)) + 0.5).sigmoid()


FAULTS: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("shape", lambda x: x[:, :, 1:]),
    ("shape", lambda x: x * torch.ones(x.shape[2:])),
    ("shape", energies),
    ("function", lambda x: x * x.softmax(0)),
    ("function", nn.functional.dropout),
    ("function", lambda x: x.mul_(0.5)),
    ("function", lambda x: x + x.stride(1)),
    ("precision", energies),
    ("precision", lambda x: x * x.exp()),
    ("learns", lambda x: x * x.detach()),
    ("depends", lambda x: x * 0.5),
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_faults_are_seen(number: int) -> None:
    check, function = FAULTS[number]
    with pytest.raises((AssertionError, RuntimeError)):
        CHECKS[check](lambda _: Function(function))
