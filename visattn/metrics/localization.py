"""Localization: pointing games, IoU of thresholded maps, and energy in things."""

from dataclasses import asdict, dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def peak_locations(values: Float[Tensor, "b y x"]) -> Int[Tensor, "b 2"]:
    """Return row and column of the maximum of each map; NaN (not seen) is left out.

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
        raise ValueError("a map must have a finite value to have a maximum, got a map of NaN only")
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
    """Return the pointing game: whether each point lies in its region, within a tolerance.

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
        values: Maps; NaN outside the network's view is ignored.
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


@dataclass(frozen=True)
class LocalizationRule:
    """Tolerance of the pointing game and threshold of the IoU.

    Args:
        tolerance: Maximum distance of a hit from the object, in pixels of the image.
        threshold: Threshold as a fraction of the range of the map; its mean if None.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> LocalizationRule().description
        'peak exact, outline above the mean'
        >>> LocalizationRule(15, 0.5).description
        'peak within 15 px, outline above 0.5 of the range'
    """

    tolerance: float = 0.0
    threshold: float | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.tolerance < 0 or not (self.threshold is None or 0 <= self.threshold < 1):
            raise ValueError(
                f"tolerance must be at least 0 and a threshold from 0 to below 1, got {self}"
            )

    @property
    def description(self) -> str:
        """Description of the rule for reports."""
        peak = f"peak within {self.tolerance:g} px" if self.tolerance else "peak exact"
        high = "the mean" if self.threshold is None else f"{self.threshold:g} of the range"
        return f"{peak}, outline above {high}"


@dataclass(frozen=True)
class LocalizationScores:
    """Localization scores of one map for one region.

    Args:
        point: 1 if the maximum of the map lies in the region, else 0.
        point_box: The same for the bounding boxes.
        energy: Fraction of the map's mass inside the region.
        energy_box: The same for the bounding boxes.
        iou: Intersection over union of the region and the thresholded map.
        area: Fraction of the visible image that the region covers: `energy` of a uniform map.
        area_box: The same for the bounding boxes.
    """

    point: float
    point_box: float
    energy: float
    energy_box: float
    iou: float
    area: float
    area_box: float

    def to_dict(self) -> dict[str, float]:
        """Return the scores by name."""
        return asdict(self)


def localization_scores(
    values: Float[Tensor, "y x"],
    mask: Bool[Tensor, "y x"],
    boxes: Bool[Tensor, "y x"],
    rule: LocalizationRule,
) -> LocalizationScores:
    """Return how well a map lies on a region; what the network did not see is left out.

    A map that is the same everywhere points nowhere: it has no peak and no outline.

    Args:
        values: On the pixels of the image, as `AttentionMap.resize_to_image` returns them.
        mask: True on the region.
        boxes: True in the boxes around its parts.
        rule: What counts as a hit.

    Raises:
        ValueError: If nothing of the region was seen.

    Example:
        >>> mask = torch.tensor([[False, True, True, False]])
        >>> values = torch.tensor([[0.0, 3.0, 1.0, 0.0]])
        >>> scores = localization_scores(values, mask, mask, LocalizationRule())
        >>> scores.point, scores.energy, scores.iou, scores.area
        (1.0, 1.0, 0.5, 0.5)
    """
    visible = ~values.isnan()
    inside = mask & visible
    in_boxes = boxes & visible
    if not bool(inside.any()):
        raise ValueError("no part of the region is visible to the network, so its map has no score")
    batch = values[None]
    constant = is_constant_map(values)
    peak = peak_locations(batch)

    def hit(region: Bool[Tensor, "y x"]) -> float:
        return 0.0 if constant else float(pointing_game_hits(peak, region[None], rule.tolerance))

    count = float(visible.sum())
    return LocalizationScores(
        point=hit(inside),
        point_box=hit(in_boxes),
        energy=float(energy_pointing_game(batch, inside[None])),
        energy_box=float(energy_pointing_game(batch, in_boxes[None])),
        iou=0.0 if constant else float(threshold_iou(batch, inside[None], rule.threshold)),
        area=float(inside.sum()) / count,
        area_box=float(in_boxes.sum()) / count,
    )


def is_constant_map(values: Float[Tensor, "*axes"]) -> bool:
    """Return whether a map is constant or infinite somewhere within the network's view.

    Example:
        >>> is_constant_map(torch.zeros(2, 2)), is_constant_map(torch.tensor([0.0, torch.nan, 1.0]))
        (True, False)
    """
    known = values[~values.isnan()]
    return (
        known.numel() == 0 or not bool(known.isfinite().all()) or bool(known.max() == known.min())
    )
