"""How a model is tried: the same each time, each way at places of its own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from visattn.functional.glimpses.paths import raster_paths
from visattn.models.ram.location_policy import Start
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.ram.rollout import GlimpseRollout
from visattn.training.tasks.glimpse_eval import GlimpseEvaluator


def model(start: Start = "random") -> RecurrentAttentionModel:
    torch.manual_seed(0)
    made = RecurrentAttentionModel(
        "abc", (9, 11), [0.5], [0.3], glimpse=3, glimpses=4, width=11, what=7, where=5,
        start=start, spread=0.4,
    )  # fmt: skip
    nn.init.normal_(made.policy.mean.weight, std=0.3)
    nn.init.constant_(made.policy.first, 0.25)
    return made.eval()


def images() -> Tensor:
    random = torch.Generator().manual_seed(2)
    return torch.randint(256, (300, 1, 9, 11), dtype=torch.uint8, generator=random)


def tried(
    made: RecurrentAttentionModel, trials: GlimpseEvaluator, batch: int = 0
) -> list[tuple[str, Tensor]]:
    return list(trials.run(made, images(), range(300 * batch, 300 * batch + 300)))


def watched(
    made: RecurrentAttentionModel, trials: GlimpseEvaluator, monkeypatch: Any, batch: int = 0
) -> list[GlimpseRollout]:
    """Where the model looked in each rollout of the trials."""
    kept: list[GlimpseRollout] = []
    roll_out = made.roll_out

    def keep(*given: Any, **options: Any) -> GlimpseRollout:
        kept.append(roll_out(*given, **options))
        return kept[-1]

    monkeypatch.setattr(made, "roll_out", keep)
    tried(made, trials, batch)
    monkeypatch.undo()
    return kept


def test_the_ways_have_names_and_come_in_this_order() -> None:
    assert GlimpseEvaluator().names() == ("mean", "random", "raster")
    assert [name for name, _ in tried(model(), GlimpseEvaluator())] == ["mean", "random", "raster"]
    assert [name for name, _ in tried(model("center"), GlimpseEvaluator(starts=3))][:2] == [
        "mean",
        "random",
    ]
    trials = GlimpseEvaluator(starts=3, samples=2)
    names = [name for name, _ in tried(model(), trials)]
    assert names == ["mean"] * 3 + ["random", "raster", "sampled", "averaged"]
    assert tuple(dict.fromkeys(names)) == trials.names()


def test_what_is_drawn_belongs_to_the_image_whatever_batch_it_is_in() -> None:
    made, trials, order = model(), GlimpseEvaluator(starts=2, samples=2), [299, 7, 158]
    some = trials.run(made, images()[order], order)
    for (name, one), (_, every) in zip(some, tried(made, trials), strict=True):
        assert torch.allclose(one, every[order], atol=1e-6), name


@pytest.mark.parametrize("start", ["random", "center", "learned"])
def test_the_same_batch_is_tried_in_the_same_way_each_time(start: Start) -> None:
    made, trials = model(start), GlimpseEvaluator(starts=2, samples=3)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = tried(made, trials)
    assert torch.equal(torch.get_rng_state(), state)  # nothing else is disturbed
    torch.manual_seed(2)
    for (_, one), (_, other) in zip(first, tried(made, trials), strict=True):
        assert torch.equal(one, other)
        assert not one.requires_grad
        assert one.shape == (300, 4, 3)


def test_other_batches_and_seeds_are_tried_from_other_places() -> None:
    made = model()
    for other in (tried(made, GlimpseEvaluator(), 1), tried(made, GlimpseEvaluator(seed=1))):
        for (name, one), (_, two) in zip(tried(made, GlimpseEvaluator()), other, strict=True):
            assert torch.equal(one, two) == (name == "raster")


def test_every_way_looks_where_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    one, two, anywhere, raster, *sampled = watched(made, GlimpseEvaluator(2, 3), monkeypatch)
    for looks in (one, two):
        assert torch.equal(looks.samples, looks.means)
    assert not torch.equal(one.places[:, 0, 0], two.places[:, 0, 0])
    firsts = torch.cat([looks.places[:, 0, 0] for looks in (one, two, anywhere, *sampled)])
    for places in (firsts, anywhere.places.flatten(0, 2)):
        assert abs(float(places.mean())) < 0.1
        assert float(places.std()) == pytest.approx(3**-0.5, rel=0.1)
    assert torch.equal(raster.places[:, 0], raster_paths(300, 4))
    assert anywhere.means.shape[2] == raster.means.shape[2] == 0
    assert len(sampled) == 3
    for looks in sampled:
        off = (looks.samples - looks.means) / 0.4
        assert abs(float(off.mean())) < 0.1
        assert float(off.std()) == pytest.approx(1, rel=0.1)
    assert not torch.equal(sampled[0].places, sampled[1].places)


@pytest.mark.parametrize("start", ["center", "random"])
def test_aimed_it_starts_at_the_middles_and_goes_where_the_policy_means(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(start)
    middles = 2 * torch.rand(300, 2, generator=torch.Generator().manual_seed(5)) - 1
    looks = []
    roll_out = made.roll_out
    monkeypatch.setattr(
        made, "roll_out", lambda *a, **o: looks.append(roll_out(*a, **o)) or looks[-1]
    )
    trials = GlimpseEvaluator(samples=1)
    ways = [name for name, _ in trials.run(made, images(), range(300), middles)]
    assert ways == list(trials.names(aimed=True))
    aimed = looks[ways.index("aimed")]
    assert torch.equal(aimed.places[:, 0, 0], middles)
    assert torch.equal(aimed.samples, aimed.means)
    means = roll_out(made.normalized(images()), start=middles)
    assert torch.equal(aimed.scores, means.scores)


def test_a_place_that_is_learned_is_meant_by_the_mean_and_sampled_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mean, _, _, sampled = watched(model("learned"), GlimpseEvaluator(samples=1), monkeypatch)
    assert torch.equal(mean.places[:, 0, 0], torch.full((300, 2), 0.25))
    assert float(sampled.samples[:, 0, 0].std()) == pytest.approx(0.4, rel=0.15)
    assert torch.equal(sampled.places[:, 0], sampled.samples[:, 0].clamp(-1, 1))


def test_probabilities_are_averaged_and_not_their_logarithms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two rollouts lean to the first class, one is sure of the second: the first wins."""
    made, chances = model("center"), iter([1e-6, 0.8, 0.8])

    def say(shown: Tensor, **_: Any) -> GlimpseRollout:
        chance = next(chances) if _.get("sampled") else 0.5
        scores = torch.tensor([chance, 1 - chance]).log().expand(len(shown), 1, 4, 2)
        nothing = torch.zeros(len(shown), 1, 4, 2)
        return GlimpseRollout(nothing, scores, nothing, nothing, nothing)

    monkeypatch.setattr(made, "roll_out", say)
    given = dict(tried(made, GlimpseEvaluator(samples=3)))
    said = given["averaged"][0, -1]
    assert said.tolist() == pytest.approx([1.6 / 3, 1.4 / 3], abs=1e-5)
    assert given["sampled"][0, -1].argmax() == 1
