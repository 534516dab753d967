"""What becomes of an answer when the pixels that a map points at go, or come."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.functional.evaluation.faithfulness import curve_area, first_removed, removal_ranks
from visattn.functional.evaluation.road import linear_imputation
from visattn.functional.numerics import gaussian_blur

_EXACT = 1e-4  # of what is made up: half of the noise that is added, where it is worst

Answers = Callable[[Float[Tensor, "b c y x"]], Float[Tensor, " b"]]
"""From normalized images to the number that is watched, such as the probability of a class."""


@dataclass(frozen=True)
class PerturbationSchedule:
    """How pixels are taken away; each choice changes the scores.

    Args:
        steps: Of insertion and deletion, the pixels as they are not counted.
        sigma: Spread of the blur that insertion begins with, as a share of the shorter side.
        shares: Of the pixels, taken away and made up again for ROAD.
        noise: Spread of what is added to pixels that were made up, in the unit of the input.

    Raises:
        ValueError: If there are no steps or shares, or a number is out of range.

    Example:
        >>> PerturbationSchedule(steps=2).curve_shares
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """

    steps: int = 16
    sigma: float = 0.05
    shares: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    noise: float = 0.01

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.steps < 1 or not self.sigma > 0 or self.noise < 0:
            raise ValueError(f"steps and sigma must be above 0, noise at least 0, got {self}")
        if not self.shares or not all(0 < share < 1 for share in self.shares):
            raise ValueError(f"shares must lie between 0 and 1, got {self.shares}")

    @property
    def curve_shares(self) -> Float[Tensor, " s"]:
        """Shares of the pixels from 0 to 1 at which insertion and deletion ask the model."""
        return torch.arange(self.steps + 1, dtype=torch.float64) / self.steps


def pixel_ranks(
    values: Float[Tensor, "b gy gx"], size: tuple[int, int], seeds: Sequence[int]
) -> Int[Tensor, "b n"]:
    """Return when each pixel of the network's input has its turn, the highest first.

    Args:
        values: Maps that cover the input from edge to edge; they are enlarged smoothly.
        size: Height and width of the input.
        seeds: One for each image, of the order among equals.

    Raises:
        ValueError: If a value is not a number: such a map has no order.

    Example:
        >>> pixel_ranks(torch.tensor([[[0.2, 0.8, 0.5]]]), (1, 3), [0])
        tensor([[2, 0, 1]])
    """
    if not bool(values.isfinite().all()):
        raise ValueError("maps must be finite to put pixels into an order, and some are not")
    fine = interpolate(values[:, None], size, mode="bilinear", align_corners=False)[:, 0]
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    ties = [torch.randperm(size[0] * size[1], generator=one) for one in generators]
    return removal_ranks(fine.flatten(1), torch.stack(ties).to(values.device))


def exchange_curve(
    answers: Answers,
    start: Float[Tensor, "b c y x"],
    end: Float[Tensor, "b c y x"],
    ranks: Int[Tensor, "b n"],
    shares: Float[Tensor, " s"],
) -> Float[Tensor, "b s"]:
    """Return the answers while the pixels of some images become those of others.

    Args:
        answers: What is watched; the rows of a batch stay in their places.
        start: Images before the first turn.
        end: Images after the last.
        ranks: Turn of each pixel.
        shares: Of the pixels whose turn has come.

    Example:
        >>> ranks = torch.tensor([[1, 0]])
        >>> start, end = torch.tensor([[[[2.0, 3.0]]]]), torch.zeros(1, 1, 1, 2)
        >>> shares = torch.tensor([0.0, 0.5, 1.0])
        >>> exchange_curve(lambda x: x.sum((1, 2, 3)), start, end, ranks, shares)
        tensor([[5., 2., 0.]])
    """
    size = (start.shape[2], start.shape[3])
    points: list[Tensor] = []
    with torch.no_grad():
        for share in shares.tolist():
            gone = first_removed(ranks, share, size)[:, None]
            points.append(answers(torch.where(gone, end, start)))
    return torch.stack(points, 1)


def insertion_deletion(
    answers: Answers,
    images: Float[Tensor, "b c y x"],
    ranks: Int[Tensor, "b n"],
    plan: PerturbationSchedule,
) -> dict[str, Float[Tensor, " b"]]:
    """Return areas under the answers: insertion into a blur (high is good), deletion (low is).

    Deleted pixels become 0, which is the mean of the images a network was trained on.

    Args:
        answers: What is watched, such as the probability of a class.
        images: Normalized.
        ranks: Turn of each pixel, as `pixel_ranks` returns them.
        plan: Steps and blur.

    Example:
        >>> ranks = torch.tensor([[0, 1]])
        >>> image = torch.tensor([[[[1.0, 0.0]]]])
        >>> left = lambda x: x[:, 0, 0, 0]
        >>> insertion_deletion(left, image, ranks, PerturbationSchedule(steps=2))["deletion"]
        tensor([0.2500])

    Source:
        Petsiuk et al. 2018, arXiv:1806.07421, section 4.2. Deviation: equal pixels go in a drawn
        order, not row by row.
    """
    sigma = plan.sigma * min(images.shape[2:])
    blurred, shares = gaussian_blur(images, sigma), plan.curve_shares
    inserted = exchange_curve(answers, blurred, images, ranks, shares)
    deleted = exchange_curve(answers, images, torch.zeros_like(images), ranks, shares)
    return {"insertion": curve_area(inserted, shares), "deletion": curve_area(deleted, shares)}


def road_scores(
    answers: Answers,
    images: Float[Tensor, "b c y x"],
    ranks: Int[Tensor, "b n"],
    plan: PerturbationSchedule,
    seeds: Sequence[int],
) -> dict[str, Float[Tensor, " b"]]:
    """Return answers after pixels were removed and made up, the lowest first and highest first.

    `road` is the difference of the two, and high is good. What is made up continues what is
    around, so that the model is not asked about holes that it never saw.

    Args:
        answers: What is watched, such as the probability of a class.
        images: Normalized.
        ranks: Turn of each pixel, as `pixel_ranks` returns them.
        plan: Shares and noise.
        seeds: One for each image, of its noise.

    Example:
        >>> ranks = torch.tensor([[0, 1, 2]])
        >>> image = torch.tensor([[[[0.0, 1.0, 1.0]]]])
        >>> plan = PerturbationSchedule(shares=(0.4,), noise=0.0)
        >>> road_scores(lambda x: x[:, 0, 0, 0], image, ranks, plan, [0])["road"]
        tensor([-1.])

    Source:
        Rong et al. 2022, arXiv:2202.00449, section 4 (ROAD). Deviations: the noise is seeded for
        each image, and `road` is not halved as in code that combines both orders.
    """
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    drawn = [torch.randn(images.shape[1:], generator=one) for one in generators]
    noise = plan.noise * torch.stack(drawn).to(images)
    size = (images.shape[2], images.shape[3])
    means: dict[str, Tensor] = {}
    last_first = ranks.shape[1] - 1 - ranks
    with torch.no_grad():
        for name, order in (("road_lowest", last_first), ("road_highest", ranks)):
            left: list[Tensor] = []
            for share in plan.shares:
                gone = first_removed(order, share, size)
                made_up = linear_imputation(images, ~gone, tolerance=_EXACT) + noise
                left.append(answers(torch.where(gone[:, None], made_up, images)))
            means[name] = torch.stack(left).mean(0)
    return {"road": means["road_lowest"] - means["road_highest"], **means}
