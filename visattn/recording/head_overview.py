"""Overview of the heads that words read a photo with: shares, entropy, spread, and boxes."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class HeadScore(NamedTuple):
    """Statistics of one head, means over words."""

    layer: int
    """Index among the layers that read the photo."""
    head: int
    share: float
    """Share of the attention on the photo."""
    entropy: float
    """Entropy of the map, as a share of that of a uniform one."""
    spread: float
    """Distance of the attention from its center, as a share of that of a uniform map."""
    in_boxes: float | None = None
    """Share of the map in the boxes of phrases."""

    @property
    def options(self) -> str:
        """Options of `visattn caption` that select this head."""
        return f"--layers {self.layer} --heads {self.head}"


@dataclass(frozen=True, eq=False)
class HeadOverview:
    """How each head of each layer reads the photo, as means over the words of a caption.

    Args:
        sites: The layers that read the photo.
        share: Share of the attention on the photo.
        entropy: Entropy of the map divided by that of a uniform one: 0 is one cell, 1 uniform.
        spread: Root of the mean squared distance of the attention from its center, divided by that
            of a uniform map: near 0 is one place, 1 the whole photo. Unlike the entropy it tells
            one place from many scattered cells.
        in_boxes: Share of the map in the boxes of what the words name; None without boxes.
        area: What a uniform map has in these boxes.

    Heads that a layer lacks are NaN.

    Example:
        >>> values = torch.tensor([[0.9, 0.1], [0.8, 0.7]])
        >>> overview = HeadOverview(("a", "b"), values, values, torch.tensor([[0.5, 0], [0.2, 1]]))
        >>> [(best.layer, best.head) for best in overview.ranked()]
        [(1, 0), (0, 0), (1, 1)]
        >>> overview.ranked()[0].options
        '--layers 1 --heads 0'
    """

    sites: tuple[str, ...]
    share: Float[Tensor, "l h"]
    entropy: Float[Tensor, "l h"]
    spread: Float[Tensor, "l h"]
    in_boxes: Float[Tensor, "l h"] | None = None
    area: float | None = None

    def ranked(self) -> list[HeadScore]:
        """Return the heads that localize best first.

        With boxes these are the heads with most of their map in the boxes. Without, they are the
        heads with the smallest spread among those whose share on the photo is at least the median:
        a head that hardly reads the photo localizes nothing.

        Source:
            Kang et al. 2025, arXiv:2503.06287, choose heads by their share on the image and the
            spatial entropy of their maps; here the spread takes the place of the latter.
        """
        known = self.share[self.share.isfinite()]
        least = float(known.median()) if len(known) else 0.0
        scores = [
            self._score(layer, head)
            for layer in range(self.share.shape[0])
            for head in range(self.share.shape[1])
            if math.isfinite(float(self.share[layer, head]))
        ]
        if self.in_boxes is not None:
            return sorted(scores, key=lambda each: -(each.in_boxes or 0.0))
        kept = [each for each in scores if each.share >= least and each.share > 0]
        return sorted(kept, key=lambda each: each.spread)

    def _score(self, layer: int, head: int) -> HeadScore:
        boxes = None if self.in_boxes is None else float(self.in_boxes[layer, head])
        share, entropy, spread = (
            float(each[layer, head]) for each in (self.share, self.entropy, self.spread)
        )
        return HeadScore(layer, head, share, entropy, spread, boxes)

    def to_dict(self) -> dict[str, Any]:
        """Return the overview as plain values for JSON; heads that a layer lacks are None."""
        plain = {
            name: [
                [value if math.isfinite(value) else None for value in row] for row in each.tolist()
            ]
            for name, each in (
                ("share", self.share), ("entropy", self.entropy), ("spread", self.spread),
                ("in_boxes", self.in_boxes),
            )
            if each is not None
        }  # fmt: skip
        best = [[each.layer, each.head] for each in self.ranked()[:10]]
        area = {} if self.area is None else {"area": self.area}
        return {"layers": list(self.sites), **plain, **area, "ranked": best}


def map_entropy(maps: Float[Tensor, "*n y x"]) -> Float[Tensor, "*n"]:
    """Return the entropy of maps as a share of that of a uniform one; 1 for maps of zeros.

    Args:
        maps: Non-negative maps of any sum.

    Example:
        >>> map_entropy(torch.tensor([[[1.0, 1.0]], [[0.0, 5.0]]]))
        tensor([1., 0.])
    """
    shares, empty = _shares(maps)
    count = maps.shape[-2] * maps.shape[-1]
    entropy = -torch.xlogy(shares, shares).sum((-2, -1)) / math.log(max(count, 2))
    return (entropy + 0.0).masked_fill(empty, 1.0)  # without negative zeros


def map_spread(maps: Float[Tensor, "*n y x"]) -> Float[Tensor, "*n"]:
    """Return how far maps lie from their center, as a share of a uniform map; 1 for zeros.

    Args:
        maps: Non-negative maps of any sum, on cells that are taken as square.

    Example:
        >>> map_spread(torch.tensor([[[1.0, 1.0, 1.0]], [[0.0, 2.0, 0.0]], [[1.0, 0.0, 1.0]]]))
        tensor([1.0000, 0.0000, 1.2247])
    """
    shares, empty = _shares(maps)
    rows, columns = maps.shape[-2:]
    y = torch.arange(rows, dtype=maps.dtype, device=maps.device) - (rows - 1) / 2
    x = torch.arange(columns, dtype=maps.dtype, device=maps.device) - (columns - 1) / 2
    variance = torch.zeros_like(shares[..., 0, 0])
    for places, axis in ((y, -1), (x, -2)):
        along = shares.sum(axis)
        mean = (along * places).sum(-1, keepdim=True)
        variance = variance + (along * (places - mean) ** 2).sum(-1)
    uniform = float((y**2).mean() + (x**2).mean())
    return (variance.clamp(min=0) / max(uniform, 1e-12)).sqrt().masked_fill(empty, 1.0)


def _shares(maps: Tensor) -> tuple[Tensor, Tensor]:
    sums = maps.sum((-2, -1), keepdim=True)
    empty = sums[..., 0, 0] <= 0
    return maps / sums.masked_fill(sums <= 0, 1.0), empty
