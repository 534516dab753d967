"""Texts that a figure shows."""

from collections.abc import Iterator

from visattn.viz.canvas import Canvas, PlacedDrawing, PlacedText
from visattn.viz.rendering import Figure


def texts(figure: Figure) -> list[str]:
    """Return all texts of a figure, in the order in which they are drawn."""

    def written(canvas: Canvas) -> Iterator[str]:
        for mark in canvas.marks:
            if isinstance(mark, PlacedText):
                yield mark.text
            elif isinstance(mark, PlacedDrawing):
                yield from written(mark.drawing)

    return list(written(figure.draw(1.0)))
