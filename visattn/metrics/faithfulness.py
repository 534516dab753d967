"""Faithfulness: insertion and deletion curves, with ROAD's imputation of removed pixels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d

from visattn.functional.numerics import at_least_float32, gaussian_blur, without_autocast


def linear_imputation(
    images: Float[Tensor, "b c y x"],
    known: Bool[Tensor, "b y x"],
    *,
    tolerance: float = 1e-5,
) -> Float[Tensor, "b c y x"]:
    """Return images whose unknown pixels are the weighted mean of their eight neighbors.

    Horizontal and vertical neighbors have a weight of 1/6, diagonal neighbors of 1/12. Unknown
    neighbors count too: one linear system is solved for all unknown pixels. At the border of the
    image, the weights of the existing neighbors are normalized to a sum of 1. The computation is
    batched, and known pixels are returned bit for bit.

    Args:
        images: Images; the values of unknown pixels are ignored.
        known: Mask that is True for the pixels that are kept.
        tolerance: Largest residual, relative to the largest absolute right-hand side.

    Raises:
        ValueError: If an image has no known pixel.

    Example:
        >>> ramp = torch.arange(5.0).expand(1, 1, 5, 5)
        >>> hole = torch.zeros(1, 5, 5, dtype=torch.bool)
        >>> hole[:, 1:4, 1:4] = True
        >>> linear_imputation(ramp.masked_fill(hole, 9.0), ~hole)[0, 0, 2]
        tensor([0.0000, 1.0000, 2.0000, 3.0000, 4.0000])

    Source:
        Rong et al. 2022, arXiv:2202.00449, section 4.1 (ROAD), without its noise, which the
        caller adds. Deviation: conjugate gradients for the whole batch, initialized with a pyramid
        of means and preconditioned by sums over coarser grids (Bramble, Pasciak and Xu 1990,
        "Parallel Multilevel Preconditioners"), instead of a sparse factorization per image.
    """
    if not bool(known.any(2).any(1).all()):
        raise ValueError("each image must have a known pixel from which the others can be imputed")
    if not len(images):
        return images.clone()
    size = 1 if images.device.type == "cpu" else max(1, len(images))  # one image fits into a cache
    with without_autocast(images.device):
        values = at_least_float32(images)
        masks = known[:, None]
        batches = zip(values.split(size), masks.split(size), strict=True)
        solution = torch.cat([_solve(*batch, tolerance) for batch in batches])
    return torch.where(known[:, None], images, solution.to(images))


def _solve(
    values: Float[Tensor, "b c y x"], mask: Bool[Tensor, "b 1 y x"], tolerance: float
) -> Float[Tensor, "b c y x"]:
    """Return the values of the unknown pixels, and 0 elsewhere."""
    total = _neighbor_sum(torch.ones_like(values[:1, :1]))
    known_values = values.masked_fill(~mask, 0.0)
    initial = _pyramid_mean(known_values, mask.to(values)).masked_fill(mask, 0.0)
    constants = _neighbor_sum(known_values)
    return _conjugate_gradients(constants, initial, ~mask, total, tolerance)


def _neighbor_sum(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return the weighted sum of the eight neighbors of each pixel, with zero padding.

    The weights are a third of a tent, without its peak. Sums of slices are several times as fast as
    depthwise convolutions on CPUs.
    """
    # Adding half of both neighbors, along one axis after the other, spreads a pixel to a tent:
    #
    #     1/4  1/2  1/4                             1/12  1/6  1/12
    #     1/2   1   1/2    less the peak, by 3:     1/6    0   1/6
    #     1/4  1/2  1/4                             1/12  1/6  1/12
    tent = values
    for axis in (2, 3):
        last = tent.shape[axis] - 1
        previous = tent
        tent = previous.clone()
        tent.narrow(axis, 1, last).add_(previous.narrow(axis, 0, last), alpha=0.5)
        tent.narrow(axis, 0, last).add_(previous.narrow(axis, 1, last), alpha=0.5)
    return tent.sub_(values).div_(3)


