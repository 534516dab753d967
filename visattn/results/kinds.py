"""Shared by several subpackages: kinds of maps, splits, special tokens, classes, index cards."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

MapKind = Literal[
    "gate", "tokens", "words", "queries", "glimpse", "gradient", "saliency", "channel"
]

Split = Literal["train", "validation", "test", "novel"]
"""Splits of a dataset; `novel` has combinations that training lacks, if the data define them."""

SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unknown>")

PAD, START, END, UNKNOWN = range(4)


def checked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return a vocabulary as a tuple; it must begin with `SPECIAL_TOKENS`.

    Example:
        >>> len(checked_words([*SPECIAL_TOKENS, "red"]))
        5
    """
    if tuple(words[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
        raise ValueError(
            f"words must begin with {', '.join(SPECIAL_TOKENS)}, got {list(words[:4])}; "
            "visattn.data.Vocabulary creates such a list"
        )
    return tuple(words)


IGNORE_LABEL = -100
"""Label of padding: the default `ignore_index` of PyTorch's losses."""

IGNORE_CLASS = 255
"""Class index of pixels in a label map that losses and metrics ignore."""

BACKGROUND = "background"
"""Name of the class of pixels without an object; in a segmentation model it is class 0."""

NO_OBJECT = -1
"""Label of padding in a batch of targets."""

ResizeMode = Literal["crop", "squash", "pad"]
"""How photos get the shape of the input of a network."""

Places = Literal["argmax", "sample", "expectation"]
"""How hard attention selects the position of each word."""

WordMethod = Literal[
    "attention", "gradient_attention", "relevance", "gradient_embedding", "gradcam", "occlusion"
]
"""Methods for the words of captions; `visattn.pipelines.caption_words` computes them."""

WORD_QUANTITIES = {
    "gradient_attention": "attention \N{MULTIPLICATION SIGN} gradient",
    "relevance": "relevance",
    "gradient_embedding": "embedding \N{MULTIPLICATION SIGN} gradient",
    "gradcam": "Grad-CAM",
    "occlusion": "decrease of log-probability",
}
"""Labels of the values of methods other than attention, for legends."""


class Card(NamedTuple):
    """A card of an index of results.

    Args:
        page: File to which the card links, in the folder of the index.
        thumbnail: Data URL of a small image.
        label: The predicted class; "" without classes.
        probability: Probability of the class.
        truth: Class that the folder of the photo is named after; "" if none.
    """

    name: str
    page: str
    caption: str
    thumbnail: str
    label: str = ""
    probability: float | None = None
    truth: str = ""
