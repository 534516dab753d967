"""Properties of all channel and combined gates beside those of the conformance suite."""

import pytest
import torch
from torch import Tensor

from visattn.blocks.base import Block
from visattn.blocks.coordinate import CoordinateAttention
from visattn.blocks.eca import ECA
from visattn.blocks.gct import GCT
from visattn.blocks.global_context import GlobalContext
from visattn.blocks.simam import SimAM
from visattn.blocks.squeeze_excite import EffectiveSE, SqueezeExcite
from visattn.blocks.srm import SRM
from visattn.blocks.triplet import TripletAttention

CHANNEL = [
    SqueezeExcite,
    EffectiveSE,
    ECA,
    SRM,
    GCT,
    GlobalContext,
]
COMBINED = [SimAM, CoordinateAttention, TripletAttention]


def trained(kind: type[Block], channels: int = 16) -> Block:
    """Return a block without zero parameters, equal in every call."""
    torch.manual_seed(3)
    block = kind(channels)
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=0.3)
    return block.eval()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", CHANNEL)
def test_channel_gates_are_invariant_to_permuted_positions(kind: type[Block]) -> None:
    block, x = trained(kind).double(), numbers(2, 16, 35).double()
    order = torch.randperm(35)
    moved = block(x[:, :, order].unflatten(2, (7, 5)))
    wanted = block(x.unflatten(2, (5, 7))).flatten(2)[:, :, order].unflatten(2, (7, 5))
    torch.testing.assert_close(moved, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", CHANNEL + COMBINED)
def test_output_is_the_same_without_gradients(kind: type[Block]) -> None:
    block, x = trained(kind), numbers(3, 16, 5, 7)
    wanted = block(x.clone().requires_grad_()).detach()
    with torch.no_grad():
        assert torch.equal(block(x), wanted)
