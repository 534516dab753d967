"""Localization: pointing games, IoU of thresholded maps, and energy inside objects."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def peak_locations(values: Float[Tensor, "b y x"]) -> Int[Tensor, "b 2"]:
    """Return row and column of the maximum of each map; NaN (outside the input) is ignored.

    Among ties the one nearest to their centroid is returned, so that the maximum of an upsampled
    cell is its center and not its corner.

    Raises:
        ValueError: If a map is entirely NaN.

    Example:
        >>> peak_locations(torch.tensor([[[0.1, 0.7, 0.7, 0.7], [0.0, 0.2, torch.nan, 0.0]]]))
        tensor([[0, 2]])
    """
    unseen = values.isnan()
    if bool(unseen.all(2).all(1).any()):
        raise ValueError("a map must have a finite value, got only NaN")
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


def pointing_game_hits(
    points: Int[Tensor, "b 2"], masks: Bool[Tensor, "b y x"], tolerance: float = 0.0
) -> Bool[Tensor, " b"]:
    """Return the pointing game: whether each point is in its region, within a tolerance.

    Points are row and column, the tolerance is a distance in pixels.

    Example:
        >>> mask = torch.tensor([[[True, False, False, False]]])
        >>> point = torch.tensor([[0, 2]])
        >>> pointing_game_hits(point, mask), pointing_game_hits(point, mask, 2.0)
        (tensor([False]), tensor([True]))

    Source:
        Zhang et al. 2016, arXiv:1608.00507, section 4.2, with a tolerance of 15 pixels there.
    """
    rows = torch.arange(masks.shape[1], device=masks.device)[:, None]
    columns = torch.arange(masks.shape[2], device=masks.device)
    y = points[:, 0, None, None]
    x = points[:, 1, None, None]
    apart = ((rows - y).square() + (columns - x).square()).double().masked_fill(~masks, torch.inf)
    return apart.amin((1, 2)) <= tolerance**2


def energy_pointing_game(
    values: Float[Tensor, "b y x"], masks: Bool[Tensor, "b y x"]
) -> Float[Tensor, " b"]:
    """Return the fraction of each map's mass inside its region; 0 for a map without mass.

    Negative values and NaN have no mass.

    Example:
        >>> mask = torch.tensor([[[True, False, False]]])
        >>> energy_pointing_game(torch.tensor([[[3.0, 1.0, -2.0]]]), mask)
        tensor([0.7500])

    Source:
        Wang et al. 2020, arXiv:1910.01279, section 4.3, energy-based pointing game; there of boxes.
    """
    mass = values.nan_to_num(0.0).clamp(min=0)
    total = mass.sum((1, 2))
    return (mass * masks).sum((1, 2)) / total.where(total > 0, 1.0)


def threshold_iou(
    values: Float[Tensor, "b y x"], masks: Bool[Tensor, "b y x"], threshold: float | None = None
) -> Float[Tensor, " b"]:
    """Return the intersection over union of the region and the thresholded map.

    Args:
        values: Maps; NaN outside the input is ignored.
        masks: True inside the region.
        threshold: Threshold as a fraction of the range of the map; its mean if None.

    Example:
        >>> mask = torch.tensor([[[True, True, False, False]]])
        >>> values = torch.tensor([[[0.0, 1.0, 0.6, 0.0]]])
        >>> threshold_iou(values, mask), threshold_iou(values, mask, threshold=0.75)
        (tensor([0.3333]), tensor([0.5000]))

    Source:
        Chefer et al. 2021, arXiv:2012.09838, section 4.1, whose code takes the mean as threshold.
    """
    visible = ~values.isnan()
    known = values.nan_to_num(0.0)
    if threshold is None:
        level = known.sum((1, 2)) / visible.sum((1, 2)).clamp(min=1)
    else:
        low = values.masked_fill(~visible, torch.inf).amin((1, 2))
        high = values.masked_fill(~visible, -torch.inf).amax((1, 2))
        level = low + threshold * (high - low)
    high_parts = (known > level[:, None, None]) & visible
    inside = masks & visible
    union = (high_parts | inside).sum((1, 2))
    return (high_parts & inside).sum((1, 2)).to(values) / union.clamp(min=1)


def localization_scores(
    values: Float[Tensor, "y x"],
    mask: Bool[Tensor, "y x"],
    boxes: Bool[Tensor, "y x"],
    *,
    tolerance: float = 0.0,
    threshold: float | None = None,
) -> dict[str, float]:
    """Return how well a map matches a region; the area outside the input is ignored.

    A constant map has no peak and no outline.

    Args:
        values: On the pixels of the image, as `AttentionMap.resize_to_image` returns them.
        mask: True on the region.
        boxes: True in the boxes around its parts.
        tolerance: As `pointing_game_hits` takes it.
        threshold: As `threshold_iou` takes it.

    Returns:
        `point`: 1 if the maximum of the map is in the region, else 0; `energy`: fraction of its
        mass inside; `iou`: of the region and the thresholded map; `area`: fraction of the visible
        image that the region covers, the energy of a uniform map. `point_box`, `energy_box` and
        `area_box` are those of the boxes.

    Raises:
        ValueError: If no part of the region is inside the input.

    Example:
        >>> mask = torch.tensor([[False, True, True, False]])
        >>> scores = localization_scores(torch.tensor([[0.0, 3.0, 1.0, 0.0]]), mask, mask)
        >>> scores["point"], scores["energy"], scores["iou"], scores["area"]
        (1.0, 1.0, 0.5, 0.5)
    """
    visible = ~values.isnan()
    if not bool((mask & visible).any()):
        raise ValueError("no part of the region is visible to the network, so its map has no score")
    batch = values[None]
    constant = is_constant_map(values)
    peak = peak_locations(batch)
    scores: dict[str, float] = {}
    for suffix, region in (("", mask & visible), ("_box", boxes & visible)):
        hit = not constant and bool(pointing_game_hits(peak, region[None], tolerance))
        scores[f"point{suffix}"] = float(hit)
        scores[f"energy{suffix}"] = float(energy_pointing_game(batch, region[None]))
        scores[f"area{suffix}"] = float(region.sum()) / float(visible.sum())
    iou = threshold_iou(batch, (mask & visible)[None], threshold)
    return {**scores, "iou": 0.0 if constant else float(iou)}


def is_constant_map(values: Float[Tensor, "*axes"]) -> bool:
    """Return whether a map is constant, or not finite somewhere inside the input.

    Example:
        >>> is_constant_map(torch.zeros(2, 2)), is_constant_map(torch.tensor([0.0, torch.nan, 1.0]))
        (True, False)
    """
    known = values[~values.isnan()]
    return (
        known.numel() == 0 or not bool(known.isfinite().all()) or bool(known.max() == known.min())
    )
