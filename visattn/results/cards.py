"""Cards of an index: what it shows of each image."""

from typing import NamedTuple


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
