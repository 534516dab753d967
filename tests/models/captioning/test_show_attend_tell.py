"""Show, Attend and Tell against its equations, one caption and one word at a time."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from random_numbers import numbers
from small_captions import GRID, WORDS, batch
from torch import Tensor

from visattn.models.base import SmallEncoder
from visattn.models.captioning.attending_decoder import SoftAttention
from visattn.models.captioning.captioner import TeacherForcedOutput
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.recording.recorder import record


def captioner(*, dropout: float = 0.0, projection: int | None = None) -> ShowAttendTell:
    model = ShowAttendTell(
        WORDS,
        SmallEncoder((16, 40), channels=12),
        embed_dim=11,
        hidden_size=17,
        attention_dim=7,
        dropout=dropout,
        feature_proj_dim=projection,
    )
    return model.double()


def projected(model: ShowAttendTell, place: Tensor) -> Tensor:
    """Linear layer, layer norm and ReLU at a single position."""
    net: Any = model.decoder.feature_proj
    x = net[1].weight @ place + net[1].bias
    x = (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
    return (x * net[2].weight + net[2].bias).clamp(min=0)


def naive(
    model: ShowAttendTell, features: Tensor, words: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Equations 1 to 7 and 13 for a caption: scores, attention and gate per word."""
    a = torch.stack([features[:, y, x] for y in range(GRID[0]) for x in range(GRID[1])])
    if model.feature_proj_dim:
        a = torch.stack([projected(model, place) for place in a])
    mean = sum(a) / len(a)
    nets: tuple[Any, ...] = (model.decoder.init_hidden, model.decoder.init_cell)
    h, c = (
        torch.tanh(net[2].weight @ torch.tanh(net[0].weight @ mean + net[0].bias) + net[2].bias)
        for net in nets
    )
    module, cell = model.decoder.attention, model.decoder.lstm
    assert isinstance(module, SoftAttention)
    scorer: Any = module.scorer
    scores, attention, gates = [], [], []
    for word in words:
        e = [
            scorer.vector
            @ torch.tanh(scorer.key.weight @ place + scorer.key.bias + scorer.query.weight @ h)
            for place in a
        ]
        alpha = torch.stack(e).softmax(0)
        beta = torch.sigmoid(module.gate.weight @ h + module.gate.bias)
        z = beta * sum(weight * place for weight, place in zip(alpha, a, strict=True))
        y = model.decoder.embedding.weight[word]
        gate = cell.weight_ih @ torch.cat((y, z)) + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh
        i, f, g, o = gate.split(17)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        hidden = torch.tanh(
            model.decoder.output_hidden.weight @ h
            + model.decoder.output_hidden.bias
            + y
            + model.decoder.output_context.weight @ z
        )
        scores.append(model.decoder.output.weight @ hidden + model.decoder.output.bias)
        attention.append(alpha)
        gates.append(beta)
    return torch.stack(scores), torch.stack(attention), torch.cat(gates)


def by_caption(read: TeacherForcedOutput, row: int) -> tuple[Tensor, Tensor, Tensor]:
    mine = read.rows == row
    assert torch.equal(read.steps[mine], torch.arange(int(mine.sum())))
    return read.logits[mine], read.attention.weights[mine], read.attention.gate[mine]


@pytest.mark.parametrize("projection", [None, 13], ids=["as they are", "projected"])
@pytest.mark.parametrize("owners", [None, [0, 0, 2, 1]], ids=["one caption each", "owners"])
def test_teacher_forcing_matches_naive_loop_in_values_and_gradients(
    owners: list[int] | None, projection: int | None
) -> None:
    model, (captions, lengths) = captioner(projection=projection), batch()
    features = numbers(4, 12, *GRID).requires_grad_()
    read = model.teacher_force(
        features, captions, lengths, torch.tensor(owners) if owners else None
    )
    plain = [
        naive(model, features[owners[row] if owners else row], captions[row, :length].tolist())
        for row, length in enumerate(lengths.tolist())
    ]
    fast_sum, plain_sum = torch.zeros(2, dtype=torch.float64).unbind()
    for row, expected in enumerate(plain):
        for seed, (fast, slow) in enumerate(zip(by_caption(read, row), expected, strict=True)):
            torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
            weight = numbers(*slow.shape, seed=seed)
            fast_sum, plain_sum = (
                fast_sum + (fast * weight).sum(),
                plain_sum + (slow * weight).sum(),
            )
    learnt = [features, *(p for n, p in model.named_parameters() if not n.startswith("encoder"))]
    for fast, slow in zip(
        torch.autograd.grad(fast_sum, learnt), torch.autograd.grad(plain_sum, learnt), strict=True
    ):
        torch.testing.assert_close(fast, slow, rtol=1e-7, atol=1e-9)
        assert slow.abs().sum() > 0


def test_tokens_after_end_are_ignored() -> None:
    model, (captions, lengths) = captioner(), batch()
    features = numbers(4, 12, *GRID)
    filled = captions.where(torch.arange(5) < lengths[:, None], 7)
    assert not torch.equal(captions, filled)
    ours, other = (model.teacher_force(features, tokens, lengths) for tokens in (captions, filled))
    assert torch.equal(ours.logits, other.logits)
    assert torch.equal(ours.attention.weights, other.attention.weights)


