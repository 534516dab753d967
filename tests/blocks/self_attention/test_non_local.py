"""The non-local block, against a loop."""

import pytest
import torch
from torch import Tensor

from visattn.blocks.self_attention.non_local import NonLocal


def numbers(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


@pytest.mark.parametrize("scale", [False, True])
def test_it_is_the_papers_equation(scale: bool) -> None:
    block, x = NonLocal(6, scale=scale).double().eval(), numbers(2, 6, 3, 5)
    torch.nn.init.normal_(block.norm.weight)
    held = dict(block.named_parameters()) | dict(block.named_buffers())
    mean, var = held["norm.running_mean"].normal_(), held["norm.running_var"].uniform_(0.5, 2.0)
    y = block(x)
    wq, wk, wv, wz = (
        held[f"{name}.weight"][:, :, 0, 0] for name in ("query", "key", "value", "project")
    )
    places = [(row, column) for row in range(3) for column in range(5)]
    for b in range(2):
        for i in places:
            asked = wq @ x[b, :, *i] + held["query.bias"]
            scores = torch.stack([asked @ (wk @ x[b, :, *j] + held["key.bias"]) for j in places])
            weights = (scores / 3**0.5 if scale else scores).softmax(0)
            values = torch.stack([wv @ x[b, :, *j] + held["value.bias"] for j in places])
            seen = (weights.unsqueeze(-1) * values).sum(0)
            added = wz @ seen + held["project.bias"] - mean
            added = added / (var + block.norm.eps).sqrt()
            expected = x[b, :, *i] + added * held["norm.weight"] + held["norm.bias"]
            torch.testing.assert_close(y[b, :, *i], expected)


@pytest.mark.parametrize(("channels", "reduction"), [(64, 2), (256, 2), (17, 4), (1, 2)])
def test_it_has_as_many_parameters_as_its_card_says(channels: int, reduction: int) -> None:
    hidden = max(1, channels // reduction)
    block = NonLocal(channels, reduction=reduction)
    counted = sum(parameter.numel() for parameter in block.parameters())
    assert counted == 4 * channels * hidden + 3 * hidden + 3 * channels


def test_a_new_block_is_the_identity_also_in_training() -> None:
    x = numbers(2, 6, 3, 5).float()
    assert torch.equal(NonLocal(6)(x), x)


def test_a_single_place_cannot_be_trained_on() -> None:
    with pytest.raises(ValueError, match=r"more than one value per channel.* \[1, 6, 1, 1\]"):
        NonLocal(6)(torch.zeros(1, 6, 1, 1))
