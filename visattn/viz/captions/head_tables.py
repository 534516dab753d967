"""Statistics of the heads of each layer as tables of colors, with a ranking of the heads."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.results.captions import Caption
from visattn.results.word_statistics import HeadOverview
from visattn.viz.captions.alignment import draw_cells
from visattn.viz.layout.grid import MARGIN, draw_title, title_bottom
from visattn.viz.layout.text import load_font, truncate_text
from visattn.viz.maps.legend import BACKGROUND, MUTED, SMALL, TEXT

MIN_WIDTH = 560
_AXIS, _GAP, _LABEL = 34, 34, 54  # left of a table, between tables, above one
_MIN_CELL, _MAX_CELL, _MAX_HEIGHT = 3, 34, 24  # of cells, in pixels
_LINE, _BAR = 22, 12
_RANKED = 10  # heads


def head_tables(
    tables: Mapping[str, Float[np.ndarray, "l h"]],
    ranking: Sequence[Sequence[str]],
    *,
    title: str = "",
    subtitle: str = "",
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with a table of colors per statistic, layers by heads, and a ranking.

    Args:
        tables: Values by the name of the statistic; NaN where a layer has no such head. Each table
            has a scale of its own.
        ranking: The heads, the best first: a header and rows of as many cells.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        width: Width of the figure in pixels, at least 560.

    Raises:
        ValueError: If there is no table, the shapes differ, or the figure is too narrow.

    Example:
        >>> head_tables({"share": np.eye(3)}, [["layer", "head"], ["0", "0"]]).shape[1]
        1200
    """
    shapes = {values.shape for values in tables.values()}
    if len(shapes) != 1 or not all(shapes.copy().pop()) or width < MIN_WIDTH:
        raise ValueError(
            f"tables of heads need values of one shape and a width of at least {MIN_WIDTH}, got "
            f"{sorted(shapes)} and {width}"
        )
    [(layers, heads)] = shapes
    columns = min(len(tables), max(1, (width - 2 * MARGIN + _GAP) // (240 + _GAP)))
    across = (width - 2 * MARGIN - (columns - 1) * _GAP) // columns
    cell = min(max((across - _AXIS) // heads, _MIN_CELL), _MAX_CELL)
    height = min(cell, _MAX_HEIGHT)
    block = _LABEL + layers * height + 58
    rows = -(-len(tables) // columns)
    top = title_bottom(title, width, subtitle=subtitle)
    below = top + rows * block
    page = Image.new("RGB", (width, below + len(ranking) * _LINE + MARGIN), BACKGROUND)
    draw_title(page, title, subtitle)
    for number, (name, values) in enumerate(tables.items()):
        x = MARGIN + number % columns * (across + _GAP)
        _draw_table(page, (x, top + number // columns * block), name, values, (height, cell))
    _write_ranking(ImageDraw.Draw(page), below, ranking, width)
    return np.array(page)


def _draw_table(
    page: Image.Image,
    place: tuple[int, int],
    name: str,
    values: Float[np.ndarray, "l h"],
    cell: tuple[int, int],
) -> None:
    """Draw one table with its axes and its scale."""
    (x, y), pen, font = place, ImageDraw.Draw(page), load_font(SMALL)
    pen.text((x, y), name, TEXT, load_font(SMALL + 2))
    left, top = x + _AXIS, y + _LABEL
    finite = values[np.isfinite(values)]
    low, high = float(finite.min(initial=np.inf)), float(finite.max(initial=-np.inf))
    high = high if high > low else low + 1e-6
    large = values.repeat(cell[0], 0).repeat(cell[1], 1)
    page.paste(Image.fromarray(draw_cells(None, large, vmin=low, vmax=high)), (left, top))
    layers, heads = values.shape
    for count, step, draw in (
        (heads, max(1, -(-22 // cell[1])), lambda index, text: pen.text(
            (left + (index + 0.5) * cell[1], top - 4), text, MUTED, font, anchor="ms")),
        (layers, max(1, -(-14 // cell[0])), lambda index, text: pen.text(
            (left - 6, top + (index + 0.5) * cell[0]), text, MUTED, font, anchor="rm")),
    ):  # fmt: skip
        for index in range(0, count, step):
            draw(index, str(index))
    pen.text((left, top - 32), "head", MUTED, font)
    pen.text((left - 6, top - 4), "layer", MUTED, font, anchor="rs")
    below = top + layers * cell[0] + 12
    length = min(160, max(heads * cell[1], 90))
    ramp = np.tile(np.linspace(low, high, length), (_BAR, 1))
    page.paste(Image.fromarray(draw_cells(None, ramp, vmin=low, vmax=high)), (left, below))
    pen.text((left, below + _BAR + 4), f"{low:.2g}", MUTED, font)
    pen.text((left + length, below + _BAR + 4), f"{high:.2g}", MUTED, font, anchor="ra")


def _write_ranking(
    pen: ImageDraw.ImageDraw, top: int, ranking: Sequence[Sequence[str]], width: int
) -> None:
    """Write the ranking as a table; the last column takes the rest of the width."""
    if not ranking:
        return
    font, step = load_font(SMALL + 1), min(100, (width - 2 * MARGIN) // (len(ranking[0]) + 2))
    for number, row in enumerate(ranking):
        y = top + number * _LINE
        for column, text in enumerate(row):
            x = MARGIN + column * step
            last = column == len(row) - 1
            space = width - MARGIN - x if last else step - 8
            pen.text((x, y), truncate_text(text, font, space), TEXT if number else MUTED, font)


def head_overview_figure(
    caption: Caption, *, width: int = 1200, **options: Any
) -> UInt8[np.ndarray, "height width 3"]:
    """Return how each head of each layer reads the photo, and the heads that localize best.

    Args:
        caption: A caption with `head_overview`.
        width: Width of the figure in pixels.
        options: Arguments of `visattn.viz.captions.head_tables.head_tables`.

    Raises:
        ValueError: If the caption has no overview of heads.

    Example:
        >>> from visattn.results.attention_map import AttentionMap
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> heads = HeadOverview(("a", "b"), *[torch.rand(2, 3) for _ in range(3)])
        >>> caption = Caption(("dog",), (-0.1,), (0.5,), maps, -0.1, True, head_overview=heads)
        >>> head_overview_figure(caption).shape[1]
        1200
    """
    overview = caption.head_overview
    if overview is None:
        raise ValueError(
            "the caption must have the overview of its heads: pass head_overview=True to "
            "visattn.caption, for a model of transformers"
        )
    tables = {
        "share on the photo": overview.share,
        "entropy (1: uniform)": overview.entropy,
        "spread (1: uniform)": overview.spread,
    }
    if overview.in_boxes is not None:
        tables[f"in the boxes (uniform: {overview.area or 0:.2f})"] = overview.in_boxes
    rule = "smallest spread, of the heads with at least the median share on the photo"
    if overview.in_boxes is not None:
        rule = "most of the map in the boxes"
    return head_tables(
        {name: values.numpy() for name, values in tables.items()}, ranking_rows(overview),
        title=caption.text, subtitle=f"means over {len(caption.words)} words; best first: {rule}",
        width=width, **options,
    )  # fmt: skip


def ranking_rows(overview: HeadOverview) -> list[list[str]]:
    """Return the best heads as a table of text, with the options that select each.

    Args:
        overview: The overview.
    """
    boxes = ["in boxes"] if overview.in_boxes is not None else []
    rows = [["layer", "head", "share", "entropy", "spread", *boxes, "options"]]
    for each in overview.ranked()[:_RANKED]:
        values = [each.share, each.entropy, each.spread]
        values += [] if each.in_boxes is None else [each.in_boxes]
        numbers = [f"{value:.2f}" for value in values]
        rows.append([str(each.layer), str(each.head), *numbers, each.options])
    return rows
