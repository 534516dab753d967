"""The question-answering task: losses, hop supervision, controls, and what is learned first."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from visattn.data.captions.batch import Vocabulary
from visattn.data.questions.batch import QuestionBatch
from visattn.data.questions.sort_of_clevr import SortOfClevrImages
from visattn.metrics.grounding import box_coverage
from visattn.models.base import SmallEncoder
from visattn.models.vqa.cross_attention import CrossAttentionVQA
from visattn.models.vqa.model import AnswerOutput, VQAModel
from visattn.pipelines.answering import check_question
from visattn.training.data_module import InputSpec
from visattn.training.questions.data import QuestionData
from visattn.training.questions.task import QuestionTask, answer_loss, hop_targets


def build_task(data: Any, *, size: int = 80, **options: Any) -> QuestionTask:
    def model(words: list[str], answers: list[str]) -> VQAModel:
        torch.manual_seed(1)
        encoder = SmallEncoder((size, size), channels=16)
        return CrossAttentionVQA(words, answers, encoder, dim=16)

    task = QuestionTask(model, data.data_info, **options)
    task.log = lambda *_, **__: None  # type: ignore[method-assign]
    return task


@pytest.fixture(scope="module")
def clevr() -> QuestionData:
    data = QuestionData(SortOfClevrImages(8, 5, 5, questions=3), batch_size=2)
    data.input_spec = InputSpec((80, 80), (0.5,) * 3, (0.5,) * 3)
    return data


def test_weights_of_other_words_or_answers_are_refused(clevr: QuestionData) -> None:
    task = build_task(clevr)
    for name in ("words", "answers"):
        values = list(reversed(getattr(task.model, name)))
        saved = {"visattn": {"model": {"arguments": {name: [*values[:-1], "dog"]}}}}
        with pytest.raises(ValueError, match=rf"trained with other {name}; .*'dog'"):
            task.on_load_checkpoint(saved)


@torch.no_grad()
def test_the_maps_of_hops_are_supervised_where_a_question_has_referents(
    clevr: QuestionData,
) -> None:
    """By minus the log of the attention on them, the mean over these maps."""
    batch = clevr.example_batch(2)
    plain, supervised = (build_task(clevr, hop_loss_weight=w).eval() for w in (0.0, 5.0))
    output = plain.model(batch.images, batch.questions, batch.image_indices)
    assert output.attention is not None
    targets = hop_targets(batch, (10, 10), 3)
    inside = targets / targets.amax(-1, keepdim=True)  # the best covered cell counts as 1
    mass = (output.attention * inside).sum(-1)[targets.sum(-1) > 0]
    difference = supervised.training_step(batch, 0) - plain.training_step(batch, 0)
    torch.testing.assert_close(difference, -5 * mass.log().mean(), rtol=1e-4, atol=0)


def test_hops_beyond_the_last_step_get_the_last_step(clevr: QuestionData) -> None:
    """Against the coverage of each referent alone, one question at a time."""
    batch = clevr.example_batch(3)
    assert batch.boxes is not None
    targets = hop_targets(batch, (10, 10), 3)
    for row, question in enumerate(batch.rows()):
        boxes = batch.boxes[int(batch.image_indices[row])]
        for hop in range(3):
            step = question.referents[min(hop, len(question.referents) - 1)]
            covered = [box_coverage(boxes[index, None] / 80, (10, 10)).flatten() for index in step]
            torch.testing.assert_close(targets[row, hop], torch.stack(covered).amax(0))


def test_soft_labels_are_divided_by_their_sum_and_unknown_answers_left_out(
    clevr: QuestionData,
) -> None:
    batch = clevr.example_batch(1)
    logits = torch.randn(len(batch.answers), 10, generator=torch.Generator().manual_seed(0))
    soft = torch.zeros_like(logits)
    soft[0, 3], soft[0, 5], soft[1, 2] = 1.0, 0.6, 0.3
    logs = logits.double().log_softmax(1)
    expected = -((logs[0, 3] + 0.6 * logs[0, 5]) / 1.6 + logs[1, 2]) / 2
    loss, count = answer_loss(logits, batch._replace(soft_scores=soft))
    assert count == 2
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    answers: Tensor = batch.answers.clone()
    answers[2:] = -1
    loss, count = answer_loss(logits, batch._replace(answers=answers))
    assert count == 2
    torch.testing.assert_close(loss, cross_entropy(logits[:2], answers[:2]))
    unknown = batch._replace(answers=torch.full_like(answers, -1))
    assert answer_loss(logits, unknown) == (0, 0)


def test_the_validation_loss_is_the_mean_over_known_answers(
    clevr: QuestionData, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build_task(clevr).eval()
    monkeypatch.setattr(QuestionTask, "fitting", True)
    batches = [clevr.example_batch(count) for count in (1, 2)]
    answers: Tensor = batches[0].answers.clone()
    answers[1:] = -1
    batches[0] = batches[0]._replace(answers=answers)
    losses: list[Tensor] = []
    for batch in batches:
        task.evaluate(batch, "val")
        output = task.model(batch.images, batch.questions, batch.image_indices)
        known = batch.answers >= 0
        losses.append(cross_entropy(output.logits[known], batch.answers[known], reduction="none"))
    loss = task.evaluation("val").compute()["loss"]
    torch.testing.assert_close(loss, torch.cat(losses).mean().detach())


def test_the_first_steps_learn_from_the_first_types_alone(
    clevr: QuestionData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words that only other questions have, get no gradient until the first steps are over."""
    task = build_task(clevr, first_types=["shape"], first_steps=3)
    words = task.model.get_parameter("questions.embedding.weight")
    for step, learns in ((0, False), (2, False), (3, True)):
        monkeypatch.setattr(QuestionTask, "global_step", step)
        task.zero_grad()
        task.training_step(clevr.example_batch(8), 0).backward()
        assert words.grad is not None
        gradients = dict(zip(task.model.words, words.grad.abs().sum(1), strict=True))
        assert gradients["red"] > 0
        assert bool(gradients["closest"] > 0) == learns


