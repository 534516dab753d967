"""Adaptive attention against its equations, one caption and one word at a time."""

from typing import Any

import torch
from random_numbers import numbers
from small_captions import GRID, assert_equal_to_a_loop, batch, captioner
from torch import Tensor

from visattn.models.captioning.knowing_when_to_look import KnowingWhenToLook


def naive(
    model: KnowingWhenToLook, features: Tensor, words: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 4 to 13 for one caption: logits, attention and gate, 1 - beta, per word."""
    net: Any = model.decoder
    scorer, cell, project, hidden_map = (
        net.attention.scorer, net.lstm, net.feature_proj, net.sentinel_hidden,
    )  # fmt: skip
    places = [features[:, y, x] for y in range(GRID[0]) for x in range(GRID[1])]
    a = [project(place) for place in places]
    v_global = net.global_proj(sum(places) / len(places))
    h = m = torch.zeros(17, dtype=torch.float64)
    logits, attention, betas = [], [], []
    for word in words:
        x = torch.cat((net.embedding.weight[word], v_global))
        g = torch.sigmoid(net.sentinel_input(x) + hidden_map(h))
        gates = cell.weight_ih @ x + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh
        i, f, c, o = gates.split(17)
        m = torch.sigmoid(f) * m + torch.sigmoid(i) * torch.tanh(c)
        h = torch.sigmoid(o) * torch.tanh(m)
        s = g * torch.tanh(m)
        keys = [scorer.key(place) for place in a] + [net.attention.sentinel_key(s)]
        z = torch.stack([scorer.vector @ torch.tanh(key + scorer.query(h)) for key in keys])
        both = z.softmax(0)  # over the places and the sentinel
        beta, alpha = both[-1], z[:-1].softmax(0)
        torch.testing.assert_close((1 - beta) * alpha, both[:-1])
        context = beta * s + (1 - beta) * sum(w * v for w, v in zip(alpha, a, strict=True))
        logits.append(net.output(torch.tanh(net.output_hidden(context + h))))
        attention.append(alpha)
        betas.append(beta)
    return torch.stack(logits), torch.stack(attention), 1 - torch.stack(betas)


def test_teacher_forcing_is_the_naive_loop_in_values_and_gradients() -> None:
    output = assert_equal_to_a_loop(captioner(KnowingWhenToLook, sharp=True), naive, [0, 0, 2, 1])
    betas = 1 - output.attention.gate.detach()
    assert float(betas.max() - betas.min()) > 0.05


def test_sentinel_dropout_trains_some_captions_on_the_image_alone() -> None:
    model: KnowingWhenToLook = captioner(KnowingWhenToLook, sharp=True)
    captions, lengths = batch()
    features = numbers(4, 12, *GRID)
    model.decoder.sentinel_dropout = 0.5
    evaluated = model.eval().teacher_force(features, captions, lengths).attention.gate
    assert bool((evaluated < 1).all()), "the sentinel is never dropped in evaluation"
    torch.manual_seed(0)
    output = model.train().teacher_force(features, captions, lengths)
    dropped = 0
    for row in range(len(captions)):
        gate, expected = (gates[output.rows == row] for gates in (output.attention.gate, evaluated))
        if bool((gate == 1).all()):
            dropped += 1  # spatial attention alone
        else:
            torch.testing.assert_close(gate, expected)
    assert 0 < dropped < len(captions)
