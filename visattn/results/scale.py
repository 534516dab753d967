"""Color scales of maps."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.results.attention_map import AttentionMap
from visattn.results.records import Result

ScaleRule = Literal["image", "global", "percentile"]
RULES: tuple[ScaleRule, ...] = get_args(ScaleRule)
_PERCENTILE = 99  # percentile for clipping outliers
_TAIL = 1 - _PERCENTILE / 100
_MANY_CELLS = 64 * 64  # maximum / percentile, above which outliers would darken the rest of the map
_NEARLY_ZERO = 1e-12  # smaller values are mostly rounding errors


@dataclass(frozen=True)
class MapScale(Result):
    """Color scale of a rendered map.

    Args:
        rule: Rule for the ends.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end.
        signed: Whether there are negative values: colors then go from `-vmax` to `vmax`.
        values: Lowest and highest value of the maps, which are clipped to the ends. None if
            unknown.
        percentile: Percentile at which outliers are clipped; None if none are.

    Example:
        >>> MapScale("image", 0.0, 0.25).text
        '0 to 0.25'
        >>> clipped = MapScale("image", 0.0, 0.25, True, values=(-0.69, 0.74), percentile=99)
        >>> clipped.ends[1], clipped.note
        ('≥ 0.25', 'clipped at the 99th percentile')
    """

    rule: ScaleRule
    vmin: float
    vmax: float
    signed: bool = False
    values: tuple[float, float] | None = field(default=None, compare=False)
    percentile: int | None = field(default=None, compare=False)

    @property
    def lowest(self) -> float:
        """Value at the lower end of the colors."""
        return -self.vmax if self.signed else self.vmin

    @property
    def clipped(self) -> tuple[bool, bool]:
        """Whether values are below the lower end, and above the upper end."""
        low, high = self.values or (self.lowest, self.vmax)
        slack = 1e-5 * max(abs(self.lowest), abs(self.vmax))  # float32 rounds the ends
        return low < self.lowest - slack, high > self.vmax + slack

    @property
    def ends(self) -> tuple[str, str]:
        """Both ends as text, with ≤ or ≥ if values were clipped."""
        below, above = self.clipped
        return format_end(self.lowest, below=below), format_end(self.vmax, above=above)

    @property
    def text(self) -> str:
        """The range as text."""
        return " to ".join(self.ends)

    @property
    def is_nearly_zero(self) -> bool:
        """Whether all values are rounding errors."""
        return self.values is not None and 0 < max(map(abs, self.values)) < _NEARLY_ZERO

    @property
    def note(self) -> str:
        """Note on the scale; "" if there is none."""
        if self.is_nearly_zero:
            return "nearly zero"
        if self.percentile is None or not any(self.clipped):
            return ""
        both = self.rule == "percentile" and not self.signed
        lower = f"{_ordinal(100 - self.percentile)} and " if both else ""
        return f"clipped at the {lower}{_ordinal(self.percentile)} percentile"


def format_end(value: float, *, below: bool = False, above: bool = False) -> str:
    """Return an end of a color scale as text, with ≤ or ≥ if values were clipped.

    Args:
        value: Value at the end.
        below: Whether lower values are drawn like it.
        above: Whether higher values are drawn like it.

    Example:
        >>> format_end(0.25, above=True), format_end(0.1, below=True), format_end(0.25)
        ('≥ 0.25', '≤ 0.1', '0.25')
    """
    sign = "\N{LESS-THAN OR EQUAL TO} " * below + "\N{GREATER-THAN OR EQUAL TO} " * above
    # 110, not 1.1e+02
    number = f"{value:.0f}" if 100 <= abs(value) < 1e5 else f"{value:.2g}"
    return f"{sign}{number}".replace("-", "\N{MINUS SIGN}")


def _ordinal(number: int) -> str:
    return f"{number}{'st' if number == 1 else 'th'}"


def map_scale(maps: Sequence[AttentionMap], rule: ScaleRule = "image") -> MapScale:
    """Return one color scale for maps of one method.

    `image`, and `global` over several images, go from 0 to the maximum; for attention weights the
    upper end is at least four times the uniform weight. Maps at pixel resolution are clipped at
    their 99th percentile. Scores far from 0, such as those of RISE, start at the minimum.
    `percentile` clips 1 % of the cells at each end, which shows small differences.

    Args:
        maps: One map for `image` and `percentile`, or one per image.
        rule: `image`, `global` or `percentile`.

    Raises:
        ValueError: If there is no map, or no such rule.

    Example:
        >>> one = AttentionMap(torch.tensor([[0.5, 2.0]]), "layer4", "gradient")
        >>> other = AttentionMap(torch.tensor([[4.0, 3.0]]), "layer4", "gradient")
        >>> scale = map_scale([one, other], "global")
        >>> scale.text, scale.values
        ('0 to 4', (0.5, 4.0))
    """
    if not maps or rule not in RULES:
        raise ValueError(f"a scale needs maps and a rule of {RULES}; got {len(maps)}, {rule!r}")
    signed = any(each.info.signed for each in maps)
    values = torch.cat([each.values.nan_to_num(0.0, 0.0, 0.0).flatten() for each in maps])
    ends = float(values.min()), float(values.max())
    sizes = torch.cat([_magnitudes(each).flatten() for each in maps]).double()
    if rule == "percentile":
        low, high = sizes.quantile(sizes.new_tensor([_TAIL, 1 - _TAIL])).tolist()
        low = 0.0 if signed else low
        if low < high:
            return MapScale(rule, low, high, signed, ends, _PERCENTILE)
    low, high = 0.0, max(map(_top, maps)) or 1.0
    # Scores far from 0 would all have the same color on a scale from 0.
    least, most = float(sizes.min()), float(sizes.max())
    if least < most and any(each.info.method == "rise" for each in maps):
        low, high = least, high if most > 0 else most
    percentile = _PERCENTILE if any(map(_has_outliers, maps)) else None
    return MapScale(rule, low, high, signed, ends, percentile)


def _top(attention_map: AttentionMap) -> float:
    """Return the upper end of the color scale of one map."""
    magnitudes = _magnitudes(attention_map)
    if _has_outliers(attention_map):
        return float(magnitudes.double().quantile(1 - _TAIL)) or float(magnitudes.max())
    if attention_map.info.signed:
        return float(magnitudes.max())
    return replace(attention_map, values=magnitudes).display_range()[1]


def _magnitudes(attention_map: AttentionMap) -> Float[Tensor, "*axes"]:
    values = attention_map.values.nan_to_num(0.0, 0.0, 0.0)
    return values.abs() if attention_map.info.signed else values


def _has_outliers(attention_map: AttentionMap) -> bool:
    """Whether a map is at pixel resolution, where some values are far above all others."""
    return (
        attention_map.kind in ("gradient", "saliency")
        and attention_map.values.numel() > _MANY_CELLS
    )
