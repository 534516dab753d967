"""Attention of queries to keys against its equation and against torch, and recorded weights."""

import torch
from random_numbers import numbers
from torch import nn

from visattn.blocks.additive import AdditiveAttention
from visattn.blocks.multi_head import MultiHeadAttention
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


QUERY, KEYS, VALUES = numbers(2, 11, 12), numbers(2, 6, 12, seed=1), numbers(2, 6, 12, seed=2)


def twins() -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    """Return visattn's and torch's modules with equal weights."""
    ours = MultiHeadAttention(12, num_heads=3).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_()
        parts = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    return ours, theirs


def test_output_and_recorded_weights_are_those_of_torch() -> None:
    ours, theirs = twins()
    output, weights = theirs(QUERY, KEYS, VALUES, average_attn_weights=False)
    fused, nothing = ours(QUERY, KEYS, VALUES)
    torch.testing.assert_close(fused, output)
    assert nothing is None
    torch.testing.assert_close(ours(QUERY, KEYS, VALUES, need_weights=True), (output, weights))
    torch.testing.assert_close(ours(QUERY)[0], theirs(QUERY, QUERY, QUERY)[0])
    ours.tap.grid = (2, 3)
    with record(ours) as recording:
        watched, nothing = ours(QUERY, KEYS, VALUES)
    assert nothing is None
    torch.testing.assert_close(watched, output)
    [attention_map] = recording.maps
    assert attention_map.kind == "tokens"
    torch.testing.assert_close(attention_map.values, weights.unflatten(-1, (2, 3)))


def test_weights_without_a_grid_are_not_recorded() -> None:
    words, cells = twins()[0], twins()[0]
    model = nn.ModuleDict({"words": words, "cells": cells})
    cells.tap.grid = (1, 11)
    with record(model) as recording:
        cells(words(QUERY)[0])
    assert [attention_map.site for attention_map in recording.maps] == ["cells.tap"]
