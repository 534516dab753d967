"""Color scales of maps: the values at the ends of the colormap, by rule."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.results.attention_map import AttentionMap

ScaleRule = Literal["image", "global", "percentile"]
RULES: tuple[ScaleRule, ...] = ("image", "global", "percentile")
_TAIL = 0.01  # share of cells beyond each end of a percentile scale
_OFFSET_METHODS = ("rise", "similarity")  # whose values are scores, far from 0 everywhere
_MANY_CELLS = 64 * 64  # above it, a few outliers would darken the rest of the map


@dataclass(frozen=True)
class MapScale:
    """Color scale of a rendered map.

    Args:
        rule: Rule by which it was chosen.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end.
        signed: Whether negative values are shown by their magnitude, in another colormap.

    Example:
        >>> MapScale("image", 0.0, 0.25).text
        '0 to 0.25'
    """

    rule: ScaleRule
    vmin: float
    vmax: float
    signed: bool = False

    @property
    def text(self) -> str:
        """Both ends as text."""
        first = -self.vmax if self.signed else self.vmin
        return f"{first:.2g} to {self.vmax:.2g}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "MapScale":
        """Return the scale of a record.

        Args:
            record: What `to_dict` returned.
        """
        return cls(**record)


def map_scale(maps: Sequence[AttentionMap], rule: ScaleRule = "image") -> MapScale:
    """Return one color scale for maps of one method.

    `image`, and `global` over several images, go from 0 to the maximum; for attention weights the
    upper end is at least four times the uniform weight. Maps at pixel resolution are clipped at
    their 99th percentile. Scores far from 0, as those of RISE, start at the minimum. `percentile`
    clips 1 % of the cells at each end, which shows small differences.

    Args:
        maps: One map for `image` and `percentile`, or one per image.
        rule: `image`, `global` or `percentile`.

    Raises:
        ValueError: If there is no map, or no such rule.

    Example:
        >>> one = AttentionMap(torch.tensor([[0.5, 2.0]]), "layer4", "gradient")
        >>> other = AttentionMap(torch.tensor([[4.0, 3.0]]), "layer4", "gradient")
        >>> map_scale([one, other], "global")
        MapScale(rule='global', vmin=0.0, vmax=4.0, signed=False)
    """
    if not maps or rule not in RULES:
        raise ValueError(
            f"a scale needs maps and a rule among {', '.join(RULES)}; got {len(maps)}, {rule!r}"
        )
    signed = maps[0].info.signed
    if rule == "percentile":
        finite = [m.values.nan_to_num(0.0, 0.0, 0.0).flatten() for m in maps]
        values = torch.cat([each.abs() if signed else each for each in finite]).double()
        low, high = values.quantile(values.new_tensor([_TAIL, 1 - _TAIL])).tolist()
        low = 0.0 if signed else low
        if low < high:
            return MapScale(rule, low, high, signed)
    ranges = ValueRange()
    for each in maps:
        ranges.add(each)
    return ranges.scale(rule)


class ValueRange:
    """Range of values over any number of maps of one method, which are not kept.

    Example:
        >>> ranges = ValueRange()
        >>> for top in (2.0, 4.0):
        ...     ranges.add(AttentionMap(torch.tensor([[0.5, top]]), "layer4", "gradient"))
        >>> ranges.scale("global")
        MapScale(rule='global', vmin=0.0, vmax=4.0, signed=False)
    """

    def __init__(self) -> None:
        self.count = 0
        self._signed = self._has_offset = False
        self._upper_end = -math.inf
        self._lowest = math.inf
        self._highest = -math.inf

    def add(self, attention_map: AttentionMap) -> None:
        """Include the values of a map; the first one says whether values are signed."""
        if not self.count:
            self._signed = attention_map.info.signed
            self._has_offset = attention_map.info.method in _OFFSET_METHODS
        self.count += 1
        finite = replace(attention_map, values=attention_map.values.nan_to_num(0.0, 0.0, 0.0))
        magnitudes = finite.values.abs() if self._signed else finite.values
        self._upper_end = max(self._upper_end, _upper_end(finite, magnitudes))
        self._lowest = min(self._lowest, float(magnitudes.min()))
        self._highest = max(self._highest, float(magnitudes.max()))

    def scale(self, rule: ScaleRule) -> MapScale:
        """Return the scale of all maps together, by `image` or `global`."""
        high = self._upper_end if self._upper_end > 0 else 1.0
        # Scores that are far from 0 everywhere would be drawn in one color on a scale from 0.
        if self._has_offset and self._lowest < self._highest:
            high = high if self._highest > 0 else self._highest
            return MapScale(rule, self._lowest, high, self._signed)
        return MapScale(rule, 0.0, high, self._signed)


def _upper_end(attention_map: AttentionMap, magnitudes: Float[Tensor, "y x"]) -> float:
    """Return the value at the upper end of the colormap for one map."""
    if attention_map.kind in ("gradient", "saliency") and magnitudes.numel() > _MANY_CELLS:
        top = float(magnitudes.double().flatten().quantile(1 - _TAIL))
        return top if top > 0 else float(magnitudes.max())
    if attention_map.info.signed:
        return float(magnitudes.max())
    return attention_map.display_range()[1]
