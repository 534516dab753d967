"""Evaluation of glimpse models: error per glimpse, and deterministic sources of locations."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.models.glimpses.ram import GlimpseRollout, RecurrentAttentionModel
from visattn.pipelines.scanpath import raster_scanpaths
from visattn.training.glimpses.evaluation import GlimpseErrors, GlimpseEvaluator


def build_model() -> RecurrentAttentionModel:
    torch.manual_seed(0)
    model = RecurrentAttentionModel(
        "abc", (9, 11), [0.5], [0.3], glimpse_size=3, num_glimpses=4, hidden_size=11,
        what_dim=7, where_dim=5, policy_std=0.4,
    )  # fmt: skip
    nn.init.normal_(model.policy.mean.weight, std=0.3)
    return model.eval()


def images() -> Tensor:
    random = torch.Generator().manual_seed(2)
    return torch.randint(256, (300, 1, 9, 11), dtype=torch.uint8, generator=random)


def evaluate(
    model: RecurrentAttentionModel, evaluator: GlimpseEvaluator, batch: int = 0
) -> list[tuple[str, Tensor]]:
    return list(evaluator.evaluate(model, images(), range(300 * batch, 300 * batch + 300)))


def recorded_rollouts(
    model: RecurrentAttentionModel, evaluator: GlimpseEvaluator, monkeypatch: Any, batch: int = 0
) -> list[GlimpseRollout]:
    """Return the rollouts of the evaluator."""
    rollouts: list[GlimpseRollout] = []
    rollout = model.rollout

    def record(*args: Any, **options: Any) -> GlimpseRollout:
        rollouts.append(rollout(*args, **options))
        return rollouts[-1]

    monkeypatch.setattr(model, "rollout", record)
    evaluate(model, evaluator, batch)
    monkeypatch.undo()
    return rollouts


def test_location_sources_and_their_order() -> None:
    assert GlimpseEvaluator().location_sources() == ("greedy", "random", "raster")
    names = [name for name, _ in evaluate(build_model(), GlimpseEvaluator())]
    assert names == ["greedy", "random", "raster"]
    model = build_model()
    model.random_start = False  # type: ignore[misc] (as that of DRAM)
    fixed_start = evaluate(model, GlimpseEvaluator(num_starts=3))
    assert [name for name, _ in fixed_start][:2] == ["greedy", "random"]
    evaluator = GlimpseEvaluator(num_starts=3, num_samples=2)
    names = [name for name, _ in evaluate(build_model(), evaluator)]
    assert names == ["greedy"] * 3 + ["random", "raster", "sampled", "averaged"]
    assert tuple(dict.fromkeys(names)) == evaluator.location_sources()


def test_random_numbers_belong_to_the_image() -> None:
    model, evaluator, order = (
        build_model(),
        GlimpseEvaluator(num_starts=2, num_samples=2),
        [299, 7, 158],
    )
    subset = evaluator.evaluate(model, images()[order], order)
    for (name, part), (_, every) in zip(subset, evaluate(model, evaluator), strict=True):
        assert torch.allclose(part, every[order], atol=1e-6), name


def test_evaluation_is_deterministic() -> None:
    model, evaluator = build_model(), GlimpseEvaluator(num_starts=2, num_samples=3)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = evaluate(model, evaluator)
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is not used
    torch.manual_seed(2)
    for (_, logits), (_, repeated) in zip(first, evaluate(model, evaluator), strict=True):
        assert torch.equal(logits, repeated)
        assert not logits.requires_grad
        assert logits.shape == (300, 4, 3)


def test_other_batches_and_seeds_have_other_locations() -> None:
    model = build_model()
    for other in (
        evaluate(model, GlimpseEvaluator(), 1),
        evaluate(model, GlimpseEvaluator(seed=1)),
    ):
        for (name, first), (_, second) in zip(
            evaluate(model, GlimpseEvaluator()), other, strict=True
        ):
            assert torch.equal(first, second) == (name == "raster")


def test_locations_of_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model()
    first, second, random, raster, *sampled = recorded_rollouts(
        model, GlimpseEvaluator(2, 3), monkeypatch
    )
    for rollout in (first, second):
        assert torch.equal(rollout.policy_samples, rollout.policy_means)
    assert not torch.equal(first.locations[:, 0, 0], second.locations[:, 0, 0])
    rollouts = (first, second, random, *sampled)
    starts = torch.cat([rollout.locations[:, 0, 0] for rollout in rollouts])
    for places in (starts, random.locations.flatten(0, 2)):
        assert abs(float(places.mean())) < 0.1
        assert float(places.std()) == pytest.approx(3**-0.5, rel=0.1)
    assert torch.equal(raster.locations[:, 0], raster_scanpaths(300, 4))
    assert random.policy_means.shape[2] == raster.policy_means.shape[2] == 0
    assert len(sampled) == 3
    for rollout in sampled:
        residuals = (rollout.policy_samples - rollout.policy_means) / 0.4
        assert abs(float(residuals.mean())) < 0.1
        assert float(residuals.std()) == pytest.approx(1, rel=0.1)
    assert not torch.equal(sampled[0].locations, sampled[1].locations)


def test_centered_starts_at_the_centers_and_follows_the_greedy_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build_model()
    centers = 2 * torch.rand(300, 2, generator=torch.Generator().manual_seed(5)) - 1
    rollouts: list[GlimpseRollout] = []
    rollout = model.rollout
    monkeypatch.setattr(
        model, "rollout", lambda *a, **o: rollouts.append(rollout(*a, **o)) or rollouts[-1]
    )
    evaluator = GlimpseEvaluator(num_samples=1)
    sources = [name for name, _ in evaluator.evaluate(model, images(), range(300), centers)]
    assert sources == list(evaluator.location_sources(centered=True))
    centered = rollouts[sources.index("centered")]
    assert torch.equal(centered.locations[:, 0, 0], centers)
    assert torch.equal(centered.policy_samples, centered.policy_means)
    greedy = rollout(model.normalize(images()), init_locations=centers)
    assert torch.equal(centered.logits, greedy.logits)


def test_averaged_is_the_mean_of_probabilities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two rollouts favor the first class, one is certain of the second: the first wins."""
    model, probabilities = build_model(), iter([1e-6, 0.8, 0.8])

    def fake_rollout(inputs: Tensor, **options: Any) -> GlimpseRollout:
        first = next(probabilities) if options.get("sample") else 0.5
        scores = torch.tensor([first, 1 - first]).log().expand(len(inputs), 1, 4, 2)
        nothing = torch.zeros(len(inputs), 1, 4, 2)
        return GlimpseRollout(nothing, scores, nothing, nothing, nothing)

    monkeypatch.setattr(model, "rollout", fake_rollout)
    results = dict(evaluate(model, GlimpseEvaluator(num_samples=3)))
    averaged = results["averaged"][0, -1]
    assert averaged.tolist() == pytest.approx([1.6 / 3, 1.4 / 3], abs=1e-5)
    assert results["sampled"][0, -1].argmax() == 1


def test_error_per_glimpse_matches_a_count() -> None:
    random = torch.Generator().manual_seed(1)
    scores = torch.randn(13, 5, 3, generator=random)
    labels = torch.randint(3, (13,), generator=random)
    errors = GlimpseErrors(5)
    for part in (slice(0, 7), slice(7, 8), slice(8, 13)):  # batches of any size
        errors.update(scores[part], labels[part])
    for glimpse in range(5):
        wrong = sum(int(scores[n, glimpse].argmax()) != int(labels[n]) for n in range(13))
        assert float(errors.per_glimpse()[glimpse]) == torch.tensor(wrong / 13)
    assert 0 < errors.per_glimpse().min() < errors.per_glimpse().max()
