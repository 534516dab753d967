"""SimAM as a block: no parameters, and a gate that can be seen."""

import pytest
import torch

from visattn.blocks.combined.simam import SimAM
from visattn.recording.recorder import record


def test_it_scales_by_its_gate_seen_or_not() -> None:
    block, x = SimAM(3), torch.randn(2, 3, 5, 7)
    kept = x.clone()
    plain = block(x)
    with record(block) as seen:
        y = block(x)
    [gate] = seen.maps
    torch.testing.assert_close(y, x * gate.values, rtol=0, atol=0)
    assert torch.equal(plain, y)
    assert torch.equal(x, kept)
    assert torch.equal(block(x.requires_grad_()), y)


def test_it_has_no_parameters_and_takes_the_authors_lambda() -> None:
    block = SimAM(16, e_lambda=0.1)
    assert not block.state_dict()
    x = torch.randn(2, 16, 5, 7)
    assert not torch.allclose(block(x), SimAM(16)(x))
    with pytest.raises(ValueError, match=r"e_lambda must be above 0, got -1\.0"):
        SimAM(16, e_lambda=-1.0)


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(1, 1), (7, 7), (56, 56)])
def test_it_stays_finite(scale: float, kind: torch.dtype, size: tuple[int, int]) -> None:
    x = (scale * torch.randn(1, 3, *size)).to(kind).requires_grad_()
    y = SimAM(3)(x)
    assert y.dtype == kind
    [slope] = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.isfinite().all()
    assert slope.isfinite().all()
