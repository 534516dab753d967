"""Adaptive attention against its equations, one caption and one word at a time."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from random_numbers import numbers
from small_captions import GRID, WORDS, batch
from torch import Tensor

from visattn.models.base import SmallEncoder
from visattn.models.captioning.adaptive_attention import AdaptiveAttention, KnowingWhenToLook
from visattn.models.captioning.captioner import TeacherForcedOutput
from visattn.recording.recorder import record
from visattn.results.kinds import START


def captioner(*, dropout: float = 0.0) -> KnowingWhenToLook:
    torch.manual_seed(0)
    model = KnowingWhenToLook(
        WORDS,
        SmallEncoder((16, 40), channels=12),
        embed_dim=11,
        hidden_size=17,
        attention_dim=7,
        dropout=dropout,
    )
    with torch.no_grad():  # untrained attention is almost uniform
        model.decoder.attention.scorer.vector.mul_(19)
    return model.double()


def naive(
    model: KnowingWhenToLook, features: Tensor, words: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 4 to 13 for one caption: logits, attention and beta per word."""
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
    return torch.stack(logits), torch.stack(attention), torch.stack(betas)


def by_caption(output: TeacherForcedOutput, row: int) -> tuple[Tensor, Tensor, Tensor]:
    own = output.rows == row
    return output.logits[own], output.attention.weights[own], 1 - output.attention.gate[own]


def test_teacher_forcing_is_the_naive_loop_in_values_and_gradients() -> None:
    model, (captions, lengths) = captioner(), batch()
    images = [0, 0, 2, 1]
    features = numbers(3, 12, *GRID).requires_grad_()
    output = model.teacher_force(features, captions, lengths, torch.tensor(images))
    fast_sum, plain_sum = torch.zeros(2, dtype=torch.float64).unbind()
    for row, length in enumerate(lengths.tolist()):
        expected = naive(model, features[images[row]], captions[row, :length].tolist())
        for seed, (fast, slow) in enumerate(zip(by_caption(output, row), expected, strict=True)):
            torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
            weight = numbers(*slow.shape, seed=seed)
            fast_sum, plain_sum = (
                fast_sum + (fast * weight).sum(),
                plain_sum + (slow * weight).sum(),
            )
    learned = [features, *model.decoder.parameters()]
    for fast, slow in zip(
        torch.autograd.grad(fast_sum, learned), torch.autograd.grad(plain_sum, learned), strict=True
    ):
        torch.testing.assert_close(fast, slow, rtol=1e-7, atol=1e-9)
        assert slow.abs().sum() > 0
    betas = 1 - output.attention.gate.detach()
    assert float(betas.max() - betas.min()) > 0.05


def test_teacher_forcing_is_step_after_step() -> None:
    model, (captions, lengths) = captioner(), batch()
    features = numbers(4, 12, *GRID)
    output = model.teacher_force(features, captions, lengths)
    state = model.start(features)
    for step in range(5):
        logits, state, attention = model.step(state, captions[:, step, None])
        now = output.steps == step
        rows = output.rows[now]
        torch.testing.assert_close(output.logits[now], logits[rows, 0])
        torch.testing.assert_close(output.attention.weights[now], attention.weights[rows, 0])
        torch.testing.assert_close(output.attention.gate[now], attention.gate[rows, 0])


def sentinel_score(attention: AdaptiveAttention, *, high: bool) -> None:
    """Make the score of the sentinel far higher, or far lower, than those of all places.

    All parts of the sentinel's key saturate; places keep keys near 0.
    """
    with torch.no_grad():
        attention.scorer.vector.abs_().mul_(1e4)
        attention.scorer.key.weight.zero_()
        attention.scorer.key.bias.zero_()
        attention.scorer.query.weight.zero_()
        attention.sentinel_key.bias.fill_(9.0 if high else -9.0)


def test_beta_of_one_removes_the_image_from_the_output() -> None:
    model, token = captioner(), torch.tensor([[5]])
    state, other = (model.start(numbers(1, 12, *GRID, seed=seed)) for seed in (0, 9))
    swapped = replace(state, annotations=other.annotations, keys=other.keys)
    assert not torch.allclose(model.step(state, token)[0], model.step(swapped, token)[0])
    sentinel_score(model.decoder.attention, high=True)
    logits, _, attention = model.step(state, token)
    assert torch.equal(logits, model.step(swapped, token)[0])
    assert not attention.gate.any()