def test_closed_gate_hides_the_image() -> None:
    model = captioner()
    state = model.start(numbers(1, 12, *GRID))
    other = model.start(numbers(1, 12, *GRID, seed=9))
    swapped = replace(state, annotations=other.annotations, keys=other.keys)
    token = torch.tensor([[5]])
    assert not torch.allclose(model.step(state, token)[0], model.step(swapped, token)[0])
    with torch.no_grad():
        attention = model.decoder.attention
        assert isinstance(attention, SoftAttention)
        attention.gate.bias.fill_(-1e9)
    logits, after, _ = model.step(state, token)
    blind, after_blind, _ = model.step(swapped, token)
    assert torch.equal(logits, blind)
    assert torch.equal(after.hidden, after_blind.hidden)


def test_dropout_is_active_in_training_only() -> None:
    model, (captions, lengths) = captioner(dropout=0.5), batch()
    features = numbers(4, 12, *GRID)
    once, twice = (model.teacher_force(features, captions, lengths).logits for _ in range(2))
    assert not torch.equal(once, twice)
    model.eval()
    once, twice = (model.teacher_force(features, captions, lengths).logits for _ in range(2))
    assert torch.equal(once, twice)


def test_dropout_is_on_embeddings_and_before_the_output_layer() -> None:
    model, (captions, lengths) = captioner(dropout=0.5), batch()
    dropped: list[tuple[int, ...]] = []
    model.decoder.dropout.register_forward_hook(lambda _, __, out: dropped.append(tuple(out.shape)))
    model.teacher_force(numbers(4, 12, *GRID), captions, lengths)
    assert dropped == [(4, 5, 11), (12, 11)]
    dropped.clear()
    model.step(model.start(numbers(4, 12, *GRID)), captions[:, :1])
    assert dropped == [(4, 1, 11), (4, 1, 11)]


def test_reordered_state_follows_its_hypotheses_and_images() -> None:
    model = captioner()
    state = model.start(numbers(3, 12, *GRID))
    wide = replace(state, hidden=numbers(3, 5, 17), cell=numbers(3, 5, 17, seed=2))
    parents = torch.tensor([[4, 4, 0, 1], [0, 1, 2, 3], [3, 3, 3, 3]])
    moved = wide.reorder_beams(parents)
    for b in range(3):
        for k in range(4):
            assert torch.equal(moved.hidden[b, k], wide.hidden[b, parents[b, k]])
            assert torch.equal(moved.cell[b, k], wide.cell[b, parents[b, k]])
    assert moved.keys is wide.keys  # nothing of the image is copied per hypothesis
    assert moved.annotations is wide.annotations
    for kept in (torch.tensor([2, 0]), torch.tensor([True, False, True])):
        numbered = kept if kept.dtype == torch.long else kept.nonzero()[:, 0]
        fewer = wide.select_images(kept)
        for name in ("annotations", "keys", "hidden", "cell"):
            assert torch.equal(getattr(fewer, name), getattr(wide, name)[numbered])


def test_keys_are_projected_once_per_image(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (captions, lengths) = captioner(), batch()
    projected: list[tuple[int, ...]] = []
    scorer: Any = model.decoder.attention
    scorer = scorer.scorer
    keys = scorer.project_keys

    def counting(annotations: Tensor) -> Tensor:
        projected.append(tuple(annotations.shape))
        return keys(annotations)

    monkeypatch.setattr(scorer, "project_keys", counting)
    model.teacher_force(numbers(2, 12, *GRID), captions, lengths, torch.tensor([0, 0, 1, 1]))
    model.eval().search(model.encoder(torch.zeros(3, 3, 16, 40, dtype=torch.uint8)), max_length=5)
    assert projected == [(2, 10, 12), (3, 10, 12)]


def test_recorder_captures_the_map_of_every_step() -> None:
    model, (captions, lengths) = captioner(), batch()
    with record(model) as recording:
        read = model.teacher_force(numbers(4, 12, *GRID), captions, lengths)
    assert [tuple(attention_map.values.shape) for attention_map in recording.maps] == [
        (n, *GRID) for n in (4, 3, 3, 1, 1)
    ]
    seen_rows = torch.cat([attention_map.values.flatten(1) for attention_map in recording.maps])
    assert torch.equal(seen_rows, read.attention.weights)
    assert {attention_map.site for attention_map in recording.maps} == {
        "decoder.attention.scorer.tap"
    }


def test_features_are_projected_once_per_image(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (captions, lengths) = captioner(projection=13), batch()
    recorded: list[int] = []
    model.decoder.feature_proj.register_forward_pre_hook(
        lambda _, inputs: recorded.append(len(inputs[0]))
    )
    model.teacher_force(numbers(2, 12, *GRID), captions, lengths, torch.tensor([0, 1, 1, 0]))
    assert recorded == [2]


def test_feature_dropout_requires_a_projection() -> None:
    with pytest.raises(ValueError, match="needs a feature projection"):
        ShowAttendTell(WORDS, SmallEncoder((16, 40), channels=12), feature_dropout=0.1)
