"""Evaluation of glimpse models: deterministic sources of locations, and what they look at."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.models.glimpses.ram import GlimpseRollout, RecurrentAttentionModel
from visattn.pipelines.scanpath import raster_scanpaths
from visattn.training.glimpses.evaluation import SOURCES, evaluate_glimpses

COUNT = 300
IMAGES = torch.randint(
    256, (COUNT, 1, 9, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
)


@pytest.fixture
def model() -> RecurrentAttentionModel:
    torch.manual_seed(0)
    built = RecurrentAttentionModel(
        "abc", (9, 11), [0.5], [0.3], glimpse_size=3, num_glimpses=4, hidden_size=11,
        what_dim=7, where_dim=5, policy_std=0.4,
    )  # fmt: skip
    nn.init.normal_(built.policy.mean.weight, std=0.3)
    return built.eval()


def evaluate(
    model: RecurrentAttentionModel, first: int = 0, **options: Any
) -> list[tuple[str, Tensor]]:
    return list(evaluate_glimpses(model, IMAGES, range(first, first + COUNT), **options))


def test_random_numbers_belong_to_the_image_and_the_seed(model: RecurrentAttentionModel) -> None:
    options: Any = {"num_starts": 2, "num_samples": 2}
    order = [299, 7, 158]
    state = torch.get_rng_state()
    whole = evaluate(model, **options)
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is not used
    torch.manual_seed(2)
    subset = evaluate_glimpses(model, IMAGES[order], order, **options)
    for (name, part), (_, every) in zip(subset, whole, strict=True):
        assert torch.allclose(part, every[order], atol=1e-6), name
        assert not every.requires_grad
    for other in (evaluate(model, COUNT, **options), evaluate(model, seed=1, **options)):
        for (name, first), (_, second) in zip(whole, other, strict=True):
            assert torch.equal(first, second) == (name == "raster")


def test_locations_of_each_source(
    model: RecurrentAttentionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts: list[GlimpseRollout] = []
    rollout = model.rollout

    def kept(*args: Any, **options: Any) -> GlimpseRollout:
        rollouts.append(rollout(*args, **options))
        return rollouts[-1]

    monkeypatch.setattr(model, "rollout", kept)
    centers = 2 * torch.rand(COUNT, 2, generator=torch.Generator().manual_seed(5)) - 1
    names = [name for name, _ in evaluate(model, centers=centers, num_starts=2, num_samples=3)]
    assert tuple(dict.fromkeys(names)) == SOURCES
    assert names[:3] == ["greedy", "greedy", "random"]
    first, second, random, raster, centered, *sampled = rollouts
    for greedy in (first, second, centered):
        assert torch.equal(greedy.policy_samples, greedy.policy_means)
    assert not torch.equal(first.locations[:, 0, 0], second.locations[:, 0, 0])
    starts = [each.locations[:, 0, 0] for each in (first, second, random, *sampled)]
    for places in (torch.cat(starts), random.locations.flatten(0, 2)):  # uniform on the image
        assert abs(float(places.mean())) < 0.1
        assert float(places.std()) == pytest.approx(3**-0.5, rel=0.1)
    assert torch.equal(raster.locations[:, 0], raster_scanpaths(COUNT, 4))
    assert torch.equal(centered.locations[:, 0, 0], centers)
    assert len(sampled) == 3
    for each in sampled:
        residuals = (each.policy_samples - each.policy_means) / 0.4
        assert abs(float(residuals.mean())) < 0.1
        assert float(residuals.std()) == pytest.approx(1, rel=0.1)
    assert not torch.equal(sampled[0].locations, sampled[1].locations)
    model.random_start = False  # type: ignore[misc] (as that of DRAM)
    assert [name for name, _ in evaluate(model, num_starts=3)] == ["greedy", "random", "raster"]


def test_averaged_is_the_mean_of_probabilities(
    model: RecurrentAttentionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rollouts favor the first class, one is certain of the second: the first wins."""
    probabilities = iter([1e-6, 0.8, 0.8])

    def rollout(inputs: Tensor, **options: Any) -> GlimpseRollout:
        first = next(probabilities) if options.get("sample") else 0.5
        scores = torch.tensor([first, 1 - first]).log().expand(len(inputs), 1, 4, 2)
        nothing = torch.zeros(len(inputs), 1, 4, 2)
        return GlimpseRollout(nothing, scores, nothing, nothing, nothing)

    monkeypatch.setattr(model, "rollout", rollout)
    results = dict(evaluate(model, num_samples=3))
    assert results["averaged"][0, -1].tolist() == pytest.approx([1.6 / 3, 1.4 / 3], abs=1e-5)
    assert results["sampled"][0, -1].argmax() == 1
