"""Scores of maps that explain one of several things on a photo, against the other things."""

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import torch
from jaxtyping import Bool

from visattn.metrics.maps.localization import LocalizationRule, localization_scores
from visattn.results.attention_map import AttentionMap


def thing_scores(
    maps: Sequence[AttentionMap],
    masks: Bool[np.ndarray, "n y x"],
    rule: LocalizationRule | None = None,
) -> dict[str, float]:
    """Return how well maps lie on the thing that each explains, and on the others as a control.

    A map that lies on everything alike has the same scores on other things as on its own.

    Args:
        maps: The map of each thing on one photo.
        masks: The pixels of each thing, in the same order.
        rule: What counts as a hit.

    Returns:
        `point`, share of maps whose peak is in their thing, and `energy`, share of a map in its
        thing; `other_point` and `other_energy`, the same for pairs of a map and another thing.

    Raises:
        ValueError: If there are fewer than two things, or not one mask for each map.

    Example:
        >>> from visattn.geometry import Geometry
        >>> corners = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
        >>> halves = [AttentionMap(v, "x", "gradient", Geometry.identity((1, 2))) for v in corners]
        >>> scores = thing_scores(halves, np.array([[[True, False]], [[False, True]]]))
        >>> scores["point"], scores["other_energy"]
        (1.0, 0.0)
    """
    if len(maps) < 2 or len(maps) != len(masks):
        raise ValueError(
            "there must be two things or more, and a mask for each of their maps; got "
            f"{len(maps)} maps and {len(masks)} masks"
        )
    rule, placed = rule or LocalizationRule(), [each.resize_to_image().cpu() for each in maps]
    pairs = [(index, index) for index in range(len(maps))]
    scores: dict[str, float] = {}
    for prefix, chosen in (("", pairs), ("other_", [*permutations(range(len(maps)), 2)])):
        regions = [torch.from_numpy(masks[thing]) for _, thing in chosen]
        rows = [
            localization_scores(placed[index], region, region, rule)
            for (index, _), region in zip(chosen, regions, strict=True)
        ]
        scores[f"{prefix}point"] = sum(row.point for row in rows) / len(rows)
        scores[f"{prefix}energy"] = sum(row.energy for row in rows) / len(rows)
    return scores
