"""Caption panels as pictures in the log, so that one sees attention being learnt."""

from collections.abc import Iterator

import numpy as np
from torch import nn

from visattn import seeing
from visattn.models.captioners import Captioner
from visattn.tasks.bases import Data
from visattn.tasks.drawn_panels import DrawnPanels


class CaptionPanels(DrawnPanels):
    """Log a panel for the first validation pictures, each time the model is validated.

    Args:
        pictures: How many.
        width: Of a panel, in pixels.
    """

    def __init__(self, pictures: int = 4, width: int = 900) -> None:
        self.pictures, self.width = pictures, width

    def panels(self, model: nn.Module, data: Data) -> Iterator[tuple[str, np.ndarray]]:
        """Give a panel for each picture, if the model makes captions."""
        if not isinstance(model, Captioner):
            return
        for index, picture in enumerate(data.examples(self.pictures)):
            (told,) = seeing.caption(model, [picture])
            yield f"captions/{index}", seeing.panel(picture, told, width=self.width)
