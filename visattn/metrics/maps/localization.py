"""Localization scores of maps: pointing game, energy pointing game and IoU."""

from dataclasses import asdict, dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from visattn.functional.evaluation.localization import (
    energy_pointing_game,
    peak_locations,
    pointing_game_hits,
    threshold_iou,
)


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
    inside, in_boxes = mask & visible, boxes & visible
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

    Args:
        values: Map; NaN outside the network's view.

    Example:
        >>> is_constant_map(torch.zeros(2, 2)), is_constant_map(torch.tensor([0.0, torch.nan, 1.0]))
        (True, False)
    """
    known = values[~values.isnan()]
    return (
        known.numel() == 0 or not bool(known.isfinite().all()) or bool(known.max() == known.min())
    )