def _tent_sums(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y2 x2"]:
    """Return the sums over tents around every second pixel, with zero padding."""
    # Along one axis, for five pixels: (a, b, c, d, e) -> (a + b/2, b/2 + c + d/2, d/2 + e).
    for axis in (2, 3):
        even, odd = _even_odd(values, axis)
        values = even.clone()
        values.narrow(axis, 0, odd.shape[axis]).add_(odd, alpha=0.5)
        count = even.shape[axis] - 1
        values.narrow(axis, 1, count).add_(odd.narrow(axis, 0, count), alpha=0.5)
    return values


def _add_tents(
    values: Float[Tensor, "b c y x"], heights: Float[Tensor, "b c y2 x2"]
) -> Float[Tensor, "b c y x"]:
    """Return values plus tents around every second pixel, the transpose of `_tent_sums`."""
    # Along one axis, for three heights: (p, q, r) -> (p, (p + q)/2, q, (q + r)/2, r).
    for axis in (3, 2):
        size = list(heights.shape)
        size[axis] = values.shape[axis]
        spread = heights.new_empty(size)
        even, odd = _even_odd(spread, axis)
        even.copy_(heights)
        odd.copy_(heights.narrow(axis, 0, odd.shape[axis]))
        count = heights.shape[axis] - 1
        odd.narrow(axis, 0, count).add_(heights.narrow(axis, 1, count))
        odd.div_(2)
        heights = spread
    return heights.add_(values)


def _even_odd(values: Float[Tensor, "b c y x"], axis: int) -> tuple[Tensor, Tensor]:
    """Return views of every second row or column, from the first and from the second."""
    whole = (slice(None),) * axis
    return values[(*whole, slice(0, None, 2))], values[(*whole, slice(1, None, 2))]


def _conjugate_gradients(
    constants: Float[Tensor, "b c y x"],
    initial: Float[Tensor, "b c y x"],
    hole: Bool[Tensor, "b 1 y x"],
    total: Float[Tensor, "1 1 y x"],
    tolerance: float,
) -> Float[Tensor, "b c y x"]:
    """Return x with `total * x - neighbor_sum(x) = constants` in the hole and 0 outside.

    The matrix is a grid Laplacian: symmetric, and positive definite if any pixel is known.
    """
    grids = [grid.to(initial) for grid in _coarse_grids(hole)]
    inside = hole.to(initial)

    def matrix_product(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return (total * x - _neighbor_sum(x)) * inside

    def inner_product(a: Float[Tensor, "b c y x"], b: Float[Tensor, "b c y x"]) -> Tensor:
        return (a * b).sum((2, 3), keepdim=True)

    x = initial
    residual = constants * inside - matrix_product(x)
    max_residual = tolerance * float(constants.abs().amax()) if constants.numel() else 0.0
    direction = preconditioned = _precondition(residual, grids)
    norm = inner_product(residual, preconditioned)
    for iteration in range(int(hole.sum((1, 2, 3)).amax()) if hole.numel() else 0):
        # Reading the residual synchronizes with the GPU, so it is done every few steps.
        if iteration % 4 == 0 and float(residual.abs().amax()) <= max_residual:
            break
        product = matrix_product(direction)
        curvature = inner_product(direction, product)
        # Each channel of each image is a separate system. A solved one has zero curvature and is
        # not changed while the others continue.
        step = torch.where(curvature > 0, norm / curvature.where(curvature > 0, 1.0), 0.0)
        x, residual = x.addcmul_(step, direction), residual.addcmul_(step, product, value=-1)
        preconditioned = _precondition(residual, grids)
        previous_norm, norm = norm, inner_product(residual, preconditioned)
        ratio = norm / previous_norm.where(previous_norm > 0, math.inf)
        direction = torch.addcmul(preconditioned, ratio, direction)
    return x


def _coarse_grids(hole: Bool[Tensor, "b 1 y x"]) -> list[Bool[Tensor, "b 1 _ _"]]:
    """Return, for increasingly coarse grids, a mask of the nodes whose tents lie in the hole."""
    grids: list[Tensor] = []
    known = (~hole).float()
    while max(known.shape[2:]) > 1 and not bool(known.all()):
        # A tent reaches one node to each side, and must not change a known one.
        known = max_pool2d(known, 3, 2, 1)
        grids.append(known == 0)
    return grids


def _precondition(
    residual: Float[Tensor, "b c y x"], grids: Sequence[Float[Tensor, "b 1 _ _"]]
) -> Float[Tensor, "b c y x"]:
    """Return the residual plus its sums over tents of all sizes, interpolated to the pixel grid.

    In two dimensions the energy of a tent is nearly independent of its size, so all grids have the
    same weight.
    """
    levels = [residual]
    for inside in grids:
        levels.append(_tent_sums(levels[-1]) * inside)
    total = levels.pop()
    for level in reversed(levels):
        total = _add_tents(level, total)
    return total


def _pyramid_mean(
    values: Float[Tensor, "b c y x"], weight: Float[Tensor, "b 1 y x"]
) -> Float[Tensor, "b c y x"]:
    """Return the mean of the known pixels in the smallest pyramid cell around each pixel."""
    mean = values / weight.where(weight > 0, 1.0)
    size = (values.shape[2], values.shape[3])
    if bool((weight > 0).all()) or max(size) == 1:
        return mean
    kernel = (min(2, size[0]), min(2, size[1]))
    half_values, half_weight = (
        avg_pool2d(tensor, kernel, ceil_mode=True, count_include_pad=False)
        for tensor in (values, weight)
    )
    coarse_mean = _pyramid_mean(half_values, half_weight)
    upsampled = interpolate(coarse_mean, size, mode="bilinear", align_corners=False)
    return torch.where(weight > 0, mean, upsampled)


def removal_ranks(values: Float[Tensor, "b n"], ties: Int[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Return the rank of each pixel in descending order, counted from 0.

    Args:
        values: Map values.
        ties: Permutation of the pixels of each image that orders ties. Row-major order would
            remove the upper part of an image first wherever a map is 0.

    Example:
        >>> removal_ranks(torch.tensor([[0.5, 0.9, 0.5]]), torch.tensor([[2, 0, 1]]))
        tensor([[2, 0, 1]])
    """
    # Pixels take their random order first; the stable sort keeps it among equal values.
    order = ties.gather(1, values.gather(1, ties).argsort(dim=1, descending=True, stable=True))
    ranks = torch.arange(values.shape[1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ranks)


def removal_mask(
    ranks: Int[Tensor, "b n"], fractions: Float[Tensor, " s"], image_size: tuple[int, int]
) -> Bool[Tensor, "s b y x"]:
    """Return the masks of the first fractions of removed pixels, rounded to whole pixels.

    Example:
        >>> removal_mask(torch.tensor([[3, 0, 2, 1]]), torch.tensor([0.5]), (2, 2))[0]
        tensor([[[False,  True],
                 [False,  True]]])
    """
    shares = [round(float(share) * ranks.shape[1]) for share in fractions]
    counts = torch.tensor(shares, device=ranks.device)
    order = ranks.reshape(-1, *image_size)
    return order < counts[:, None, None, None]


def area_under_curve(
    scores: Float[Tensor, "*b s"], fractions: Float[Tensor, " s"]
) -> Float[Tensor, "*b"]:
    """Return the area under a perturbation curve by the trapezoid rule.

    Example:
        >>> area_under_curve(torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0.0, 0.5, 1.0]))
        tensor(0.5000)

    Source:
        Petsiuk et al. 2018, arXiv:1806.07421, section 4.2.
    """
    return torch.trapezoid(scores, fractions.to(scores), dim=-1)


def average_ranks(values: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """Return the rank of each value, from 0; ties get their average rank.

    Example:
        >>> average_ranks(torch.tensor([[0.5, 0.1, 0.5]]))
        tensor([[1.5000, 0.0000, 1.5000]])
    """
    # `below` values are smaller and `up_to` are not larger; those in between are equal and share
    # the ranks from `below` to `up_to` - 1: (3, 1, 3, 2) -> (2.5, 0, 2.5, 1).
    contiguous = values.contiguous()
    ordered = contiguous.sort(1).values
    below = torch.searchsorted(ordered, contiguous)
    up_to = torch.searchsorted(ordered, contiguous, right=True)
    return ((below + up_to - 1) / 2).to(values)


def spearman_correlation(
    values: Float[Tensor, "b n"], others: Float[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """Return Spearman's rank correlation, -1 to 1; 0 if one of the two is constant.

    Example:
        >>> rising = torch.tensor([[1.0, 2.0, 3.0]])
        >>> spearman_correlation(rising, rising.exp()), spearman_correlation(rising, -rising)
        (tensor([1.]), tensor([-1.]))

    Source:
        Adebayo et al. 2018, arXiv:1810.03292, section 2, as a similarity of maps.
    """
    ranks = (average_ranks(maps.double()) for maps in (values, others))
    a, b = (rank - rank.mean(1, keepdim=True) for rank in ranks)
    spread = (a.square().sum(1) * b.square().sum(1)).sqrt()
    return ((a * b).sum(1) / spread.where(spread > 0, 1.0)).to(values)


_TOLERANCE = 1e-4  # of the imputation, far below the added noise

ScoreFunction = Callable[[Float[Tensor, "b c y x"]], Float[Tensor, " b"]]
"""Maps normalized images to one score each, such as the probability of a class.

With several variants per batch it gets variant 0 of all images, variant 1 of all images, ..."""


@dataclass(frozen=True)
class PerturbationSchedule:
    """Parameters of insertion, deletion and ROAD; each of them changes the scores.

    Args:
        steps: Steps of insertion and deletion, not counting the original image.
        blur_sigma: Standard deviation of the blur from which insertion starts, relative to the
            shorter side.
        road_fractions: Fractions of the pixels that ROAD removes and imputes.
        noise_std: Standard deviation of the noise added to imputed pixels, in input units.

    Example:
        >>> PerturbationSchedule(steps=2).curve_fractions
        tensor([0.0000, 0.5000, 1.0000], dtype=torch.float64)
    """

    steps: int = 16
    blur_sigma: float = 0.05
    road_fractions: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8)
    noise_std: float = 0.01

    @property
    def curve_fractions(self) -> Float[Tensor, " s"]:
        """Fractions of the pixels, from 0 to 1, at which insertion and deletion run the model."""
        return torch.arange(self.steps + 1, dtype=torch.float64) / self.steps


def pixel_ranks(
    values: Float[Tensor, "b gy gx"], size: tuple[int, int], seeds: Sequence[int]
) -> Int[Tensor, "b n"]:
    """Return the rank of each pixel of the network's input, highest map value first.

    Maps cover the input and are upsampled bilinearly; each image has a seed for the order of ties.

    Raises:
        ValueError: If a value is not finite.

    Example:
        >>> pixel_ranks(torch.tensor([[[0.2, 0.8, 0.5]]]), (1, 3), [0])
        tensor([[2, 0, 1]])
    """
    if not bool(values.isfinite().all()):
        raise ValueError("maps must be finite to rank pixels")
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
    """Return the scores while increasing shares of pixels change from the start to the end images.

    That many variants of all images are scored at once.

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
        for chunk in filter(len, shares.split(variants_per_batch)):
            variants = torch.where(removal_mask(ranks, chunk, size)[:, :, None], end, start)
            points.append(score_function(variants.flatten(0, 1)).view(len(chunk), len(start)))
    return torch.cat(points).T


@dataclass(frozen=True, eq=False)
class PerturbationEnds:
    """Ends of the insertion and deletion curves, shared by all maps of the same images.

    Args:
        blurred: Blurred images, from which insertion starts.
        blank_scores: Scores of images of zeros, with which deletion ends.
    """

    blurred: Float[Tensor, "b c y x"]
    blurred_scores: Float[Tensor, " b"]
    original_scores: Float[Tensor, " b"]
    blank_scores: Float[Tensor, " b"]


def perturbation_ends(
    score_function: ScoreFunction, images: Float[Tensor, "b c y x"], schedule: PerturbationSchedule
) -> PerturbationEnds:
    """Return the ends of the curves, which are the same for all maps of the images."""
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
    shares = schedule.curve_fractions
    blank = torch.zeros_like(images)

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
    training distribution. Arguments are those of `insertion_deletion`, and a seed of the noise of
    each image.

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
            for chunk in fractions.split(variants_per_batch):
                removed = removal_mask(order, chunk, size).flatten(0, 1)
                repeated = images.repeat(len(chunk), 1, 1, 1)
                imputed = linear_imputation(repeated, ~removed, tolerance=_TOLERANCE)
                imputed += noise.repeat(len(chunk), 1, 1, 1)
                variants = torch.where(removed[:, None], imputed, repeated)
                scores.append(score_function(variants).view(len(chunk), len(images)))
            means[name] = torch.cat(scores).mean(0)
    return {"road": means["road_lowest"] - means["road_highest"], **means}
