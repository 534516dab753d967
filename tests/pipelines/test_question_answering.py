"""Asking models: answers, places of the maps, refusals."""

import numpy as np
import pytest
import torch
from question_models import (
    QUESTION_WORDS,
    brightest_cell,
    small_mac,
)

import visattn as va
from visattn.data.captions.batch import Vocabulary
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.pipelines.answering import check_question

SIZE = (48, 72)
BLOCK = (slice(24, 36), slice(36, 72))  # rows and columns, whole cells of grids of 4 x 4 and 4 x 6


def photo(block: tuple[slice, slice] = BLOCK) -> np.ndarray:
    pixels = np.zeros((*SIZE, 3), np.uint8)
    pixels[block] = 255
    return pixels


def test_the_map_lies_on_the_block_that_was_attended_to() -> None:
    for mode in ("pad", "squash"):
        [answer] = va.ask(brightest_cell(), photo(), "the ring", resize_mode=mode)
        assert answer.maps is not None
        drawn = answer.maps[0].resize_to_image(SIZE, smooth=False).nan_to_num()
        row, column = divmod(int(drawn.argmax()), SIZE[1])
        assert 24 <= row < 36 <= column, mode
        assert drawn[BLOCK].sum() > 0.5 * drawn.sum(), mode


def test_answers_are_those_of_the_model() -> None:
    model, questions = small_mac(), ["What color is the ring?", "is the ring on the left"]
    model.train()
    first, second = va.ask(model, photo(), questions, num_answers=2)
    assert model.training
    model.eval()
    loaded = va.read_image(photo())
    pixels, _ = resize_to_input(loaded, ResizeSpec(model.img_size, mode="pad"))
    tokens = torch.tensor(
        [[QUESTION_WORDS.index(w) for w in ("what", "color", "is", "the", "ring")]]
    )
    with torch.no_grad():
        output = model(pixels[None], tokens)
    best = output.logits.softmax(-1)[0].topk(2)
    assert [text for text, _ in first.answers] == [model.answers[i] for i in best.indices]
    torch.testing.assert_close(torch.tensor([p for _, p in first.answers]), best.values)
    assert first.maps is not None
    assert first.word_weights is not None
    torch.testing.assert_close(first.maps.values.flatten(1), output.attention[0])
    torch.testing.assert_close(first.word_weights, output.words[0])
    assert first.maps.labels == ("step 1", "step 2")
    assert second.words == ("is", "the", "ring", "on", "the", "left")
    assert second.word_weights is not None
    assert second.word_weights.shape == (2, 6)
    assert repr(first).startswith("Answer('What color is the ring?': ")


def test_unknown_words_are_reported_with_similar_ones() -> None:
    with pytest.warns(UserWarning, match="'rng': did you mean ring"):
        [answer] = va.ask(small_mac(), photo(), "what color is the rng")
    assert answer.unknown == ("rng",)
    assert len(answer.notes) == 1
    vocabulary = Vocabulary(QUESTION_WORDS)
    notes = check_question("why does the ring shine?", vocabulary)
    assert "knows only 2 of the 5 words" in notes[-1]
    assert "was not trained on such questions" in notes[-1]
