"""Additive attention of recurrent networks against its equation, and recorded weights."""

import torch
from random_numbers import numbers

from visattn.blocks.additive import AdditiveAttention
from visattn.recording.recorder import record


def test_matches_the_equation() -> None:
    attention = AdditiveAttention(5, query_dim=3, attention_dim=7).double()
    annotations, queries = numbers(2, 11, 5), numbers(2, 3, 3, seed=1)
    output, weights = attention(queries, annotations, attention.key(annotations))
    for b in range(2):
        for k in range(3):
            scores = [
                attention.vector
                @ torch.tanh(
                    attention.key.weight @ place
                    + attention.key.bias
                    + attention.query.weight @ queries[b, k]
                )
                for place in annotations[b]
            ]
            expected = torch.stack(scores).softmax(0)
            torch.testing.assert_close(weights[b, k], expected)
            torch.testing.assert_close(output[b, k], expected @ annotations[b])
    assert attention.query.bias is None


def test_rows_sum_to_one_and_are_recorded() -> None:
    attention = AdditiveAttention(5, query_dim=3, attention_dim=7).double()
    annotations = numbers(2, 15, 5)
    attention.tap.grid = (3, 5)
    assert not attention.tap.wanted
    with record(attention) as recording:
        assert attention.tap.wanted
        _, weights = attention(numbers(2, 4, 3), annotations, attention.key(annotations))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, dtype=torch.float64))
    [attention_map] = recording.maps
    assert attention_map.kind == "words"
    assert torch.equal(attention_map.values, weights.unflatten(-1, (3, 5)))