def test_without_sentinel_it_is_spatial_attention() -> None:
    attention = captioner().decoder.attention
    hidden, sentinel, other = numbers(3, 4, 17).unbind()
    annotations = numbers(4, 10, 17, seed=4)
    keys = attention.scorer.project_keys(annotations)
    scores = attention.scorer.scores(attention.scorer.query(hidden), keys)
    with torch.no_grad():
        attention.scorer.query.weight.zero_()
        scores = attention.scorer.scores(attention.scorer.query(hidden), keys)
        attention.sentinel_key.weight.zero_()
        attention.sentinel_key.bias.copy_(-60 * attention.scorer.vector.sign())
        attention.scorer.vector.mul_(100)
    context, step = attention(hidden, sentinel, annotations, keys)
    again, _ = attention(hidden, other, annotations, keys)
    expected = torch.einsum("bn,bnd->bd", (100 * scores).softmax(-1), annotations)
    torch.testing.assert_close(context, expected)
    assert torch.equal(context, again)
    assert bool((step.gate == 1).all())


def test_sentinel_dropout_trains_some_captions_on_the_image_alone() -> None:
    model, (captions, lengths) = captioner(), batch()
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
            dropped += 1
        else:
            torch.testing.assert_close(gate, expected)
    assert 0 < dropped < len(captions)


def test_sentinel_dropout_is_a_fraction() -> None:
    with pytest.raises(ValueError, match=r"sentinel_dropout must be in \[0, 1\], got 1.5"):
        KnowingWhenToLook(WORDS, SmallEncoder((16, 40), channels=12), sentinel_dropout=1.5)


def test_state_follows_its_hypotheses_and_images() -> None:
    model = captioner()
    state = model.start(numbers(3, 12, *GRID))
    moving = ("hidden", "cell")
    wide = replace(state, **{name: numbers(3, 5, 17, seed=n) for n, name in enumerate(moving)})
    parents = torch.tensor([[4, 4, 0, 1], [0, 1, 2, 3], [3, 3, 3, 3]])
    moved = wide.reorder_beams(parents)
    for name in moving:
        for b in range(3):
            for k in range(4):
                assert torch.equal(
                    getattr(moved, name)[b, k], getattr(wide, name)[b, parents[b, k]]
                )
    for index in (torch.tensor([2, 0]), torch.tensor([True, False, True])):
        rows = index if index.dtype == torch.long else index.nonzero()[:, 0]
        fewer = wide.select_images(index)
        for name in vars(wide):
            assert torch.equal(getattr(fewer, name), getattr(wide, name)[rows])


def test_search_returns_gates_and_maps_of_reading_the_caption() -> None:
    model = captioner().eval()
    features = numbers(3, 12, *GRID)
    with torch.no_grad():
        result = model.search(features, beam_size=3, max_length=7)
        for image in range(3):
            words = result.tokens[image, 0, : result.lengths[image, 0]]
            inputs = torch.cat((torch.tensor([START]), words))[None]
            output = model.teacher_force(
                features[image : image + 1], inputs, torch.tensor([len(inputs[0])])
            )
            at = (image, 0, slice(len(words)))
            torch.testing.assert_close(
                result.attention_steps.weights[at], output.attention.weights[: len(words)]
            )
            torch.testing.assert_close(
                result.attention_steps.gate[at], output.attention.gate[: len(words)]
            )


def test_every_parameter_learns_and_maps_are_recorded() -> None:
    model, (captions, lengths) = captioner(dropout=0.3), batch()
    images = torch.randint(256, (4, 3, 16, 40), dtype=torch.uint8)
    with record(model) as recording:
        output = model.teacher_force(model.encoder(images), captions, lengths)
    maps = torch.cat([entry.values.flatten(1) for entry in recording.maps])
    assert torch.equal(maps, output.attention.weights)
    (output.logits.square().sum() + output.attention.weights.square().sum()).backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert still == []
