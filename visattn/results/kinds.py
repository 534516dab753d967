"""What several subpackages share: kinds of maps, splits, special tokens, classes, index cards."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

MapKind = Literal[
    "gate", "tokens", "words", "queries", "glimpse", "gradient", "saliency", "channel"
]

Split = Literal["train", "validation", "test", "novel"]
"""Parts of a dataset; `novel` tests what training never combined, for data that know it."""

SPECIAL_TOKENS = ("<pad>", "<start>", "<end>", "<unknown>")

PAD, START, END, UNKNOWN = range(4)


def checked_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return a vocabulary as a tuple; refuse one that does not begin with `SPECIAL_TOKENS`.

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
"""Class number of pixels in a label map that losses and metrics leave out."""

BACKGROUND = "background"
"""Name of the class of pixels without an object; in a segmentation model it is class 0."""

NO_OBJECT = -1
"""Label of padding in a batch of targets."""

Places = Literal["argmax", "sample", "expectation"]
"""How hard attention selects the place of each word."""

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
"""What the maps of methods other than attention show, for legends."""


class Card(NamedTuple):
    """A card of an index of results.

    Args:
        page: File to which the card links, in the folder of the index.
        thumbnail: Data URL of a small image.
        label: The predicted class; "" without classes.
        probability: That of the class.
        truth: The class that the folder of the photo names; "" if it names none.
    """

    name: str
    page: str
    caption: str
    thumbnail: str
    label: str = ""
    probability: float | None = None
    truth: str = ""
