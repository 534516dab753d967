"""Sequence recognizer: score functions and windows of columns by hand, stepping, geometry."""

import math
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from random_numbers import numbers
from torch import Tensor, nn

from visattn.blocks.luong import Alignment
from visattn.images.resize import ResizeMode
from visattn.models.base import ImageEncoder, SmallEncoder
from visattn.models.captioning.sequence_recognizer import AttentionScore, SequenceRecognizer
from visattn.pipelines.captioning import caption
from visattn.recording.recorder import record
from visattn.results.kinds import SPECIAL_TOKENS, START

WORDS = (*SPECIAL_TOKENS, *"0123456")
ROWS, COLUMNS = 2, 7
FORMS = list(product(get_args(AttentionScore), get_args(Alignment)))


def recognizer(score: AttentionScore, alignment: Alignment, **options: Any) -> SequenceRecognizer:
    torch.manual_seed(1)
    model = SequenceRecognizer(
        WORDS,
        SmallEncoder((8 * ROWS, 8 * COLUMNS), channels=12),
        score=score,
        alignment=alignment,
        embed_dim=5,
        hidden_size=12 if score == "dot" else 11,
        attention_dim=3,
        window_radius=1.5,
        window_step=2.5,
        **options,
    ).double()
    if alignment == "predictive":  # starts at 0, where every window is in the middle
        attention: Any = model.decoder.attention
        nn.init.normal_(attention.center_vector, std=2.0)
    return model.eval()


def score_by_hand(attention: Any, hidden: Tensor, annotation: Tensor, place: int) -> float:
    learned: dict[str, Any] = dict(attention.scorer.named_parameters())
    weight: Any = learned.get("weights.weight")
    vector: Any = learned.get("weights.vector")
    if attention.score == "additive":
        projected = learned["query.weight"] @ hidden + learned["key.weight"] @ annotation
        return float(learned["vector"] @ torch.tanh(projected + learned["key.bias"]))
    if attention.score == "concat":
        return float(vector @ torch.tanh(weight @ torch.cat((hidden, annotation))))
    if attention.score == "general":
        return float(hidden @ weight @ annotation)
    return float(hidden @ (annotation if attention.score == "dot" else weight[place]))


def attention_by_hand(attention: Any, hidden: Tensor, annotations: Tensor, step: int) -> Tensor:
    """Return unnormalized weights over columns: equations 7 to 10 of Luong et al."""
    near, center = range(ROWS * COLUMNS), 0.0
    if attention.alignment == "monotonic":
        center = min(2.5 * step, COLUMNS - 1)
    if attention.alignment == "predictive":
        inner = torch.tanh(attention.center_hidden.weight @ hidden)
        center = (COLUMNS - 1) * float((attention.center_vector @ inner).sigmoid())
    if attention.alignment != "global":
        near = [place for place in near if abs(place % COLUMNS - center) <= 1.5]
    scores = {place: score_by_hand(attention, hidden, annotations[place], place) for place in near}
    total = sum(math.exp(score) for score in scores.values())
    weights = torch.zeros(ROWS * COLUMNS, dtype=torch.float64)
    for place, score in scores.items():
        weights[place] = math.exp(score) / total
        if attention.alignment == "predictive":
            weights[place] *= math.exp(-((place % COLUMNS - center) ** 2) / (2 * 0.75**2))
    return weights


@torch.no_grad()
@pytest.mark.parametrize(("score", "alignment"), FORMS)
def test_attention_is_that_of_the_equations_step_by_step(
    score: AttentionScore, alignment: Alignment
) -> None:
    model = recognizer(score, alignment)
    attention: Any = model.decoder.attention
    state = model.start(numbers(2, 12, ROWS, COLUMNS))
    for step, token in enumerate((START, 5, 6, 4)):
        expected = [
            attention_by_hand(attention, state.hidden[b, 0], state.annotations[b], step)
            for b in range(2)
        ]
        context, step_attention = attention(state)
        for b, weights in enumerate(expected):
            gate = weights.sum()
            torch.testing.assert_close(step_attention.gate[b, 0], gate)
            torch.testing.assert_close(step_attention.weights[b, 0], weights / gate)
            torch.testing.assert_close(context[b, 0], weights @ state.annotations[b])
            assert torch.equal(step_attention.weights[b, 0] == 0, weights == 0)
        assert (expected[0] == 0).any() == (alignment != "global")
        _, state, _ = model.step(state, torch.full((2, 1), token))


@torch.no_grad()
@pytest.mark.parametrize(("score", "alignment"), FORMS)
def test_teacher_forcing_is_step_after_step(score: AttentionScore, alignment: Alignment) -> None:
    model = recognizer(score, alignment)
    features = numbers(3, 12, ROWS, COLUMNS, seed=2)
    captions = torch.tensor([[START, 5, 9, 4], [START, 8, 0, 0], [START, 0, 0, 0]])
    output = model.teacher_force(features, captions, torch.tensor([4, 2, 1]))
    for row, step in zip(output.rows.tolist(), output.steps.tolist(), strict=True):
        state = model.start(features[row : row + 1])
        for token in captions[row, :step]:
            _, state, _ = model.step(state, token.view(1, 1))
        logits, _, attention = model.step(state, captions[row, step].view(1, 1))
        packed = (output.rows == row) & (output.steps == step)
        torch.testing.assert_close(output.logits[packed], logits[0])
        torch.testing.assert_close(output.attention.weights[packed], attention.weights[0])
        torch.testing.assert_close(output.attention.gate[packed], attention.gate[0])


