"""FastDropout against the definition of dropout."""

import pytest
import torch

from visattn.blocks.base import FastDropout


@pytest.mark.parametrize("shape", [(211, 307), (211, 3)])
def test_elements_are_dropped_independently_and_the_others_scaled(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer = FastDropout(0.2)
    x = torch.full(shape, 3.0, dtype=torch.float64, requires_grad=True)
    first, second = layer(x), layer(x)
    kept = first != 0
    torch.testing.assert_close(
        first[kept], torch.full_like(first[kept], 3 / 0.8), rtol=1e-4, atol=0
    )
    share, spread = kept.double().mean(), (0.16 / kept.numel()) ** 0.5
    assert abs(float(share) - 0.8) < 5 * spread
    both = (kept & (second != 0)).double().mean()  # independent from call to call ...
    assert abs(float(both) - 0.64) < 5 * (0.64 * 0.36 / kept.numel()) ** 0.5
    beside = (kept[:, 1:] & kept[:, :-1]).double().mean()  # ... and from element to element
    assert abs(float(beside) - 0.64) < 8 * (0.64 * 0.36 / kept.numel()) ** 0.5
    [gradient] = torch.autograd.grad(first.sum(), [x])
    torch.testing.assert_close(gradient, first.detach() / 3)


def test_the_limits_and_the_generator_are_those_of_torch() -> None:
    x = torch.ones(5, 7)
    assert torch.equal(FastDropout(0.5).eval()(x), x)
    assert torch.equal(FastDropout(0.0)(x), x)
    assert torch.equal(FastDropout(1.0)(x), torch.zeros(5, 7))
    torch.manual_seed(3)
    once = FastDropout(0.5)(x)
    torch.manual_seed(3)
    assert torch.equal(FastDropout(0.5)(x), once)
    assert FastDropout(0.5)(x.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="between 0 and 1"):
        FastDropout(1.5)