def test_the_first_steps_end_when_their_types_are_learned(
    clevr: QuestionData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right answers end them, also in a run that goes on from a checkpoint, and for good."""
    task = build_task(clevr, first_types=["shape"], first_steps=50, first_accuracy=0.9)
    batch = clevr.example_batch(8)
    kinds: list[set[str]] = []
    right = [False, *[True] * 24, False, False]

    def answer(batch: QuestionBatch) -> AnswerOutput:
        kinds.append({question.type for question in batch.rows()})
        shift = 0 if right[len(kinds) - 1] else 1
        logits = one_hot((batch.answers + shift) % len(task.model.answers), len(task.model.answers))
        return AnswerOutput(10.0 * logits, None)

    monkeypatch.setattr(task, "_answer", answer)
    for _ in range(12):
        task.training_step(batch, 0)
    checkpoint: dict[str, Any] = {"state_dict": {}}
    task.on_save_checkpoint(checkpoint)
    assert 0.6 < checkpoint["visattn"]["first_score"] < 0.9
    task._first_score = 0.0
    task.on_load_checkpoint(checkpoint)
    for _ in right[12:]:
        task.training_step(batch, 0)
    alone = [kind == {"shape"} for kind in kinds]
    assert 20 <= sum(alone) <= 24
    assert alone == sorted(alone, reverse=True)


def test_the_model_remembers_how_the_questions_of_its_training_begin(clevr: QuestionData) -> None:
    model = build_task(clevr).model
    assert set(model.question_beginnings) == {"how many", "is the", "what is"}
    vocabulary, beginnings = Vocabulary(model.words), model.question_beginnings
    assert check_question("What is the shape of the red object?", vocabulary, beginnings) == ()
    [note] = check_question("Red object on the left half?", vocabulary, beginnings)
    assert note.startswith("no training question begins with 'red object', so the answer")


def test_what_does_not_fit_the_data_is_refused(clevr: QuestionData) -> None:
    info = {**clevr.data_info, "num_steps": 0}
    other = QuestionData(SortOfClevrImages(4, 2, 2))
    other.input_spec = build_task(other, size=32).input_spec
    cases: tuple[tuple[Any, str], ...] = (
        (lambda: build_task(clevr, first_types=["size"], first_steps=3),
         "first_types must be of shape, left, top.*; got .*size"),
        (lambda: QuestionTask(lambda w, a: build_task(clevr).model, info, hop_loss_weight=1.0),
         "data with their objects"),
        (lambda: list(other.val_dataloader()), r"needs images of \(32, 32\) pixels"),
    )  # fmt: skip
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
