"""Rows of words are those of eager attention in the generation itself."""

from typing import Any

import pytest
import torch
from torch import Tensor
from vlm_runs import (
    VLMS,
    eager,
    greedy,
    model_inputs,
    options,
    plain_generate,
    replays,
    rows_in_flight,
    sharp,
)

from visattn.pipelines.words.spans import word_means

RESAMPLED = ("blip2", "instructblip", "idefics2", "kosmos2")
BEAMS_MOVE = ("ved", "llava", "gemma3", "mllama")
TOLERANCE = 2e-6
CLEAR = 1e-3


def tolerance(family: str) -> float:
    """Return the largest difference of weights from rounding; Pix2Struct does not scale scores."""
    return 1e-5 if family == "pix2struct" else TOLERANCE


def distance(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())


SOME = ("ved", "trocr", "git", "llava", "qwen2_vl", "gemma3", "florence2", "mllama", "t5gemma2",
        "blip2", "lfm2_vl")  # fmt: skip
ALL, EXACT = (  # BLIP returns no weights of its decoder
    [family if family in SOME else pytest.param(family, marks=pytest.mark.slow)
     for family in VLMS if family != left_out]
    for left_out in ("", "blip")
)  # fmt: skip


@pytest.mark.parametrize("family", ALL)
def test_maps_and_ids(family: str) -> None:
    replay = greedy(family)
    model: Any = sharp(family)[0]
    with torch.no_grad():
        plain = model.generate(**model_inputs(family), **options(
            family, return_dict_in_generate=True, output_logits=True))  # fmt: skip
    tokens = replay.text.tokens
    assert plain.sequences[0, -len(tokens) :].tolist() == tokens.tolist()
    assert replay.words.words
    log_probs = torch.cat(plain.logits).float().log_softmax(1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(replay.text.log_probs, log_probs, atol=1e-4, rtol=0)
    caption = replay.caption("attention")
    assert caption.maps.values.shape == (len(caption.words), *replay.placement.grid_size)
    on_photo = word_means(replay.attention(), replay.words.spans) @ replay.placement.visible
    torch.testing.assert_close(caption.maps.values.flatten(1).sum(1), on_photo, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(caption.gates), on_photo, atol=1e-5, rtol=0)
    assert any("learned queries" in note for note in replay.notes) == (family in RESAMPLED)


@pytest.mark.parametrize("family", EXACT)
def test_rows_equal_eager_attention(family: str) -> None:
    replay = greedy(family)
    with eager(sharp(family)[0]):
        output = plain_generate(family, output_attentions=True)
    expected = rows_in_flight(family, replay, output, [0] * len(replay.text.tokens))
    assert expected.shape == replay.text.rows.shape
    assert distance(expected, replay.text.rows) <= tolerance(family)
    assert distance(expected[:, :-1], replay.text.rows[:, 1:]) > CLEAR  # the row of the next word


@pytest.mark.parametrize("family", [*BEAMS_MOVE, "t5gemma2"])
def test_rows_equal_those_of_the_generation_and_its_chosen_beam(family: str) -> None:
    replay = replays(family, num_beams=4)[0]
    with eager(sharp(family)[0]):
        output = plain_generate(family, num_beams=4, output_attentions=True)
    count = len(replay.text.tokens)
    assert output.sequences[0, -count:].tolist() == replay.text.tokens.tolist()
    chosen = output.beam_indices[0, :count].tolist()
    rows = rows_in_flight(family, replay, output, chosen)
    assert distance(rows, replay.text.rows) <= tolerance(family)
    if family in BEAMS_MOVE and any(chosen):  # random weights differ between processors
        first = rows_in_flight(family, replay, output, [0] * count)
        assert distance(first, replay.text.rows) > CLEAR


def test_heads_on_the_batch_axis_are_all_kept() -> None:
    heads = [replays("trocr", heads=[head])[0].text.rows for head in (0, 1)]  # bmm
    assert distance(*heads) > CLEAR
    assert distance(sum(heads, torch.zeros(())) / 2, greedy("trocr").text.rows) <= TOLERANCE
