"""The non-local block against a loop."""

import pytest
import torch
from random_numbers import numbers

from visattn.blocks.non_local import NonLocal


@pytest.mark.parametrize("scale", [False, True])
def test_matches_the_equation(scale: bool) -> None:
    block, x = NonLocal(6, scale=scale).double().eval(), numbers(2, 6, 3, 5)
    torch.nn.init.normal_(block.norm.weight)
    state = dict(block.named_parameters()) | dict(block.named_buffers())
    mean, var = state["norm.running_mean"].normal_(), state["norm.running_var"].uniform_(0.5, 2.0)
    y = block(x)
    wq, wk, wv, wz = (
        state[f"{name}.weight"][:, :, 0, 0] for name in ("query", "key", "value", "project")
    )
    places = [(row, column) for row in range(3) for column in range(5)]
    for b in range(2):
        for i in places:
            query = wq @ x[b, :, *i] + state["query.bias"]
            scores = torch.stack([query @ (wk @ x[b, :, *j] + state["key.bias"]) for j in places])
            weights = (scores / 3**0.5 if scale else scores).softmax(0)
            values = torch.stack([wv @ x[b, :, *j] + state["value.bias"] for j in places])
            output = (weights.unsqueeze(-1) * values).sum(0)
            added = wz @ output + state["project.bias"] - mean
            added = added / (var + block.norm.eps).sqrt()
            expected = x[b, :, *i] + added * state["norm.weight"] + state["norm.bias"]
            torch.testing.assert_close(y[b, :, *i], expected)


def test_new_block_is_the_identity_also_in_training() -> None:
    x = numbers(2, 6, 3, 5).float()
    assert torch.equal(NonLocal(6)(x), x)


def test_single_position_is_refused_in_training() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        NonLocal(6)(torch.zeros(1, 6, 1, 1))
