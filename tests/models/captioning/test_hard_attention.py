"""Hard attention in the decoder of the soft captioner: selection, rollouts, recorded maps."""

from pathlib import Path

import pytest
import torch
from random_numbers import numbers
from small_captions import GRID, WORDS, batch
from torch import Tensor

import visattn as va
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import (
    Places,
    PlaceSampler,
    ShowAttendTell,
    select_places,
)
from visattn.recording.recorder import record


def captioner(attention: str = "hard", **options: str) -> ShowAttendTell:
    torch.manual_seed(0)
    model = ShowAttendTell(
        WORDS,
        SmallEncoder((16, 40), channels=12),
        embed_dim=11,
        hidden_size=17,
        attention_dim=7,
        dropout=0.0,
        attention=attention,  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )
    with torch.no_grad():  # untrained attention is almost uniform
        model.decoder.attention.scorer.vector.mul_(19)  # type: ignore[union-attr,operator]
    return model.double()


def test_teacher_forcing_is_step_after_step_and_reads_one_cell() -> None:
    model, (captions, lengths) = captioner(), batch()
    features = numbers(4, 12, *GRID)
    output = model.teacher_force(features, captions, lengths)
    state, cells = model.start(features), set[int]()
    for step in range(5):
        logits, state, attention = model.step(state, captions[:, step, None])
        now = output.steps == step
        rows = output.rows[now]
        torch.testing.assert_close(output.logits[now], logits[rows, 0])
        assert torch.equal(output.attention.weights[now], attention.weights[rows, 0])
        cells |= set(attention.weights.argmax(-1).flatten().tolist())
    assert len(cells) > 3
    weights = output.attention.weights
    assert torch.equal(weights.sum(-1), torch.ones(12, dtype=torch.float64))
    assert set(weights.flatten().tolist()) == {0.0, 1.0}


def test_expectation_is_soft_attention_and_argmax_its_mode() -> None:
    hard, soft, (captions, lengths) = captioner(), captioner("soft"), batch()
    soft.load_state_dict(hard.state_dict())
    features = numbers(4, 12, *GRID)
    first = soft.start(features)
    expected = soft.step(first, captions[:, :1])[2].weights
    assert torch.equal(hard.step(first, captions[:, :1])[2].weights.argmax(-1), expected.argmax(-1))
    hard.places = "expectation"
    ours, theirs = (model.teacher_force(features, captions, lengths) for model in (hard, soft))
    assert torch.equal(ours.logits, theirs.logits)
    assert torch.equal(ours.attention.weights, theirs.attention.weights)


def test_sampled_places_have_the_probabilities_of_the_attention() -> None:
    probabilities = torch.tensor([0.5, 0.125, 0.0, 0.375])
    torch.manual_seed(3)
    frequencies = select_places(probabilities.expand(4096, 4), "sample").mean(0)
    errors = (probabilities * (1 - probabilities) / 4096).sqrt()
    assert bool(((frequencies - probabilities).abs() <= 4 * errors).all())


def test_rollouts_read_the_sampled_places() -> None:
    model, (captions, lengths) = captioner(), batch()
    features, uniforms = numbers(2, 12, *GRID), torch.rand(4, 5)
    images = torch.tensor([0, 1, 1, 0])
    sampler = PlaceSampler(uniforms)
    rollouts = model.rollout(features, captions, lengths, images, sampler)
    output, read = rollouts.output, rollouts.output.attention.weights
    ends = rollouts.probabilities.cumsum(-1)
    places = read.argmax(-1)
    below = (ends - rollouts.probabilities).gather(1, places[:, None])[:, 0]
    drawn = uniforms[output.rows, output.steps]
    assert bool((below <= drawn).all())
    assert bool((drawn < ends.gather(1, places[:, None])[:, 0]).all())
    expected = rollouts.probabilities.gather(1, places[:, None])[:, 0].log()
    torch.testing.assert_close(rollouts.place_log_probs, expected)
    padded = rollouts.pad(rollouts.place_log_probs, 2)
    assert padded.shape == (2, 2, 5)
    assert float(padded[1, 1, 0].detach()) == float(
        rollouts.place_log_probs[(output.rows == 3) & (output.steps == 0)].detach()
    )
    assert not padded[1, 1, 1:].any()


def test_recorder_sees_the_weights_that_were_read() -> None:
    model, (captions, lengths) = captioner(), batch()
    with record(model) as recording:
        output = model.teacher_force(numbers(4, 12, *GRID), captions, lengths)
    maps = torch.cat([entry.values.flatten(1) for entry in recording.maps])
    assert torch.equal(maps, output.attention.weights)


def test_search_and_caption_follow_the_places(tmp_path: Path) -> None:
    model = captioner(places="sample").float().eval()
    va.save(model, tmp_path / "hard.safetensors")
    loaded = va.load(tmp_path / "hard.safetensors")
    assert isinstance(loaded, ShowAttendTell)
    assert (loaded.attention, loaded.places) == ("hard", "sample")
    random = torch.Generator().manual_seed(2)
    photos = torch.randint(256, (3, 32, 80, 3), dtype=torch.uint8, generator=random).numpy()

    def maps(places: Places | None, seed: int = 0, count: int = 3) -> list[Tensor]:
        captions = va.caption(
            loaded, list(photos[:count]), beam_size=2, max_length=5, places=places, seed=seed
        )
        assert all(each.maps.metadata["places"] == (places or "sample") for each in captions)
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


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="attention must be one of soft, hard, got 'mean'"):
        captioner("mean")
    with pytest.raises(ValueError, match="places must be one of argmax, sample, expectation"):
        captioner(places="best")
    photo = torch.zeros(20, 20, 3, dtype=torch.uint8).numpy()
    with pytest.raises(ValueError, match="needs a model with hard attention"):
        va.caption(captioner("soft"), photo, places="argmax")