@pytest.mark.parametrize(("score", "alignment"), FORMS)
def test_every_parameter_learns(score: AttentionScore, alignment: Alignment) -> None:
    model = recognizer(score, alignment).train()
    features = model.encoder(numbers(3, 3, 8 * ROWS, 8 * COLUMNS))
    captions = torch.tensor([[START, 5, 9]] * 3)
    model.teacher_force(features, captions, torch.full((3,), 3)).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_beams_are_those_of_reading_the_sequence_alone() -> None:
    model = recognizer("concat", "monotonic")
    features = numbers(2, 12, ROWS, COLUMNS, seed=3)
    with torch.no_grad():
        output = model.search(features, beam_size=3, num_captions=2, max_length=4)
        for image, rank in product(range(2), range(2)):
            length = int(output.lengths[image, rank])
            tokens = output.tokens[image, rank, :length]
            inputs = torch.cat((torch.tensor([START]), tokens[:-1]))[None]
            read = model.teacher_force(features[image : image + 1], inputs, torch.tensor([length]))
            weights = output.attention_steps.weights[image, rank, :length]
            torch.testing.assert_close(weights, read.attention.weights)


class Brightness(ImageEncoder):
    """Features are the mean brightness of a cell, and a constant."""

    def __init__(self, img_size: tuple[int, int]) -> None:
        super().__init__(img_size, (0.0,) * 3, (1.0,) * 3)
        self.channels, self.grid_size = 2, (img_size[0] // 8, img_size[1] // 8)

    def forward_features(self, images: Tensor) -> tuple[Tensor, ...]:
        bright = nn.functional.avg_pool2d(images.mean(1, keepdim=True), 8)
        return (torch.cat((bright, torch.ones_like(bright)), 1),)


@pytest.mark.parametrize("mode", get_args(ResizeMode))
def test_a_bright_column_of_the_photo_attracts_the_map_there(mode: ResizeMode) -> None:
    """From the pixels of a photo through the grid of columns and back to the photo."""
    model = SequenceRecognizer(WORDS, Brightness((24, 80)), score="general", hidden_size=7)
    attention: Any = model.decoder.attention
    with torch.no_grad():
        for part in (model.decoder.lstm, model.decoder.init_hidden):
            for parameter in part.parameters():
                parameter.zero_()
        bias: Any = model.decoder.init_hidden[2].bias
        bias.fill_(1.0)
        weight: Any = attention.scorer.weights["weight"]
        weight.zero_()[:, 0] = 100.0
    for x in (130, 305):
        photo = np.zeros((120, 440, 3), np.uint8)
        photo[50:70, x - 20 : x + 20] = 255
        (read,) = caption(model, photo, max_length=1, resize_mode=mode)
        placed = read.maps.resize_to_image(smooth=False)[0].nan_to_num(0.0)
        y, column = divmod(int(placed.argmax()), 440)
        cell = int((placed[y] == placed.max()).sum())  # width of a cell on the photo
        assert abs(column + cell / 2 - x) <= cell
        assert abs(y - 60) <= cell


def test_a_recorder_sees_the_maps() -> None:
    model = recognizer("location", "global")
    with torch.no_grad(), record(model) as recording:
        state = model.start(numbers(1, 12, ROWS, COLUMNS))
        _, _, attention = model.step(state, torch.tensor([[START]]))
    (shown,) = [attention_map for attention_map in recording.maps if attention_map.kind == "words"]
    assert torch.equal(shown.values.flatten(), attention.weights.flatten())
    assert shown.values.shape[-2:] == (ROWS, COLUMNS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "cosine"}, "score must be one of additive, dot, .* got 'cosine'"),
        ({"alignment": "local"}, "alignment must be one of global, .* got 'local'"),
        ({"score": "dot"}, "'dot' needs features of hidden_size=128 channels, got 12; set feat"),
        ({"window_radius": 0.5}, r"window_radius must be at least 1 .* got 0\.5 and 2"),
        ({"window_step": -1.0}, r"window_step at least 0 columns, got 3\.0 and -1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # which knows the words too
    with pytest.raises(ValueError, match=message):
        SequenceRecognizer(WORDS, SmallEncoder((16, 40), channels=12), **options)


def test_features_of_another_grid_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the grid \(2, 7\), got \(3, 5\)"):
        recognizer("additive", "global").start(numbers(1, 12, 3, 5))


def test_a_state_counts_its_words() -> None:
    state = recognizer("additive", "global").start(numbers(2, 12, ROWS, COLUMNS))
    assert replace(state, num_words=3).select_images(slice(1)).num_words == 3
