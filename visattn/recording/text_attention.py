"""Attention of generated words to text: to the prompt, to special tokens, and to earlier words."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

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
        words: The generated words, the rows.
        keys: What they attend to, the columns.
        weights: Attention of each word to each key.
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

        Args:
            word: Index of the word.
            count: At most this many; keys without weight are left out.
        """
        order = self.weights[word].argsort(descending=True, stable=True)[:count].tolist()
        row = self.weights[word].tolist()
        return [(self.keys[key].text, row[key]) for key in order if row[key] > 0]

    def to_dict(self) -> dict[str, Any]:
        """Return the attention as plain values for JSON."""
        return {
            "words": list(self.words),
            "keys": [{"text": key.text, "kind": key.kind} for key in self.keys],
            "weights": self.weights.tolist(),
            "photo": self.photo.tolist(),
            "other": self.other.tolist(),
            "joint": self.joint,
            "how": self.how,
        }


def add_keys(rows: Float[Tensor, "*t m"], keys: tuple[TextKey, ...]) -> Float[Tensor, "*t k"]:
    """Return the attention to each key: the sum over its tokens.

    Args:
        rows: Attention to each token.
        keys: The keys.

    Example:
        >>> add_keys(torch.tensor([[0.1, 0.2, 0.7]]), (TextKey("cat", "word", (0, 1)),))
        tensor([[0.3000]])
    """
    sums = [rows[..., list(key.tokens)].sum(-1) for key in keys]
    return torch.stack(sums, -1) if sums else rows[..., :0]
