"""Hard attention: losses by loops, schedule and options; soft attention on relaxed samples."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Trainer
from torch import Tensor

from visattn.data.captions.batch import CaptionBatch, CaptionSample, Vocabulary, collate_captions
from visattn.functional.reinforce import categorical_log_prob
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.results.kinds import SPECIAL_TOKENS
from visattn.training.captioning.evaluation import encode_images
from visattn.training.captioning.hard import HardAttentionTask
from visattn.training.captioning.relaxed import RelaxedPlaces
from visattn.training.captioning.task import CaptioningTask
from visattn.training.reduce import StepGenerator

WORDS = [*SPECIAL_TOKENS, *"abcdef"]


def build(words: list[str], attention: str = "hard") -> ShowAttendTell:
    torch.manual_seed(3)
    encoder = SmallEncoder((16, 40), channels=8, coord_scale=1.0)
    model = ShowAttendTell(
        words,
        encoder,
        embed_dim=7,
        hidden_size=11,
        attention_dim=5,
        dropout=0.0,
        attention=attention,  # type: ignore[arg-type]
    )
    with torch.no_grad():  # untrained attention is almost uniform
        model.decoder.attention.scorer.vector.mul_(19)  # type: ignore[union-attr,operator]
    return model.double().eval()  # batch norm has no batch statistics


def build_task(task: type[CaptioningTask] = HardAttentionTask, **settings: Any) -> Any:
    attention = "hard" if task is HardAttentionTask else "soft"
    built = task(lambda words: build(words, attention), {"words": WORDS}, **settings)
    built.trainer = Trainer(max_steps=10, accelerator="cpu", logger=False, barebones=True)
    built.log = lambda *_, **__: None
    return built


def batch() -> CaptionBatch:
    random = torch.Generator().manual_seed(3)
    captions = (("a b c", "d"), ("f e", "b c d e f"))
    samples = [
        CaptionSample(
            str(index), torch.randint(256, (3, 16, 40), generator=random, dtype=torch.uint8), texts
        )
        for index, texts in enumerate(captions)
    ]
    return collate_captions(samples, Vocabulary(WORDS))


def gradients(task: Any, loss: Tensor) -> dict[str, Tensor]:
    names, weights = zip(*task.model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
    return {name: grad for name, grad in zip(names, gradients, strict=True) if grad is not None}


def generator() -> StepGenerator:
    return StepGenerator(5, 7, torch.device("cpu"))


def test_losses_are_those_of_each_word() -> None:
    """The gradient of the loss equals a loop over captions, rollouts and words."""
    task = build_task(num_rollouts=3, entropy_weight=0.2)
    repeated = batch().repeat_captions(3)
    features = encode_images(task.model, repeated)
    output = task.sample_rollouts(features, repeated, generator())
    chosen = (output.attention.weights * output.attention.probabilities).sum(-1).log()
    words = categorical_log_prob(output.logits, repeated.captions[output.rows, output.steps + 1])
    value, zero = torch.zeros((2,), dtype=torch.float64).unbind()
    rewards, entropies = {}, {}
    for row in range(12):
        own = output.rows == row
        alpha = output.attention.probabilities[own]
        entropies[row] = -(alpha * alpha.log()).sum(-1)
        logs = words[own].detach()
        steps = range(len(logs))
        later = [entropies[row].detach()[step + 1 :].sum() for step in steps]
        rewards[row] = [logs[step:].sum() + 0.2 * later[step] for step in steps]
        value = value - words[own].sum() - 0.2 * entropies[row].sum()
    for row in range(12):
        others = [other for other in range(row // 3 * 3, row // 3 * 3 + 3) if other != row]
        for step, amount in enumerate(rewards[row]):
            mean = sum((rewards[other][step] for other in others), zero) / 2
            at = (output.rows == row) & (output.steps == step)
            value = value - (amount - mean) * chosen[at].sum()
    expected = gradients(task, value / 12)
    actual = gradients(task, task.losses(output, repeated).total)
    assert any(name.startswith("decoder.attention.scorer") for name in actual)
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "paper"])
def test_rollouts_of_certain_places_train_words_as_soft_attention(reduction: str) -> None:
    """Where each word has one possible place, both read the same features."""
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": 0.1}
    soft, hard = build_task(CaptioningTask, **options), build_task(entropy_weight=0.0, **options)
    for task in (soft, hard):
        with torch.no_grad():
            task.model.decoder.attention.scorer.vector.mul_(1e6)
    losses = [float(task.training_step(batch(), 0).detach()) for task in (soft, hard)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_words_are_dropped() -> None:
    task = build_task(word_dropout=0.5)
    torch.manual_seed(7)
    dropped = float(task.training_step(batch(), 0).detach())
    task.word_dropout = 0.0
    assert dropped != pytest.approx(float(task.training_step(batch(), 0).detach()), rel=1e-3)


def test_the_entropy_weight_falls_linearly_to_zero() -> None:
    task = build_task(entropy_until=0.6)
    factors = []
    for step in (0, 3, 6, 9):
        loop = task.trainer.fit_loop.epoch_loop
        loop.manual_optimization.optim_step_progress.total.completed = 0
        loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
        factors.append(task._remaining())
    assert factors == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_a_captioner_without_hard_attention_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a captioner with hard attention"):
        HardAttentionTask(lambda words: build(words, "soft"), {"words": WORDS})


# ---------------------------------------------------------------- relaxed samples


def plain(attention: str = "soft") -> ShowAttendTell:
    torch.manual_seed(0)
    encoder = SmallEncoder((32, 32), channels=8)
    sizes: dict[str, Any] = {"embed_dim": 6, "hidden_size": 8, "attention_dim": 6, "dropout": 0.0}
    return ShowAttendTell(WORDS, encoder, **sizes, attention=attention)  # type: ignore[arg-type]


def read_weights(model: ShowAttendTell) -> Tensor:
    """Return the weights with which the places of two captions are read; with a gradient."""
    torch.manual_seed(1)
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    captions = torch.tensor([[1, 4, 5, 2], [1, 5, 4, 2]])
    output = model.teacher_force(model.encoder(images), captions, torch.tensor([4, 4]))
    output.logits.sum().backward()
    return output.attention.weights


def test_places_are_sampled_from_the_start_on_and_in_training_alone() -> None:
    model = plain()
    task: Any = SimpleNamespace(model=model)
    callback = RelaxedPlaces(start=0.75, temperature=0.1)
    expected = read_weights(model)
    for step, samples in ((0, False), (74, False), (75, True), (99, True)):
        trainer: Any = SimpleNamespace(global_step=step, estimated_stepping_batches=100)
        callback.on_train_batch_start(trainer, task, None, step)
        weights = read_weights(model)
        torch.testing.assert_close(weights.sum(-1), torch.ones(len(weights)))
        assert torch.equal(weights, expected) != samples
        if samples:  # nearly one place, and not the same for each word
            assert weights.amax(-1).median() > 0.9 > expected.max()
            assert len(weights.argmax(-1).unique()) > 1
    evaluated = read_weights(model.eval())
    callback.on_fit_end(trainer, task)
    assert torch.equal(read_weights(model), evaluated)
    assert torch.equal(read_weights(model.train()), expected)


def test_gradients_pass_through_the_sample_of_a_map_that_has_underflowed() -> None:
    model = plain()
    with torch.no_grad():
        model.decoder.attention.scorer.vector.mul_(1e4)
    model.decoder.attention.sample_temperature = 0.7
    read_weights(model)
    gradients = [p.grad for p in model.encoder.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
    other: Any = SimpleNamespace(model=plain("hard"))
    nothing: Any = None
    with pytest.raises(ValueError, match="soft attention.*ShowAttendTell with HardAttention"):
        RelaxedPlaces().setup(nothing, other, "fit")
