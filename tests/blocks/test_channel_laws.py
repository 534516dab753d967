"""Properties of all channel and combined gates: invariances, precision, compilation."""

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
def test_output_is_independent_of_gradients_and_memory_format(
    kind: type[Block],
) -> None:
    block, x = trained(kind), numbers(3, 16, 5, 7)
    kept = x.clone()
    wanted = block(x.clone().requires_grad_()).detach()
    with torch.no_grad():
        assert torch.equal(block(x), wanted)
        last = block(x.contiguous(memory_format=torch.channels_last))
        alone = block(x[1:2])
    assert torch.equal(x, kept)
    torch.testing.assert_close(last, wanted, rtol=0, atol=2e-6)
    torch.testing.assert_close(alone, wanted[1:2], rtol=0, atol=2e-6)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", CHANNEL + COMBINED)
def test_half_precision_is_accurate_to_its_resolution(kind: type[Block], half: torch.dtype) -> None:
    block, x = trained(kind), numbers(2, 16, 33, 32).to(half)
    with torch.no_grad():
        wanted = trained(kind)(x.float())
        got = block.to(half)(x)
    assert got.dtype == half
    digits = 16 * torch.finfo(half).eps
    torch.testing.assert_close(got.float(), wanted, rtol=digits, atol=digits)


@pytest.mark.parametrize("kind", CHANNEL + COMBINED)
def test_dtype_is_kept_under_autocast(kind: type[Block]) -> None:
    block, x = trained(kind), numbers(2, 16, 5, 7)
    for inputs in (x, x.bfloat16()):
        with torch.autocast("cpu", torch.bfloat16):
            got = block(inputs)
        assert got.dtype == inputs.dtype
        torch.testing.assert_close(got.float(), block(x), rtol=0.1, atol=0.1)


@pytest.mark.compile
@pytest.mark.parametrize("kind", CHANNEL + COMBINED)
def test_compiles_and_trains_as_one_graph_of_any_size(kind: type[Block]) -> None:
    block, twin = trained(kind).train(), trained(kind).train()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
    for size in ((5, 7), (11, 3)):
        x = numbers(2, 16, *size)
        torch.testing.assert_close(compiled(x), twin(x))
