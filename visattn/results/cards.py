"""Cards of an index: what it shows of each image."""

from typing import NamedTuple


class Card(NamedTuple):
    """A card of an index of results.

    Args:
        page: File to which the card links, in the folder of the index.
        thumbnail: Data URL of a small image.
    """

    name: str
    page: str
    caption: str
    thumbnail: str
