"""Faithfulness of maps by perturbation: insertion, deletion and ROAD."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.functional.evaluation.faithfulness import area_under_curve, removal_mask, removal_ranks
from visattn.functional.evaluation.road import linear_imputation
from visattn.functional.numerics import gaussian_blur

_TOLERANCE = 1e-4  # of the imputation, far below the added noise

ScoreFunction = Callable[[Float[Tensor, "b c y x"]], Float[Tensor, " b"]]
"""Maps normalized images to one score each, such as the probability of a class.

With more than one variant per batch it gets variant 0 of all images, variant 1 of all, ..."""


@dataclass(frozen=True)
class PerturbationSchedule:
    """Parameters of insertion, deletion and ROAD; each of them changes the scores.

    Args:
        steps: Steps of insertion and deletion, not counting the original image.
        blur_sigma: Standard deviation of the blur from which insertion starts, relative to the
            shorter side.
        road_fractions: Fractions of the pixels that ROAD removes and imputes.
        noise_std: Standard deviation of the noise added to imputed pixels, in input units.

    Raises:
        ValueError: If there are no steps or fractions, or a number is out of range.

    Example:
        >>> PerturbationSchedule(steps=2).curve_fractions
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """

    steps: int = 16
    blur_sigma: float = 0.05
    road_fractions: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    noise_std: float = 0.01

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.steps < 1 or not self.blur_sigma > 0 or self.noise_std < 0:
            raise ValueError(
                f"steps and blur_sigma must be above 0, noise_std at least 0, got {self}"
            )
        if not self.road_fractions or not all(0 < share < 1 for share in self.road_fractions):
            raise ValueError(f"road_fractions must lie between 0 and 1, got {self.road_fractions}")

    @property
    def curve_fractions(self) -> Float[Tensor, " s"]:
        """Fractions of the pixels, from 0 to 1, at which insertion and deletion run the model."""
        return torch.arange(self.steps + 1, dtype=torch.float64) / self.steps


def pixel_ranks(
    values: Float[Tensor, "b gy gx"], size: tuple[int, int], seeds: Sequence[int]
) -> Int[Tensor, "b n"]:
    """Return the rank of each pixel of the network's input, highest map value first.

    Args:
        values: Maps that cover the input; they are upsampled bilinearly.
        size: Height and width of the input.
        seeds: One seed per image for the order of ties.

    Raises:
        ValueError: If a value is not finite.

    Example:
        >>> pixel_ranks(torch.tensor([[[0.2, 0.8, 0.5]]]), (1, 3), [0])
        tensor([[2, 0, 1]])
    """
    if not bool(values.isfinite().all()):
        raise ValueError("maps must be finite to put pixels into an order, and some are not")
    fine = interpolate(values[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    ties = [torch.randperm(size[0] * size[1], generator=generator) for generator in generators]
    return removal_ranks(fine.flatten(1), torch.stack(ties).to(values.device))


def perturbation_curve(
    score_function: ScoreFunction,
    start: Float[Tensor, "b c y x"],
    end: Float[Tensor, "b c y x"],
    ranks: Int[Tensor, "b n"],
    shares: Float[Tensor, " s"],
    *,
    variants_per_batch: int = 1,
) -> Float[Tensor, "b s"]:
    """Return the scores while pixels of the start images are replaced by the end images.

    Args:
        score_function: Score of each image of a batch.
        start: Images at fraction 0.
        end: Images at fraction 1.
        ranks: Rank of each pixel.
        shares: Fractions of the pixels that are replaced.
        variants_per_batch: How many variants of all images to score at once.

    Example:
        >>> ranks = torch.tensor([[1, 0]])
        >>> start, end = torch.tensor([[[[2.0, 3.0]]]]), torch.zeros(1, 1, 1, 2)
        >>> shares = torch.tensor([0.0, 0.5, 1.0])
        >>> perturbation_curve(lambda x: x.sum((1, 2, 3)), start, end, ranks, shares)
        tensor([[5., 2., 0.]])
    """
    size = (start.shape[2], start.shape[3])
    points = [start.new_zeros(0, len(start))]
    with torch.no_grad():
        for part in filter(len, shares.split(variants_per_batch)):
            variants = torch.where(removal_mask(ranks, part, size)[:, :, None], end, start)
            points.append(score_function(variants.flatten(0, 1)).view(len(part), len(start)))
    return torch.cat(points).T


@dataclass(frozen=True, eq=False)
class PerturbationEnds:
    """What insertion and deletion of any map of the same images start and end with.

    Args:
        blurred: Blurred images, from which insertion starts.
        blurred_scores: Their scores.
        original_scores: Scores of the images.
        blank_scores: Scores of images of zeros, with which deletion ends.
    """

    blurred: Float[Tensor, "b c y x"]
    blurred_scores: Float[Tensor, " b"]
    original_scores: Float[Tensor, " b"]
    blank_scores: Float[Tensor, " b"]


def perturbation_ends(
    score_function: ScoreFunction, images: Float[Tensor, "b c y x"], schedule: PerturbationSchedule
) -> PerturbationEnds:
    """Return the ends of the curves, which are the same for all maps of the images.

    Args:
        score_function: Score of each image of a batch.
        images: Normalized images.
        schedule: Blur.
    """
    with torch.no_grad():
        blurred = gaussian_blur(images, schedule.blur_sigma * min(images.shape[2:]))
        scores = (score_function(batch) for batch in (blurred, images, torch.zeros_like(images)))
        return PerturbationEnds(blurred, *scores)


def insertion_deletion(
    score_function: ScoreFunction,
    images: Float[Tensor, "b c y x"],
    ranks: Int[Tensor, "b n"],
    schedule: PerturbationSchedule,
    *,
    ends: PerturbationEnds | None = None,
    variants_per_batch: int = 1,
) -> dict[str, Float[Tensor, " b"]]:
    """Return insertion (into a blurred image, higher is better) and deletion (lower is better).

    Both are areas under the score curve. Deleted pixels become 0, the mean of normalized images.

    Args:
        score_function: Score of each image, such as the probability of a class.
        images: Normalized images.
        ranks: Rank of each pixel, from `pixel_ranks`.
        schedule: Steps and blur.
        ends: Of the same images and schedule, if there are several maps of them; computed if None.
        variants_per_batch: How many variants of all images to score at once.

    Example:
        >>> ranks = torch.tensor([[0, 1]])
        >>> image = torch.tensor([[[[1.0, 0.0]]]])
        >>> left = lambda x: x[:, 0, 0, 0]
        >>> insertion_deletion(left, image, ranks, PerturbationSchedule(steps=2))["deletion"]
        tensor([0.2500])

    Source:
        Petsiuk et al. 2018, arXiv:1806.07421, section 4.2. Deviation: ties are ordered
        randomly, not row by row.
    """
    ends = ends or perturbation_ends(score_function, images, schedule)
    shares, blank = schedule.curve_fractions, torch.zeros_like(images)

    def area(start: Tensor, end: Tensor, first: Tensor, last: Tensor) -> Tensor:
        inner = perturbation_curve(
            score_function, start, end, ranks, shares[1:-1], variants_per_batch=variants_per_batch
        )
        return area_under_curve(torch.cat((first[:, None], inner, last[:, None]), 1), shares)

    return {
        "insertion": area(ends.blurred, images, ends.blurred_scores, ends.original_scores),
        "deletion": area(images, blank, ends.original_scores, ends.blank_scores),
    }


def road_scores(
    score_function: ScoreFunction,
    images: Float[Tensor, "b c y x"],
    ranks: Int[Tensor, "b n"],
    schedule: PerturbationSchedule,
    seeds: Sequence[int],
    *,
    variants_per_batch: int = 1,
) -> dict[str, Float[Tensor, " b"]]:
    """Return ROAD scores: mean scores after removing and imputing the lowest and highest pixels.

    `road` is the difference of the two; higher is better. Imputation keeps the images close to the
    training distribution.

    Args:
        score_function: Score of each image, such as the probability of a class.
        images: Normalized images.
        ranks: Rank of each pixel, from `pixel_ranks`.
        schedule: Fractions and noise.
        seeds: One seed per image for its noise.
        variants_per_batch: How many variants of all images to impute and score at once.

    Example:
        >>> ranks = torch.tensor([[0, 1, 2]])
        >>> image = torch.tensor([[[[0.0, 1.0, 1.0]]]])
        >>> plan = PerturbationSchedule(road_fractions=(0.4,), noise_std=0.0)
        >>> road_scores(lambda x: x[:, 0, 0, 0], image, ranks, plan, [0])["road"]
        tensor([-1.])

    Source:
        Rong et al. 2022, arXiv:2202.00449, section 4 (ROAD). Deviations: the noise is seeded for
        each image, and `road` is not halved as in code that combines both orders.
    """
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    drawn = [torch.randn(images.shape[1:], generator=generator) for generator in generators]
    noise = schedule.noise_std * torch.stack(drawn).to(images)
    size = (images.shape[2], images.shape[3])
    fractions = torch.tensor(schedule.road_fractions, dtype=torch.float64)
    last_first = ranks.shape[1] - 1 - ranks
    means: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, order in (("road_lowest", last_first), ("road_highest", ranks)):
            scores: list[Tensor] = []
            for part in fractions.split(variants_per_batch):
                removed = removal_mask(order, part, size).flatten(0, 1)
                repeated = images.repeat(len(part), 1, 1, 1)
                imputed = linear_imputation(repeated, ~removed, tolerance=_TOLERANCE)
                imputed += noise.repeat(len(part), 1, 1, 1)
                variants = torch.where(removed[:, None], imputed, repeated)
                scores.append(score_function(variants).view(len(part), len(images)))
            means[name] = torch.cat(scores).mean(0)
    return {"road": means["road_lowest"] - means["road_highest"], **means}
