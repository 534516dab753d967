"""Soft, hard and adaptive attention against their equations, one caption and one word at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from random_numbers import numbers, pixels
from small_captions import GRID, assert_equal_to_a_loop, batch, captioner
from torch import Tensor

import visattn as va
from visattn.models.captioning.captioner import Places
from visattn.models.captioning.knowing_when_to_look import KnowingWhenToLook
from visattn.models.captioning.show_attend_tell import ShowAttendTell


def naive(
    model: ShowAttendTell, features: Tensor, words: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 1 to 7 and 13 for a caption: scores, attention and gate per word."""
    net: Any = model.decoder
    scorer, gate = net.attention.scorer, net.attention.gate
    places = [features[:, y, x] for y in range(GRID[0]) for x in range(GRID[1])]
    a = [net.feature_proj(place) if model.feature_proj_dim else place for place in places]
    mean = sum(a) / len(a)
    h, c = net.init_hidden(mean), net.init_cell(mean)
    scores, attention, gates = [], [], []
    for word in words:
        e = [scorer.vector @ torch.tanh(scorer.key(place) + scorer.query(h)) for place in a]
        alpha, beta = torch.stack(e).softmax(0), torch.sigmoid(gate(h))
        z = beta * sum(weight * place for weight, place in zip(alpha, a, strict=True))
        y = net.embedding.weight[word]
        h, c = net.lstm(torch.cat((y, z)), (h, c))
        scores.append(net.output(torch.tanh(net.output_hidden(h) + y + net.output_context(z))))
        attention.append(alpha)
        gates.append(beta)
    return torch.stack(scores), torch.stack(attention), torch.cat(gates)


@pytest.mark.parametrize("projection", [None, 13], ids=["as they are", "projected"])
@pytest.mark.parametrize("owners", [None, [0, 0, 2, 1]], ids=["one caption each", "owners"])
def test_teacher_forcing_matches_naive_loop_in_values_and_gradients(
    owners: list[int] | None, projection: int | None
) -> None:
    assert_equal_to_a_loop(captioner(ShowAttendTell, feature_proj_dim=projection), naive, owners)


def test_dropout_is_on_embeddings_and_before_the_output_layer() -> None:
    model, (captions, lengths) = captioner(ShowAttendTell, dropout=0.5), batch()
    dropped: list[tuple[int, ...]] = []
    model.decoder.dropout.register_forward_hook(lambda _, __, out: dropped.append(tuple(out.shape)))
    model.teacher_force(numbers(4, 12, *GRID), captions, lengths)
    assert dropped == [(4, 5, 11), (12, 11)]
    dropped.clear()
    model.step(model.start(numbers(4, 12, *GRID)), captions[:, :1])
    assert dropped == [(4, 1, 11), (4, 1, 11)]


def hard(places: Any = None, attention: Any = "hard") -> ShowAttendTell:
    return captioner(ShowAttendTell, sharp=True, attention=attention, places=places)


def test_sampled_positions_have_the_probabilities_of_the_attention() -> None:
    model, token = hard("sample"), torch.tensor([[5]])
    torch.manual_seed(3)
    state = model.start(numbers(1, 12, *GRID)).reorder_beams(torch.zeros(1, 4096).long())
    _, _, attention = model.step(state, token.expand(1, 4096))
    assert attention.probabilities is not None
    alpha, frequencies = attention.probabilities[0, 0], attention.weights[0].mean(0)
    errors = (alpha * (1 - alpha) / 4096).sqrt()
    assert bool(((frequencies - alpha).abs() <= 4 * errors).all())


def test_rollouts_read_the_positions_that_follow_from_their_numbers() -> None:
    model, (captions, lengths) = hard(), batch()
    uniforms, images = torch.rand(4, 5, dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    output = model.rollout(numbers(2, 12, *GRID), captions, lengths, images, uniforms)
    alpha = output.attention.probabilities
    assert alpha is not None
    chosen = output.attention.weights.argmax(-1, keepdim=True)
    ends, drawn = alpha.cumsum(-1).gather(1, chosen), uniforms[output.rows, output.steps, None]
    assert bool((ends - alpha.gather(1, chosen) <= drawn).all())
    assert bool((drawn < ends).all())
    assert alpha.requires_grad
    assert not output.attention.weights.requires_grad


def test_search_and_caption_follow_the_places(tmp_path: Path) -> None:
    va.save(hard("sample").float().eval(), tmp_path / "hard.safetensors")
    loaded = va.load(tmp_path / "hard.safetensors")
    assert isinstance(loaded, ShowAttendTell)
    assert (loaded.attention, loaded.places) == ("hard", "sample")
    photos = pixels(3, 32, 80, 3).numpy()

    def maps(places: Places | None, seed: int = 0, count: int = 3) -> list[Tensor]:
        captions = va.caption(
            loaded, list(photos[:count]), beam_size=2, max_length=5, places=places, seed=seed
        )
        assert all(each.maps.info.places == (places or "sample") for each in captions)
        assert {each.smooth for each in captions} == {places == "expectation"}
        return [each.maps.values for each in captions]

    argmax, sampled = maps("argmax"), maps(None)
    assert loaded.places == "sample"  # the model is as it was
    assert all(set(each.unique().tolist()) == {0.0, 1.0} for each in (*argmax, *sampled))
    assert all(each.max() < 1 for each in maps("expectation"))
    state = torch.get_rng_state()
    assert torch.equal(sampled[0], maps("sample", count=1)[0])  # whatever the batch
    assert torch.equal(state, torch.get_rng_state())
    others = [maps("sample", seed) for seed in (1, 2, 3)]
    assert any(not torch.equal(each[0], sampled[0]) for each in others)


def naive_adaptive(
    model: KnowingWhenToLook, features: Tensor, words: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 4 to 13 for one caption: logits, attention and gate, 1 - beta, per word."""
    net: Any = model.decoder
    scorer, cell = net.attention.scorer, net.lstm
    places = [features[:, y, x] for y in range(GRID[0]) for x in range(GRID[1])]
    a = [net.feature_proj(place) for place in places]
    v_global = net.global_proj(sum(places) / len(places))
    h = m = torch.zeros(17, dtype=torch.float64)
    logits, attention, betas = [], [], []
    for word in words:
        x = torch.cat((net.embedding.weight[word], v_global))
        g = torch.sigmoid(net.sentinel_input(x) + net.sentinel_hidden(h))
        h, m = cell(x, (h, m))
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
    output = assert_equal_to_a_loop(
        captioner(KnowingWhenToLook, sharp=True), naive_adaptive, [0, 0, 2, 1]
    )
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
