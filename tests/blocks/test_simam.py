"""SimAM as a block: no parameters, and a recorded gate."""

import pytest
import torch

from visattn.blocks.simam import SimAM
from visattn.recording.recorder import record


def test_output_is_the_gated_input_also_while_recording() -> None:
    block, x = SimAM(3), torch.randn(2, 3, 5, 7)
    kept = x.clone()
    plain = block(x)
    with record(block) as recording:
        y = block(x)
    [gate] = recording.maps
    torch.testing.assert_close(y, x * gate.values, rtol=0, atol=0)
    assert torch.equal(plain, y)
    assert torch.equal(x, kept)
    assert torch.equal(block(x.requires_grad_()), y)


def test_has_no_parameters_and_the_lambda_of_the_authors() -> None:
    block = SimAM(16, e_lambda=0.1)
    assert not block.state_dict()
    x = torch.randn(2, 16, 5, 7)
    assert not torch.allclose(block(x), SimAM(16)(x))
    with pytest.raises(ValueError, match=r"e_lambda must be above 0, got -1\.0"):
        SimAM(16, e_lambda=-1.0)


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(1, 1), (7, 7), (56, 56)])
def test_output_and_gradients_are_finite(
    scale: float, kind: torch.dtype, size: tuple[int, int]
) -> None:
    x = (scale * torch.randn(1, 3, *size)).to(kind).requires_grad_()
    y = SimAM(3)(x)
    assert y.dtype == kind
    [gradient] = torch.autograd.grad(y, x, torch.ones_like(y))
    assert y.isfinite().all()
    assert gradient.isfinite().all()
