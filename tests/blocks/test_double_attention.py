"""Double attention against a loop."""

import pytest
import torch
from random_numbers import numbers

from visattn.blocks.double_attention import DoubleAttention


def test_matches_the_equation() -> None:
    block, x = DoubleAttention(6, num_descriptors=5).double(), numbers(2, 6, 3, 7)
    y = block(x)
    state = dict(block.named_parameters())
    feature, gather, distribute, project = (
        (state[f"{name}.weight"][:, :, 0, 0], state[f"{name}.bias"])
        for name in ("feature", "gather", "distribute", "project")
    )
    for b in range(2):
        places = list(x[b].flatten(1).T)
        features = [feature[0] @ place + feature[1] for place in places]
        descriptors = []
        for k in range(5):
            scores = torch.stack([gather[0][k] @ place + gather[1][k] for place in places])
            weights = scores.softmax(0)
            descriptors.append(
                torch.stack([w * f for w, f in zip(weights, features, strict=True)]).sum(0)
            )
        for n, place in enumerate(places):
            picked = (distribute[0] @ place + distribute[1]).softmax(0)
            distributed = torch.stack(
                [p * d for p, d in zip(picked, descriptors, strict=True)]
            ).sum(0)
            expected = place + project[0] @ distributed + project[1]
            torch.testing.assert_close(y[b, :, n // 7, n % 7], expected)


def test_records_both_weights_on_the_grid() -> None:
    block, captured = DoubleAttention(6), {}
    for name in ("gather_tap", "distribute_tap"):
        tap = block.get_submodule(name)
        tap.register_forward_hook(lambda _, __, gate, name=name: captured.update({name: gate}))
    block(numbers(2, 6, 3, 7).float())
    assert all(gate.shape == (2, 3, 3, 7) for gate in captured.values())
    torch.testing.assert_close(captured["gather_tap"].sum((2, 3)), torch.ones(2, 3))
    torch.testing.assert_close(captured["distribute_tap"].sum(1), torch.ones(2, 3, 7))


def test_number_of_descriptors_must_be_positive() -> None:
    with pytest.raises(ValueError, match="descriptors must be at least 1, got 0"):
        DoubleAttention(8, num_descriptors=0)
