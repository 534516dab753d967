"""Insertion, deletion, ROAD: curves and ranks, and imputation against a dense linear system."""

import pytest
import torch
from hypothesis import given, strategies as st
from scipy.stats import spearmanr
from torch import Tensor

from visattn.functional.numerics import gaussian_blur
from visattn.metrics.faithfulness import (
    PerturbationSchedule,
    insertion_deletion,
    linear_imputation,
    perturbation_ends,
    pixel_ranks,
    removal_mask,
    removal_ranks,
    road_scores,
    spearman_correlation,
)

SIZE = (5, 7)
PIXELS = 35


def linear(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(3, *SIZE, generator=generator, dtype=torch.float64)
    return weights, torch.randn(2, 3, *SIZE, generator=generator, dtype=torch.float64)


def test_insertion_and_deletion_of_a_linear_model_have_a_closed_form() -> None:
    """The pixel of rank r is removed between r/n and (r+1)/n: it stays for (r + 1/2)/n."""
    weights, images = linear()
    ranks = pixel_ranks(torch.randn(2, *SIZE), SIZE, [1, 2])
    plan = PerturbationSchedule(steps=PIXELS)
    result = insertion_deletion(lambda x: (weights * x).sum((1, 2, 3)), images, ranks, plan)
    stays = ((ranks + 0.5) / PIXELS).unflatten(1, SIZE)
    each = (weights * images).sum(1)
    assert torch.allclose(result["deletion"], (each * stays).sum((1, 2)), atol=1e-9)
    blurred = (weights * gaussian_blur(images, 0.25)).sum(1)
    inserted = (each * (1 - stays) + blurred * stays).sum((1, 2))
    assert torch.allclose(result["insertion"], inserted, atol=1e-9)


def test_coarse_maps_are_upsampled_and_ties_are_random() -> None:
    maps = torch.tensor([[[0.0, 1.0]]])
    ranks = pixel_ranks(maps, (1, 4), [0])
    assert ranks[0, 3] < ranks[0, 2] < ranks[0, 1] < ranks[0, 0] or ranks[0, 3] == 0
    even = torch.zeros(2, 1, 1)
    first, second = pixel_ranks(even, SIZE, [0, 1])
    assert not torch.equal(first, second)
    assert torch.equal(pixel_ranks(even[:1], SIZE, [1])[0], second)
    with pytest.raises(ValueError, match="must be finite"):
        pixel_ranks(torch.full((1, 2, 2), torch.nan), SIZE, [0])


def test_road_ranks_the_decisive_pixel_first() -> None:
    """The score is a single bright pixel of a constant image; imputation removes it."""
    images = torch.zeros(2, 3, *SIZE)
    images[:, :, 2, 3] = 1.0
    right, wrong = torch.zeros(2, *SIZE), torch.zeros(2, *SIZE)
    right[:, 2, 3], wrong[:, 2, 3] = 1.0, -1.0

    def answers(x: Tensor) -> Tensor:
        return x[:, 0, 2, 3]

    for maps, expected in ((right, 1.0), (wrong, -1.0)):
        ranks = pixel_ranks(maps, SIZE, [5, 6])
        actual = road_scores(answers, images, ranks, PerturbationSchedule(noise_std=0.0), [5, 6])
        assert actual["road"].tolist() == pytest.approx([expected] * 2, abs=1e-5)


@pytest.mark.parametrize("count", [2, 100])
def test_scores_do_not_depend_on_how_many_variants_are_scored_at_once(count: int) -> None:
    weights, images = linear(4)
    ranks = pixel_ranks(torch.randn(2, *SIZE), SIZE, [1, 2])
    plan, batches = PerturbationSchedule(steps=5), []

    def answers(x: Tensor) -> Tensor:
        batches.append(len(x))
        return (weights * x).sum((1, 2, 3)) * torch.tensor([1.0, 2.0]).repeat(len(x) // 2)

    expected = insertion_deletion(answers, images, ranks, plan)
    expected |= road_scores(answers, images, ranks, plan, [1, 2])
    assert set(batches) == {2}
    ends = perturbation_ends(answers, images, plan)
    batches.clear()
    result = insertion_deletion(
        answers, images, ranks, plan, ends=ends, variants_per_batch=count
    ) | road_scores(answers, images, ranks, plan, [1, 2], variants_per_batch=count)
    assert max(batches) == 2 * min(count, 4)
    assert sum(batches) == 2 * (4 + 4 + 8)
    for name, values in expected.items():
        torch.testing.assert_close(result[name], values, msg=name)


def test_road_noise_is_independent_of_the_batch() -> None:
    weights, images = linear(3)
    ranks = pixel_ranks(torch.randn(2, *SIZE), SIZE, [1, 2])

    def answers(x: Tensor) -> Tensor:
        return (weights * x).sum((1, 2, 3))

    together = road_scores(answers, images, ranks, PerturbationSchedule(), [1, 2])
    alone = road_scores(answers, images[1:], ranks[1:], PerturbationSchedule(), [2])
    other = road_scores(answers, images[1:], ranks[1:], PerturbationSchedule(), [3])
    assert together["road"][1].item() == pytest.approx(alone["road"].item(), abs=1e-4)
    assert abs(other["road"].item() - alone["road"].item()) > 1e-4


def test_fractions_are_rounded_to_pixels() -> None:
    ranks = removal_ranks(torch.rand(2, PIXELS), torch.rand(2, PIXELS).argsort())
    shares = torch.tensor([0, 0.1, 0.5, 1], dtype=torch.float64)
    counts = removal_mask(ranks, shares, (5, 7)).sum((2, 3))
    assert counts.tolist() == [[0, 0], [4, 4], [18, 18], [35, 35]]


Levels = st.lists(st.integers(0, 4), min_size=7, max_size=7)


@given(Levels, Levels)
def test_spearman_equals_that_of_scipy(first: list[int], second: list[int]) -> None:
    a, b = torch.tensor([first]).double(), torch.tensor([second]).double()
    result = spearman_correlation(a, b).item()
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert result == 0
    else:
        assert result == pytest.approx(spearmanr(first, second)[0], abs=1e-12)


SIDE = {0: 1 / 12, 1: 1 / 6}  # of a neighbor, by how many axes it shares


def solved(image: Tensor, known: Tensor) -> Tensor:
    """The dense linear system of a channel, row by row."""
    height, width = image.shape
    holes = [(y, x) for y in range(height) for x in range(width) if not known[y, x]]
    system = torch.zeros(len(holes), len(holes), dtype=torch.float64)
    right = torch.zeros(len(holes), dtype=torch.float64)
    for row, (y, x) in enumerate(holes):
        for v in range(max(y - 1, 0), min(y + 2, height)):
            for u in range(max(x - 1, 0), min(x + 2, width)):
                if (v, u) == (y, x):
                    continue
                weight = SIDE[int(v == y or u == x)]
                system[row, row] += weight
                if known[v, u]:
                    right[row] += weight * image[v, u]
                else:
                    system[row, holes.index((v, u))] -= weight
    filled = image.clone()
    for place, value in zip(holes, torch.linalg.solve(system, right), strict=True):
        filled[place] = value
    return filled


@pytest.mark.parametrize("share", [0.1, 0.6, 0.95])
def test_imputation_solves_the_linear_system_of_each_image(share: float) -> None:
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(2, 3, 11, 13, generator=generator, dtype=torch.float64)
    known = torch.rand(2, 11, 13, generator=generator) >= share
    filled = linear_imputation(images, known, tolerance=1e-13)
    for image, own, imputed in zip(images, known, filled, strict=True):
        assert torch.equal(imputed[:, own], image[:, own])
        for channel, plane in zip(image, imputed, strict=True):
            assert torch.allclose(plane, solved(channel, own), atol=1e-9, rtol=0)


def test_a_batch_without_images_stays_empty() -> None:
    filled = linear_imputation(torch.zeros(0, 3, 7, 5), torch.zeros(0, 7, 5, dtype=torch.bool))
    assert filled.shape == (0, 3, 7, 5)


def test_default_tolerance_is_below_the_noise_of_the_method() -> None:
    generator = torch.Generator().manual_seed(3)
    image = torch.randn(1, 1, 64, 64, generator=generator)
    smooth = torch.nn.functional.avg_pool2d(image, 9, 1, 4, count_include_pad=False)
    known = torch.rand(1, 64, 64, generator=generator) < 0.2
    known[:, 16:48, 16:48] = False
    exact = linear_imputation(smooth.double(), known, tolerance=1e-12)
    assert (linear_imputation(smooth, known) - exact).abs().max() < 1e-3


def test_image_without_known_pixels_is_refused_and_without_unknown_is_unchanged() -> None:
    images = torch.randn(2, 3, 5, 7)
    everything = torch.ones(2, 5, 7, dtype=torch.bool)
    assert torch.equal(linear_imputation(images, everything), images)
    with pytest.raises(ValueError, match="must have a known pixel"):
        linear_imputation(images, everything & torch.tensor([True, False])[:, None, None])
