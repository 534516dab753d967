"""Attention of generated words to text, and statistics of the heads that read the photo."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

_STATISTICS = ("share", "entropy", "spread", "in_boxes")  # of each head, as to_dict names them

KeyKind = Literal["prompt", "special", "word"]


@dataclass(frozen=True)
class TextKey:
    """Tokens of text that words attend to.

    Args:
        text: The word; of a special token its name, such as `<s>`.
        kind: A word of the `prompt`, a `special` token, or an earlier generated `word`.
        tokens: Indices of its tokens among the keys of the attention.
    """

    text: str
    kind: KeyKind
    tokens: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TextAttention:
    """Attention of each generated word to the words before it, beside its share on the photo.

    Args:
        photo: Share of each word's attention that lies on the photo.
        other: Share on other keys, such as padding and line breaks of the photo.
        joint: Whether photo and text are keys of the same layers, so that each row of `weights`
            sums to 1 with `photo` and `other`. Otherwise text is read by self-attention, whose
            `weights` sum to 1, and the photo by cross-attention, for which `photo` and `other` do.
        how: Which layers and heads the mean is taken of.

    Example:
        >>> keys = (TextKey("<s>", "special", (0,)), TextKey("red", "word", (5,)))
        >>> result = TextAttention(
        ...     ("red", "car"), keys, torch.tensor([[0.4, 0.0], [0.3, 0.2]]),
        ...     torch.tensor([0.5, 0.5]), torch.tensor([0.1, 0.0]), True)
        >>> [(text, round(weight, 3)) for text, weight in result.strongest(1)]
        [('<s>', 0.3), ('red', 0.2)]
    """

    words: tuple[str, ...]
    keys: tuple[TextKey, ...]
    weights: Float[Tensor, "w k"]
    photo: Float[Tensor, " w"]
    other: Float[Tensor, " w"]
    joint: bool
    how: str = ""

    def strongest(self, word: int, count: int = 5) -> list[tuple[str, float]]:
        """Return the keys that a word attends to most, with their weights.

        Keys without weight are left out.
        """
        order = self.weights[word].argsort(descending=True, stable=True)[:count].tolist()
        row = self.weights[word].tolist()
        return [(self.keys[key].text, row[key]) for key in order if row[key] > 0]

    def to_dict(self) -> dict[str, Any]:
        """Return the attention as plain values for JSON."""
        return {
            "words": list(self.words),
            "keys": [{"text": key.text, "kind": key.kind, "tokens": list(key.tokens)}
                     for key in self.keys],
            "weights": self.weights.tolist(),
            "photo": self.photo.tolist(),
            "other": self.other.tolist(),
            "joint": self.joint,
            "how": self.how,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "TextAttention":
        """Return the attention of a record.

        The record is that of `to_dict`, also of an older version.

        Example:
            >>> keys = (TextKey("a", "prompt", (3,)),)
            >>> text = TextAttention(("7",), keys, torch.ones(1, 1), torch.zeros(1), torch.zeros(1),
            ...                      joint=True)
            >>> TextAttention.from_dict(text.to_dict()).keys == keys
            True
        """
        words = tuple(record["words"])
        keys = tuple(
            TextKey(key["text"], key["kind"], tuple(key.get("tokens", ())))
            for key in record["keys"]
        )
        weights, photo, other = (
            torch.tensor(record[name], dtype=torch.float32)
            for name in ("weights", "photo", "other")
        )
        shaped = weights.reshape(len(words), len(keys))
        return cls(words, keys, shaped, photo, other, record["joint"], record["how"])


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
            return sorted(scores, key=lambda score: -(score.in_boxes or 0.0))
        kept = [score for score in scores if score.share >= least and score.share > 0]
        return sorted(kept, key=lambda score: score.spread)

    def _score(self, layer: int, head: int) -> HeadScore:
        boxes = None if self.in_boxes is None else float(self.in_boxes[layer, head])
        share, entropy, spread = (
            float(statistic[layer, head]) for statistic in (self.share, self.entropy, self.spread)
        )
        return HeadScore(layer, head, share, entropy, spread, boxes)

    def to_dict(self) -> dict[str, Any]:
        """Return the overview as plain values for JSON; heads that a layer lacks are None."""
        plain: dict[str, list[list[float | None]]] = {}
        for name in _STATISTICS:
            statistic = getattr(self, name)
            if statistic is not None:
                rows = statistic.tolist()
                plain[name] = [[x if math.isfinite(x) else None for x in row] for row in rows]
        best = [[score.layer, score.head] for score in self.ranked()[:10]]
        area = {} if self.area is None else {"area": self.area}
        return {"layers": list(self.sites), **plain, **area, "ranked": best}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "HeadOverview":
        """Return the overview of a record.

        Example:
            >>> part = torch.tensor([[0.5, float("nan")]])
            >>> again = HeadOverview.from_dict(HeadOverview(("a",), part, part, part).to_dict())
            >>> again.share
            tensor([[0.5000,    nan]])
        """
        statistics = {
            name: torch.tensor(
                [[math.nan if x is None else x for x in row] for row in record[name]]
            )
            for name in _STATISTICS
            if name in record
        }
        return cls(tuple(record["layers"]), **statistics, area=record.get("area"))
