"""The task of hard attention: wiring of losses, coin, baselines, schedules and options."""

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
from visattn.training.captioning.hard import HARD_ATTENTION_PRESETS, HardAttentionTask
from visattn.training.captioning.task import CaptioningTask
from visattn.training.distributed.reduce import StepGenerator

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


@pytest.mark.parametrize("coin", ["image", "batch"])
@pytest.mark.parametrize("reduction", ["mean", "paper"])
def test_coin_that_is_always_soft_trains_soft_attention(coin: str, reduction: str) -> None:
    options: dict[str, Any] = {
        "reduction": reduction, "doubly_stochastic_weight": 0.7, "label_smoothing": 0.1,
    }  # fmt: skip
    soft = build_task(CaptioningTask, **options)
    hard = build_task(
        coin=coin, soft_probability=1.0, entropy_weight=0.0, num_rollouts=2, **options
    )
    expected = gradients(soft, soft.training_step(batch(), 0))
    actual = gradients(hard, hard.training_step(batch(), 0))
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-11, atol=1e-15)


def test_words_are_dropped_as_in_soft_attention() -> None:
    options: dict[str, Any] = {"word_dropout": 0.5, "label_smoothing": 0.1}
    soft = build_task(CaptioningTask, **options)
    hard = build_task(
        coin="image", soft_probability=1.0, num_rollouts=1, baseline="none", entropy_weight=0.0,
        **options,
    )  # fmt: skip
    values: list[float] = []
    for task in (soft, hard):
        torch.manual_seed(7)
        values.append(float(task.training_step(batch(), 0).detach()))
        task.word_dropout = 0.0
    assert values[1] == pytest.approx(values[0], rel=1e-11)
    assert values[0] != pytest.approx(float(soft.training_step(batch(), 0).detach()), rel=1e-3)


def test_coin_is_tossed_for_each_image_or_for_the_batch() -> None:
    for coin, mixed in (("image", True), ("batch", False)):
        task, tosses = build_task(coin=coin), set[bool]()
        for step in range(20):
            chosen = task._toss_coin(5, StepGenerator(0, step, torch.device("cpu")))
            tosses |= set(chosen.tolist())
            if not mixed:
                assert len(chosen.unique()) == 1
        assert tosses == {True, False}
    assert build_task(coin="none")._toss_coin(5, generator()) is None


@pytest.mark.parametrize("baseline", ["none", "moving_average", "learned", "leave_one_out"])
@pytest.mark.parametrize("reward", ["to_go", "total", "mean"])
def test_losses_are_those_of_each_word(baseline: str, reward: str) -> None:
    """The gradient of the loss equals a loop over captions, rollouts and words."""
    task = build_task(
        baseline=baseline, reward=reward, num_rollouts=3, reward_weight=0.7, entropy_weight=0.2,
        entropy_until=-1.0,
    )  # fmt: skip
    task.double()
    task.average_reward.fill_(-1.5)
    repeated = batch().repeat_captions(3)
    features = encode_images(task.model, repeated)
    rollouts = task.sample_rollouts(features, repeated, generator())
    output = rollouts.output
    words = categorical_log_prob(output.logits, repeated.captions[output.rows, output.steps + 1])
    value, zero = torch.zeros((2,), dtype=torch.float64).unbind()
    rewards, entropies = {}, {}
    for row in range(12):
        own = output.rows == row
        alpha = rollouts.probabilities[own]
        entropies[row] = -(alpha * alpha.log()).sum(-1)
        logs = words[own].detach()
        steps = range(len(logs))
        amounts = {
            "to_go": [logs[step:].sum() for step in steps],
            "total": [logs.sum() for _ in steps],
            "mean": [logs.mean() for _ in steps],
        }[reward]
        fixed = {"moving_average": -1.5}.get(baseline, 0.0)
        later = [entropies[row].detach()[step + 1 :].sum() for step in steps]
        rewards[row] = [
            0.7 * (amount - fixed) + 0.2 * rest for amount, rest in zip(amounts, later, strict=True)
        ]
        value = value - words[own].sum() - 0.2 * entropies[row].sum()
    for row in range(12):
        others = [other for other in range(row // 3 * 3, row // 3 * 3 + 3) if other != row]
        for step, amount in enumerate(rewards[row]):
            mean = sum((rewards[other][step] for other in others), zero) / 2
            advantage = amount - mean if baseline == "leave_one_out" else amount
            at = (output.rows == row) & (output.steps == step)
            value = value - advantage * rollouts.place_log_probs[at].sum()
    losses = task.losses(rollouts, repeated)
    expected = gradients(task, value / 12)
    actual = gradients(task, losses.total)
    if baseline == "learned":  # its values begin at 0, and its own loss trains it alone
        assert float(losses.baseline.detach()) > 0
    if baseline == "moving_average":
        mean = float(losses.rewards.sum() / repeated.lengths.sum())
        assert float(task.average_reward) == pytest.approx(0.9 * -1.5 + 0.1 * mean)
    assert any(name.startswith("decoder.attention.scorer") for name in actual)
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-9, atol=1e-12)


def test_learned_baseline_sees_the_state_before_the_place() -> None:
    task = build_task(baseline="learned", num_rollouts=2)
    task.double()
    repeated = batch().repeat_captions(2)
    features = encode_images(task.model, repeated)
    first, other = (
        task.sample_rollouts(features, repeated, StepGenerator(seed, 0, torch.device("cpu")))
        for seed in (1, 2)
    )
    for rollouts in (first, other):
        assert not rollouts.hidden.requires_grad
    start = first.output.steps == 0
    assert torch.equal(first.hidden[start], other.hidden[start])
    assert not torch.allclose(first.hidden[~start], other.hidden[~start])


def test_weights_fall_linearly_to_zero() -> None:
    task = build_task()
    factors = []
    for step in (0, 3, 6, 9):
        loop = task.trainer.fit_loop.epoch_loop
        loop.manual_optimization.optim_step_progress.total.completed = 0
        loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
        factors.append(task._falling(0.6))
    assert factors == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert task._falling(None) == task._falling(-1.0) == 1.0


def test_presets_are_complete_and_options_override_them() -> None:
    assert len({tuple(sorted(options)) for options in HARD_ATTENTION_PRESETS.values()}) == 1
    task = build_task(preset="authors", coin="image")
    options = {name: getattr(task, name) for name in HARD_ATTENTION_PRESETS["authors"]}
    assert options == HARD_ATTENTION_PRESETS["authors"] | {"coin": "image"}


def test_wrong_options_are_refused() -> None:
    with pytest.raises(TypeError, match="needs a captioner with hard attention"):
        HardAttentionTask(lambda words: build(words, "soft"), {"words": WORDS})
    with pytest.raises(ValueError, match="train it with HardAttentionTask"):
        CaptioningTask(build, {"words": WORDS}).check_training()
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"num_rollouts": 1}, "num_rollouts must be at least 2 with the baseline leave_one_out"),
        ({"preset": "paper", "num_rollouts": 0}, "num_rollouts must be at least 1"),
        ({"reward_weight": -1.0}, "must be at least 0, got -1.0"),
        ({"coin": "image", "soft_probability": 1.5}, "must be in"),
    )
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            build_task(**options)
