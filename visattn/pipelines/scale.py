"""At which values maps begin to show, and at which they show in full: chosen, and said."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.recording.attention_map import AttentionMap

ScaleRule = Literal["image", "global", "percentile"]
RULES: tuple[ScaleRule, ...] = ("image", "global", "percentile")
_TAIL = 0.01  # of the cells, at each end, with percentiles
_FAR_FROM_ZERO = ("rise",)  # methods whose values are scores, and high where nothing is
_FINE = 64 * 64  # cells; where there are more, a few outshine all others by far


@dataclass(frozen=True)
class MapScale:
    """The scale of a map that is drawn.

    Args:
        rule: How it was chosen.
        low: The value that begins to show.
        high: The value that shows in full.
        signed: Whether values below zero speak against: then they show by their size.

    Example:
        >>> MapScale("image", 0.0, 0.25).text
        '0 to 0.25'
    """

    rule: ScaleRule
    low: float
    high: float
    signed: bool = False

    @property
    def text(self) -> str:
        """The two ends."""
        first = -self.high if self.signed else self.low
        return f"{first:.2g} to {self.high:.2g}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON holds them."""
        return asdict(self)


def map_scale(maps: Sequence[AttentionMap], rule: ScaleRule = "image") -> MapScale:
    """Return one scale for maps of one method.

    By `image`, and `global` over those of many images, it goes from 0 to the highest value;
    for attention, whose weights sum to one, not below four times an even spread. Of maps as fine as
    the pixels a hundredth of the cells may lie above: a few of them outshine all others by far.
    Of RISE, which is nowhere near 0, it begins at the lowest value.
    By `percentile` a hundredth of the cells lies outside at each end, and what differs is seen,
    however little it differs.

    Args:
        maps: One for `image` and `percentile`, or as many as there are images.
        rule: How to choose.

    Raises:
        ValueError: If there is no map, or no such rule.

    Example:
        >>> one = AttentionMap(torch.tensor([[0.5, 2.0]]), "layer4", "gradient")
        >>> other = AttentionMap(torch.tensor([[4.0, 3.0]]), "layer4", "gradient")
        >>> map_scale([one, other], "global")
        MapScale(rule='global', low=0.0, high=4.0, signed=False)
    """
    if not maps or rule not in RULES:
        raise ValueError(
            f"a scale needs maps and a rule among {', '.join(RULES)}; got {len(maps)}, {rule!r}"
        )
    signed = is_signed(maps[0])
    finite = [replace(one, values=one.values.nan_to_num(0.0, 0.0, 0.0)) for one in maps]
    sizes = [one.values.abs() if signed else one.values for one in finite]
    if rule == "percentile":
        values = torch.cat([size.flatten() for size in sizes]).double()
        low, high = values.quantile(values.new_tensor([_TAIL, 1 - _TAIL])).tolist()
        low = 0.0 if signed else low
        if low < high:
            return MapScale(rule, low, high, signed)
    ends = [_end(one, size) for one, size in zip(finite, sizes, strict=True)]
    high = max(ends) if max(ends) > 0 else 1.0
    lowest = min(float(size.min()) for size in sizes)
    far = maps[0].made.get("method") in _FAR_FROM_ZERO and 0 < lowest < high
    return MapScale(rule, lowest if far else 0.0, high, signed)


def _end(one: AttentionMap, size: Float[Tensor, "y x"]) -> float:
    """Return the value of a map that shows in full."""
    if one.kind in ("gradient", "saliency") and size.numel() > _FINE:
        top = float(size.double().flatten().quantile(1 - _TAIL))
        return top if top > 0 else float(size.max())
    return float(size.max()) if is_signed(one) else one.scale()[1]


def is_signed(attention_map: AttentionMap) -> bool:
    """Return whether the values of a map below zero speak against what is explained.

    Example:
        >>> is_signed(AttentionMap(torch.zeros(2, 2), "x", "gradient", made={"signed": True}))
        True
    """
    return bool(attention_map.made.get("signed", False))


def blankness(values: Float[Tensor, "*axes"]) -> str:
    """Return why a map would show nothing, in words; nothing if it shows something.

    Example:
        >>> blankness(torch.zeros(2, 2)), blankness(torch.eye(2))
        ('the map is zero everywhere', '')
    """
    if not bool(torch.isfinite(values).all()):
        return "the map holds NaN or infinity"
    if not bool(values.any()):
        return "the map is zero everywhere"
    return ""
