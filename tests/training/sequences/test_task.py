"""Task of sequence recognizers: its loss and its metrics by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from visattn.data.classification.cluttered_mnist import ClutterSpec
from visattn.data.classification.digit_sequences import (
    DigitSequenceBatch,
    DigitSequences,
    DigitSequenceSpec,
    DigitTarget,
)
from visattn.models.base import SmallEncoder
from visattn.models.captioning.captioner import AttentionStep, TeacherForcedOutput
from visattn.models.captioning.sequence_recognizer import SequenceRecognizer
from visattn.results.kinds import END, SPECIAL_TOKENS, START
from visattn.training.sequences.task import SEQUENCE_METRICS, SequenceRecognitionTask


def digit_batch(target: DigitTarget = "sequence") -> DigitSequenceBatch:
    digits = torch.full((11, 1, 9, 7), 200, dtype=torch.uint8)
    spec = DigitSequenceSpec(canvas=ClutterSpec((16, 56)), max_digits=3, gap=(2, 5), target=target)
    return DigitSequences(digits, torch.arange(11) % 10, spec, seed=3).draw([*range(13)])


def sequence_task(num_classes: int = 10, **options: Any) -> SequenceRecognitionTask:
    torch.manual_seed(2)
    words = [*SPECIAL_TOKENS, *map(str, range(num_classes))]
    task = SequenceRecognitionTask(
        lambda words: SequenceRecognizer(words, SmallEncoder((16, 56), channels=8)),
        {"words": words, "max_length": 3},
        **options,
    )
    task.log = lambda *_, **__: None
    return task


def labels(batch: DigitSequenceBatch) -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(batch.labels, batch.lengths, strict=True)]


def evaluated(
    task: SequenceRecognitionTask, batch: DigitSequenceBatch, stage: str
) -> dict[str, Tensor]:
    trainer = SimpleNamespace(state=SimpleNamespace(fn=stage))
    task.trainer = trainer  # pyright: ignore[reportAttributeAccessIssue]
    task.eval().evaluate(batch, "test")
    return task.evaluation("test").compute()


def test_the_loss_is_the_cross_entropy_of_digits_and_end_tokens() -> None:
    task, batch = sequence_task(), digit_batch()
    model = task.model.eval()
    log_probs: list[Tensor] = []
    for image, digits in zip(batch.images, labels(batch), strict=True):
        state = model.start(model.encoder(image[None].expand(-1, 3, -1, -1)))
        inputs = [START, *(digit + 4 for digit in digits)]
        for token, target in zip(inputs, [*inputs[1:], END], strict=True):
            logits, state, _ = model.step(state, torch.tensor([[token]]))
            log_probs.append(logits[0, 0].log_softmax(-1)[target])
    expected = -torch.stack(log_probs).mean()
    torch.testing.assert_close(task.training_step(batch, 0), expected)
    torch.testing.assert_close(evaluated(task, batch, "fit")["loss"], expected)
    assert len({len(digits) for digits in labels(batch)}) == 3  # the order by length matters
    assert task.monitor == ("val/sequence_error", "min")


def test_errors_count_wrong_sequences_and_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    task, batch = sequence_task(), digit_batch()
    true = ["".join(map(str, digits)) for digits in labels(batch)]
    predicted = list(true)
    predicted[0] += "5"  # one too many
    predicted[4] = ""  # all missing
    predicted[7] = str((int(true[7][0]) + 1) % 10) + true[7][1:]
    rows = [torch.tensor([*(int(digit) + 4 for digit in text), END]) for text in predicted]
    tokens = pad_sequence(rows, batch_first=True, padding_value=END)[:, None]
    monkeypatch.setattr(task.model, "search", lambda *_, **__: SimpleNamespace(tokens=tokens))
    scores = evaluated(task, batch, "fit")
    assert scores["sequence_error"].item() == pytest.approx(3 / 13)
    edits = 1 + len(true[4]) + 1
    assert scores["digit_error"].item() == pytest.approx(edits / sum(map(len, true)))


@pytest.mark.parametrize(("shift", "expected"), [(0, 1.0), (3, 0.0)])
def test_pointing_asks_for_the_cell_of_the_digit(
    shift: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps with one cell at the center of the digit, or three columns beside it."""
    task, batch = sequence_task(), digit_batch()
    true_output = task._teacher_force
    inside = []

    def pointing_output(features: Tensor, batch: DigitSequenceBatch) -> Any:
        output, targets, order = true_output(features, batch)
        weights = torch.zeros_like(output.attention.weights)
        for place, (row, step) in enumerate(zip(output.rows, output.steps, strict=True)):
            image = order[row]
            if step == batch.num_digits[image]:
                weights[place, 0] = 1  # the end token is not scored
                continue
            left, top, right, bottom = batch.boxes[image, step].tolist()
            column, line = int((left + right) / 16), int((top + bottom) / 16)
            weights[place, 7 * line + (column + shift) % 7] = 1
            width = min(right, 8 * column + 8) - max(left, 8 * column)
            inside.append(width * (min(bottom, 8 * line + 8) - max(top, 8 * line)) / 64)
        attention = AttentionStep(weights, output.attention.gate)
        return TeacherForcedOutput(output.logits, attention, *output[2:]), targets, order

    monkeypatch.setattr(task, "_teacher_force", pointing_output)
    scores = evaluated(task, batch, "test")
    assert scores["pointing_game"].item() == expected
    if not shift:
        correctness = sum(inside) / len(inside)
        assert scores["correctness"].item() == pytest.approx(correctness, abs=1e-5)
    assert scores["uniform_baseline"].item() == pytest.approx(9 * 7 / (16 * 56), abs=1e-5)


def test_sums_are_words_and_have_no_maps_to_score() -> None:
    task, batch = sequence_task(28), digit_batch("addition")
    assert set(evaluated(task, batch, "test")) == set(SEQUENCE_METRICS)
    (tokens,) = {tuple(task._tokens(batch).shape)}
    assert tokens == (13, 1)
    assert [task._text(row) for row in task._tokens(batch)] == [str(s) for [s] in labels(batch)]
    assert {len(str(s)) for [s] in labels(batch)} == {1, 2}
