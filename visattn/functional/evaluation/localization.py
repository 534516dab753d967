"""How well a map points at a region: its peak, its mass, its outline."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def peaks(values: Float[Tensor, "b y x"]) -> Int[Tensor, "b 2"]:
    """Return row and column of the largest value of each map.

    Among equals the one nearest to their middle counts, so that a cell that was enlarged is met in
    its middle and not at its corner.

    Args:
        values: NaN where nothing was seen; that never counts.

    Raises:
        ValueError: If a map is NaN all over.

    Example:
        >>> peaks(torch.tensor([[[0.1, 0.7, 0.7, 0.7], [0.0, 0.2, torch.nan, 0.0]]]))
        tensor([[0, 2]])
    """
    unseen = values.isnan()
    if bool(unseen.all(2).all(1).any()):
        raise ValueError("a map must have a value somewhere to have a peak; one is NaN all over")
    known = values.masked_fill(unseen, -torch.inf)
    largest = (known == known.amax((1, 2), keepdim=True)) & ~unseen
    rows = torch.arange(values.shape[1], device=values.device)[:, None].double()
    columns = torch.arange(values.shape[2], device=values.device).double()
    count = largest.sum((1, 2), keepdim=True)
    away_y = rows - (largest * rows).sum((1, 2), keepdim=True) / count
    away_x = columns - (largest * columns).sum((1, 2), keepdim=True) / count
    away = (away_y.square() + away_x.square()).masked_fill(~largest, torch.inf)
    place = away.flatten(1).argmin(1)
    return torch.stack((place // values.shape[2], place % values.shape[2]), 1)


def point_hits(
    points: Int[Tensor, "b 2"], masks: Bool[Tensor, "b y x"], tolerance: float = 0.0
) -> Bool[Tensor, " b"]:
    """Return whether each point lies in its region, or at most so many pixels beside it.

    Args:
        points: Row and column of a pixel.
        masks: True inside.
        tolerance: From the middle of the point to the middle of the nearest pixel of the region.

    Example:
        >>> mask = torch.tensor([[[True, False, False, False]]])
        >>> point_hits(torch.tensor([[0, 2]]), mask), point_hits(torch.tensor([[0, 2]]), mask, 2.0)
        (tensor([False]), tensor([True]))

    Source:
        Zhang et al. 2016, arXiv:1608.00507, section 4.2, with a tolerance of 15 pixels there.
    """
    rows = torch.arange(masks.shape[1], device=masks.device)[:, None]
    columns = torch.arange(masks.shape[2], device=masks.device)
    y, x = points[:, 0, None, None], points[:, 1, None, None]
    apart = ((rows - y).square() + (columns - x).square()).double().masked_fill(~masks, torch.inf)
    return apart.amin((1, 2)) <= tolerance**2


def energy_inside(
    values: Float[Tensor, "b y x"], masks: Bool[Tensor, "b y x"]
) -> Float[Tensor, " b"]:
    """Return the share of each map's mass that lies in its region; 0 for a map without mass.

    Args:
        values: What is below 0, or NaN since it was not seen, has no mass.
        masks: True inside.

    Example:
        >>> mask = torch.tensor([[[True, False, False]]])
        >>> energy_inside(torch.tensor([[[3.0, 1.0, -2.0]]]), mask)
        tensor([0.7500])

    Source:
        Wang et al. 2020, arXiv:1910.01279, section 4.3, energy-based pointing game; there of boxes.
    """
    mass = values.nan_to_num(0.0).clamp(min=0)
    total = mass.sum((1, 2))
    return (mass * masks).sum((1, 2)) / total.where(total > 0, 1.0)


def outline_overlap(
    values: Float[Tensor, "b y x"], masks: Bool[Tensor, "b y x"], threshold: float | None = None
) -> Float[Tensor, " b"]:
    """Return intersection over union of the region and of where the map is high; 0 if both miss.

    Args:
        values: NaN where nothing was seen, which is left out of everything.
        masks: True inside.
        threshold: High is what lies above this share of the way from the lowest value to the
            highest; None for what lies above the mean.

    Example:
        >>> mask = torch.tensor([[[True, True, False, False]]])
        >>> values = torch.tensor([[[0.0, 1.0, 0.6, 0.0]]])
        >>> outline_overlap(values, mask), outline_overlap(values, mask, threshold=0.75)
        (tensor([0.3333]), tensor([0.5000]))

    Source:
        Chefer et al. 2021, arXiv:2012.09838, section 4.1, whose code takes the mean as threshold.
    """
    seen = ~values.isnan()
    known = values.nan_to_num(0.0)
    if threshold is None:
        level = known.sum((1, 2)) / seen.sum((1, 2)).clamp(min=1)
    else:
        low = values.masked_fill(~seen, torch.inf).amin((1, 2))
        high = values.masked_fill(~seen, -torch.inf).amax((1, 2))
        level = low + threshold * (high - low)
    high_parts = (known > level[:, None, None]) & seen
    inside = masks & seen
    union = (high_parts | inside).sum((1, 2))
    return (high_parts & inside).sum((1, 2)).to(values) / union.clamp(min=1)
