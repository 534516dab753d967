"""Captions with a map per word, and the annotated phrases in them."""

import string
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8

from visattn.geometry.affine import Box, Geometry
from visattn.results.attention_map import AttentionMap, truncate_text
from visattn.results.records import UNSAVED, Result, shown


class Phrase(NamedTuple):
    """A noun phrase of a caption, with the boxes of its objects.

    Example:
        >>> Phrase(1, 2, ((0.0, 0.5, 1.0, 1.0),), ("scene",), "green grass").num_words
        2
    """

    start: int
    """Index of its first word in the words that `split_words` returns for the caption."""
    num_words: int
    """Number of words."""
    boxes: tuple[Box, ...]
    """Left, top, right, bottom, from 0 to 1 across the image or the network's input."""
    types: tuple[str, ...]
    """Category, such as `people`, `animals`, `scene`."""
    text: str
    """The words in lower case, joined by single spaces."""


@dataclass(frozen=True)
class GroundedPhrase:
    """A phrase of a caption, its ground-truth boxes, and the scores of its attention."""

    first: int
    """Index of its first word in the caption."""
    words: int
    boxes: tuple[Box, ...]
    """Left, top, right and bottom as fractions of the image size."""
    correctness: tuple[float, ...] = ()
    """Attention inside the boxes, for each word; empty if they are outside the model's input."""
    baseline: float = 0.0
    """Attention inside the boxes of a uniform map."""
    pointed: bool = False
    """Whether the peak of the sum of its maps is inside the boxes."""


_GATE = "β"


NO_WORDS = "(no words)"
"""Text of a caption without words in figures."""


@dataclass(frozen=True, eq=False, repr=False)
class Caption(Result):
    """A caption with log-probability, gate and attention map of each word."""

    words: tuple[str, ...]
    log_probs: tuple[float, ...]
    """Log-probability of each word, in nats."""
    gates: tuple[float, ...]
    """Share of the image in the context vector of each word, in [0, 1]: the attention gate, or 1
    minus the weight of a visual sentinel."""
    maps: AttentionMap
    """One attention map per word, placed on the original image."""
    score: float
    """Log-probability of the caption divided by its length penalty."""
    finished: bool
    """Whether the end token was generated; otherwise the caption was truncated."""
    alternatives: tuple["Caption", ...] = ()
    """The next best captions, if `num_captions` is above 1."""
    image: str = ""
    """Name of the image file; "" if unknown."""
    gate_symbol: str = _GATE
    """Symbol of the gates in figures; "on photo" for the share of a word's attention on the photo,
    if words also attend to text and padding."""
    notes: str = ""
    """Settings of the maps: method, layers, heads, controls; "" for the model's own attention."""
    thumbnail: UInt8[np.ndarray, "y x 3"] | None = field(default=None, metadata=UNSAVED)
    """The photo at up to 640 pixels, for notebooks."""
    spaces: tuple[bool, ...] = ()
    """Whether each word has a space before it; () if all have."""
    phrases: tuple[GroundedPhrase, ...] = ()
    """Annotated phrases that occur in it, from `ground_phrases`."""

    def __repr__(self) -> str:
        """Return the caption in one line."""
        more = f", {len(self.alternatives)} more" if self.alternatives else ""
        name = f", {self.image}" if self.image else ""
        text = truncate_text(self.text, 100)
        return f"Caption({text!r}, score {self.score:.3g}, {len(self.words)} maps{more}{name})"

    def _repr_html_(self) -> str | None:
        """Return the photo and the words for notebooks; hovering a word shows its map."""
        return shown(self)

    @property
    def smooth(self) -> bool:
        """Whether figures interpolate the maps; those of hard attention are single cells."""
        return self.maps.info.places not in ("argmax", "sample")

    @property
    def quantity(self) -> str:
        """Label of the values of the maps, for legends."""
        return self.maps.info.quantity or "attention"

    @property
    def text(self) -> str:
        """The caption as one line."""
        if not self.spaces:
            return " ".join(self.words)
        spaced = zip(self.spaces, self.words, strict=True)
        return "".join(" " * space + word for space, word in spaced).strip()

    @property
    def has_gates(self) -> bool:
        """Whether a gate scaled the context vector of a word; otherwise all gates are 1."""
        return any(gate < 1 for gate in self.gates)

    def drawable(self) -> "Caption":
        """Return the caption for figures; one without words gets a placeholder."""
        if self.words:
            return self
        values = torch.zeros(1, *self.maps.values.shape[1:])
        maps = replace(self.maps, values=values, labels=())
        return replace(self, words=(NO_WORDS,), log_probs=(), gates=(), maps=maps, spaces=())

    def to_pandas(self) -> Any:
        """Return a row per word as a data frame of pandas.

        Its columns: photo, word, log probability in nats, share of the word's attention on the
        photo, and x and y of the peak of its map in pixels of the photo.
        """
        import pandas as pd

        rows, columns = self.maps.values.shape[1:]
        peaks = self.maps.values.flatten(1).argmax(1)
        cells = torch.stack([peaks % columns, peaks // columns], 1) + 0.5
        geometry = self.maps.geometry or Geometry.identity((rows, columns))
        scale = torch.tensor(geometry.input_size).flip(0) / torch.tensor([columns, rows])
        x, y = geometry.to_image(cells * scale).T.tolist() if self.words else ([], [])
        return pd.DataFrame({
            "photo": [self.image] * len(self.words), "word": list(self.words),
            "log_prob": list(self.log_probs), "on_photo": list(self.gates), "x": x, "y": y,
        })  # fmt: skip

    def to_arrays(self) -> dict[str, Any]:
        """Return the maps of the captions: `maps`, and `maps_2` and so on of the alternatives."""
        several = enumerate((self, *self.alternatives), start=1)
        return {f"maps_{n}" if n > 1 else "maps": each.maps.values.numpy() for n, each in several}


def word_table(captions: Iterable[Caption]) -> Any:
    """Return the words of captions as a data frame of pandas, the most frequent first.

    Its columns: how often each word occurs, letters in lower case and without punctuation at its
    ends; and the means of its log probability and of the share of its attention on the photo.
    """
    import pandas as pd

    table: Any = pd.concat([caption.to_pandas() for caption in captions])
    words = table["word"].str.lower().str.strip(string.punctuation)
    groups = table.groupby(words)
    result = groups[["log_prob", "on_photo"]].mean()
    result.insert(0, "count", groups.size())
    return result.sort_values(["count", "word"], ascending=[False, True])
