"""What a figure shows: its texts, and colors at places of its axes."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from visattn.viz.figures import rgb


def texts(figure: Figure) -> list[str]:
    """Return all lines of text of a figure, those of ticks included."""
    figure.canvas.draw()  # ticks get their labels
    written = [each.get_text() for each in figure.findobj(Text) if each.get_visible()]
    return [line for text in written for line in text.split("\n") if line]


def colors(figure: Figure, ax: Axes, places: list[tuple[float, float]]) -> np.ndarray:
    """Return the colors of a figure at x and y of axes, RGB."""
    drawn = rgb(figure).astype(int)
    at = np.floor(ax.transData.transform(places)).astype(int)
    return drawn[len(drawn) - 1 - at[:, 1], at[:, 0]]
