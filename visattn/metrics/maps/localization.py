"""How well a map on an image lies on the objects that it is about."""

from dataclasses import asdict, dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from visattn.functional.evaluation.localization import (
    energy_inside,
    outline_overlap,
    peaks,
    point_hits,
)


@dataclass(frozen=True)
class LocationRule:
    """What counts as a hit, and what as the outline of a map.

    Args:
        tolerance: Pixels of the image that a peak may lie beside an object.
        threshold: Share of the way from the lowest value to the highest, above which a map is
            high; None for what lies above its mean.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> LocationRule().told
        'peak exact, outline above the mean'
        >>> LocationRule(15, 0.5).told
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
    def told(self) -> str:
        """The rule in words."""
        peak = f"peak within {self.tolerance:g} px" if self.tolerance else "peak exact"
        high = "the mean" if self.threshold is None else f"{self.threshold:g} of the range"
        return f"{peak}, outline above {high}"


@dataclass(frozen=True)
class LocationScores:
    """How well one map lies on one region.

    Args:
        point: 1 if the peak lies on the region, else 0.
        point_box: The same for the boxes around it.
        energy: Share of the map's mass on the region.
        energy_box: The same for the boxes.
        iou: Intersection over union of the region and where the map is high.
        area: Share of the region in what the network saw: what `energy` is by chance.
        area_box: The same for the boxes.
    """

    point: float
    point_box: float
    energy: float
    energy_box: float
    iou: float
    area: float
    area_box: float

    def to_dict(self) -> dict[str, float]:
        """Return the numbers by their names."""
        return asdict(self)


def scores_on_region(
    values: Float[Tensor, "y x"],
    mask: Bool[Tensor, "y x"],
    boxes: Bool[Tensor, "y x"],
    rule: LocationRule,
) -> LocationScores:
    """Return how well a map lies on a region; what the network did not see is left out.

    A map that is the same everywhere points nowhere: it has no peak and no outline.

    Args:
        values: On the pixels of the image, as `AttentionMap.on_image` returns them.
        mask: True on the region.
        boxes: True in the boxes around its parts.
        rule: What counts as a hit.

    Raises:
        ValueError: If nothing of the region was seen.

    Example:
        >>> mask = torch.tensor([[False, True, True, False]])
        >>> values = torch.tensor([[0.0, 3.0, 1.0, 0.0]])
        >>> scores = scores_on_region(values, mask, mask, LocationRule())
        >>> scores.point, scores.energy, scores.iou, scores.area
        (1.0, 1.0, 0.5, 0.5)
    """
    seen = ~values.isnan()
    inside, in_boxes = mask & seen, boxes & seen
    if not bool(inside.any()):
        raise ValueError("the network saw nothing of the region, so no map of it can be scored")
    one = values[None]
    flat = is_flat(values)
    place = peaks(one)

    def hit(region: Bool[Tensor, "y x"]) -> float:
        return 0.0 if flat else float(point_hits(place, region[None], rule.tolerance))

    count = float(seen.sum())
    return LocationScores(
        point=hit(inside),
        point_box=hit(in_boxes),
        energy=float(energy_inside(one, inside[None])),
        energy_box=float(energy_inside(one, in_boxes[None])),
        iou=0.0 if flat else float(outline_overlap(one, inside[None], rule.threshold)),
        area=float(inside.sum()) / count,
        area_box=float(in_boxes.sum()) / count,
    )


def is_flat(values: Float[Tensor, "*axes"]) -> bool:
    """Return whether a map is the same everywhere, or holds what is not a number where it was seen.

    Args:
        values: NaN where nothing was seen; infinite values are no numbers either.

    Example:
        >>> is_flat(torch.zeros(2, 2)), is_flat(torch.tensor([0.0, torch.nan, 1.0]))
        (True, False)
    """
    known = values[~values.isnan()]
    return (
        known.numel() == 0 or not bool(known.isfinite().all()) or bool(known.max() == known.min())
    )
