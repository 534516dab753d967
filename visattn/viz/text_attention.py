"""Attention of words to text as a matrix, and the overview of layers and heads."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from visattn.results.captions import Caption
from visattn.results.word_statistics import HeadOverview
from visattn.viz.alignment import draw_cells
from visattn.viz.canvas import ACCENT, MUTED, TEXT, TRACK, Canvas
from visattn.viz.heatmap import DrawOptions
from visattn.viz.rendering import Figure
from visattn.viz.text import load_font, truncate_text
from visattn.viz.tiles import (
    LEGEND_HEIGHT,
    MARGIN,
    SMALL,
    Legend,
    draw_title,
    scaled_size,
    title_bottom,
)

MIN_WIDTH = 560  # of the legend, in pixels
_LABELS, _BARS, _GAP = 130, 120, 14  # widths of labels and bars, and the gaps beside groups
_ROW, _CELL, _MIN_CELL, _MAX_CELL = 26, 30, 16, 46  # height of a row, width of a cell
_NAMES = 110  # height of the names of columns
_FONT = 15


class MatrixColumn(NamedTuple):
    """A column of the matrix.

    Args:
        text: Its name.
        group: Name of the group that it stands in, such as `prompt`; groups are apart.
        special: Whether it is a special token, whose name is grayed.
    """

    text: str
    group: str
    special: bool = False


def text_matrix(
    words: Sequence[str],
    columns: Sequence[MatrixColumn],
    weights: Float[np.ndarray, "w k"],
    *,
    shares: Float[np.ndarray, " w"],
    title: str = "",
    subtitle: str = "",
    width: int = 1200,
    detail: float = 1.0,
) -> Canvas:
    """Return a drawing of words by the text that they attend to, with their share on the photo.

    If there are more columns than fit, the strongest stay, and the others are one column of their
    sums. The scale ends at the greatest weight of a word: special tokens often draw much more, and
    would leave all words dark.

    Args:
        words: The generated words, at least one: the rows.
        columns: What they attend to.
        weights: Attention; 0 is left blank.
        shares: Share of each word's attention on the photo, drawn as a bar.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        width: Width of the drawing in pixels, at least 560.
        detail: Pixels of images per pixel of the drawing.

    Raises:
        ValueError: If there is no word, the shapes do not fit, or the figure is too narrow.

    Example:
        >>> columns = [MatrixColumn("<s>", "prompt", True), MatrixColumn("a", "caption")]
        >>> weights = np.array([[0.3, 0.0], [0.2, 0.1]])
        >>> text_matrix(["a", "dog"], columns, weights, shares=np.array([0.7, 0.7])).width
        1200
    """
    if not words or weights.shape != (len(words), len(columns)) or len(shares) != len(words):
        raise ValueError(
            f"a matrix needs a row for each word and a value per column, got {len(words)} words, "
            f"{len(columns)} columns, weights {weights.shape} and {len(shares)} shares"
        )
    if width < MIN_WIDTH:
        raise ValueError(f"a matrix must be at least {MIN_WIDTH} pixels wide, got {width}")
    left = MARGIN + _LABELS + _BARS + _GAP
    columns, weights = _fitting(columns, weights, width - left - MARGIN)
    starts = [number for number in range(len(columns))
              if number and columns[number].group != columns[number - 1].group]  # fmt: skip
    cell = min(max((width - left - MARGIN - _GAP * len(starts)) // max(len(columns), 1),
                   _MIN_CELL), _MAX_CELL)  # fmt: skip
    x = [left + number * cell + _GAP * sum(start <= number for start in starts)
         for number in range(len(columns))]  # fmt: skip
    top = title_bottom(title, width, subtitle=subtitle) + _NAMES
    bottom = top + len(words) * _ROW
    page = Canvas(width, bottom + MARGIN // 2 + LEGEND_HEIGHT, detail=detail)
    draw_title(page, title, subtitle)
    _write_columns(page, columns, x, cell, top)
    words_only = [number for number, column in enumerate(columns) if not column.special]
    highest = float(weights.max(initial=0.0)) or 1.0
    vmax = float(weights[:, words_only].max(initial=0.0)) or highest
    for row, word in enumerate(words):
        y = top + row * _ROW
        _write_word(page, y, word, float(shares[row]))
        for place, value in zip(x, weights[row].tolist(), strict=True):
            _draw_cell(page, (place, y, cell), value, vmax)
    label = "attention to text" + (", in cells as %" if cell >= _CELL else "")
    draw = partial(draw_cells, vmax=vmax)
    legend = Legend(draw, (0.0, vmax), label, clipped=highest > vmax, gate_symbol="on photo")
    legend.draw(page, (MARGIN, bottom + MARGIN // 2))
    return page


def _fitting(
    columns: Sequence[MatrixColumn], weights: Float[np.ndarray, "w k"], space: int
) -> tuple[list[MatrixColumn], Float[np.ndarray, "w n"]]:
    """Return the strongest columns that fit, and the sum of the others as the last one."""
    groups = len({column.group for column in columns})
    # The others are a group, too, with a gap before it.
    count = max(2, (space - _GAP * (groups + 1)) // _MIN_CELL)
    if len(columns) <= count:
        return list(columns), weights
    strongest = np.sort(np.argsort(-weights.max(axis=0), kind="stable")[: count - 1])
    rest = np.setdiff1d(np.arange(len(columns)), strongest)
    kept = [columns[index] for index in strongest.tolist()]
    more = MatrixColumn(f"{len(rest)} more", "others", special=True)
    return [*kept, more], np.column_stack([weights[:, strongest], weights[:, rest].sum(axis=1)])


def _write_columns(
    page: Canvas, columns: Sequence[MatrixColumn], x: Sequence[int], cell: int, top: int
) -> None:
    """Write the name of each column upright above it, and that of each group above these."""
    font = load_font(SMALL + 1)
    page.text((MARGIN + _LABELS, top - 8), "on photo", MUTED, load_font(SMALL), anchor="ls")
    for number, column in enumerate(columns):
        if number == 0 or column.group != columns[number - 1].group:
            page.text((x[number], top - _NAMES + 2), column.group, MUTED, load_font(SMALL))
        name = truncate_text(column.text, font, _NAMES - 28)
        color = MUTED if column.special else TEXT
        left = x[number] + (cell - _FONT - 4) // 2
        page.text((left, top - 6), name, color, font, upright=True)


def _write_word(page: Canvas, y: int, word: str, share: float) -> None:
    font = load_font(_FONT)
    middle = y + _ROW // 2
    right = MARGIN + _LABELS - 12
    page.text((right, middle), truncate_text(word, font, right - MARGIN), TEXT, font, anchor="rm")
    left = MARGIN + _LABELS
    length = _BARS - 46
    page.rectangle((left, middle - 2, left + length, middle + 2), TRACK, radius=2)
    if share > 0:
        end = left + max(4, length * min(share, 1.0))
        page.rectangle((left, middle - 2, end, middle + 2), ACCENT, radius=2)
    page.text((left + length + 8, middle), f"{share:.2f}", MUTED, load_font(SMALL), anchor="lm")


def _draw_cell(page: Canvas, place: tuple[int, int, int], value: float, vmax: float) -> None:
    x, y, cell = place
    if value <= 0:
        return
    red, green, blue = draw_cells(None, np.full((1, 1), value), vmax=vmax)[0, 0].tolist()
    page.rectangle((x + 1, y + 1, x + cell - 2, y + _ROW - 2), (red, green, blue))
    if cell >= _CELL:
        dark = value < 0.6 * vmax
        color = (235, 235, 235) if dark else (30, 30, 30)
        text = f"{100 * value:.0f}" if value >= 0.01 else "<1"
        page.text((x + cell / 2, y + _ROW / 2), text, color, load_font(SMALL - 1), anchor="mm")


def text_attention_figure(
    caption: Caption, *, width: int | None = None, scale: float = 1.0
) -> Figure:
    """Return the matrix of a caption's words by the text that they attend to.

    Args:
        caption: A caption with `text_attention`.
        width: See `DrawOptions`.
        scale: See `DrawOptions`.

    Raises:
        ValueError: If the caption has no attention to text, or no word.

    Example:
        >>> from visattn.results.attention_map import AttentionMap
        >>> from visattn.results.word_statistics import TextAttention, TextKey
        >>> half = torch.tensor([0.5])
        >>> keys = (TextKey("what", "prompt", (0,)),)
        >>> text = TextAttention(("dog",), keys, half[:, None], half, 0 * half, True)
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> caption = Caption(("dog",), (-0.1,), (0.5,), maps, -0.1, True, text_attention=text)
        >>> text_attention_figure(caption).image.width
        1200
    """
    attention = caption.text_attention
    if attention is None:
        raise ValueError(
            "the caption must have its attention to text: pass text_attention=True to "
            "visattn.caption, for a model of transformers"
        )
    group = "prompt"
    columns: list[MatrixColumn] = []
    for key in attention.keys:
        group = "caption" if key.kind == "word" else group  # special tokens stay where they stand
        columns.append(MatrixColumn(key.text, group, key.kind == "special"))
    weights = attention.weights.numpy()
    if bool((attention.other > 1e-6).any()) and attention.joint:
        columns.append(MatrixColumn("other image tokens", "others", special=True))
        weights = np.column_stack([weights, attention.other.numpy()])
    parts = [attention.how]
    if not attention.joint:
        parts.append("text by self-attention, the photo by cross-attention: each sums to 1")
    subtitle = "; ".join(filter(None, parts))
    drawing = DrawOptions(width=width, scale=scale)

    def draw(detail: float) -> Canvas:
        return text_matrix(
            attention.words,
            columns,
            weights,
            shares=attention.photo.numpy(),
            title=caption.text,
            subtitle=subtitle,
            width=drawing.page_width,
            detail=detail,
        )

    return Figure(draw, drawing.zoom)


_MIN_TABLE_WIDTH = 560


_AXIS, _TABLE_GAP, _LABEL = 34, 34, 54  # left of a table, between tables, above one


_MIN_SQUARE, _MAX_SQUARE, _MAX_HEIGHT = 3, 34, 24  # of cells, in pixels


_LINE, _BAR = 22, 12
_RANKED = 10  # heads


def head_tables(
    tables: Mapping[str, Float[np.ndarray, "l h"]],
    ranking: Sequence[Sequence[str]],
    *,
    title: str = "",
    subtitle: str = "",
    width: int = 1200,
    detail: float = 1.0,
) -> Canvas:
    """Return a drawing with a table of colors per statistic, layers by heads, and a ranking.

    Args:
        tables: Values by the name of the statistic; NaN where a layer has no such head. Each table
            has a scale of its own.
        ranking: The heads, the best first: a header and rows of as many cells.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        width: Width of the drawing in pixels, at least 560.
        detail: Pixels of images per pixel of the drawing.

    Raises:
        ValueError: If there is no table, the shapes differ, or the figure is too narrow.

    Example:
        >>> head_tables({"share": np.eye(3)}, [["layer", "head"], ["0", "0"]]).width
        1200
    """
    shapes = {values.shape for values in tables.values()}
    if len(shapes) != 1 or not all(shapes.copy().pop()) or width < _MIN_TABLE_WIDTH:
        raise ValueError(
            f"tables of heads need values of one shape and a width of at least {MIN_WIDTH}, got "
            f"{sorted(shapes)} and {width}"
        )
    [(layers, heads)] = shapes
    columns = min(len(tables), max(1, (width - 2 * MARGIN + _TABLE_GAP) // (240 + _TABLE_GAP)))
    across = (width - 2 * MARGIN - (columns - 1) * _TABLE_GAP) // columns
    cell = min(max((across - _AXIS) // heads, _MIN_SQUARE), _MAX_SQUARE)
    height = min(cell, _MAX_HEIGHT)
    block = _LABEL + layers * height + 58
    rows = -(-len(tables) // columns)
    top = title_bottom(title, width, subtitle=subtitle)
    below = top + rows * block
    page = Canvas(width, below + len(ranking) * _LINE + MARGIN, detail=detail)
    draw_title(page, title, subtitle)
    for number, (name, values) in enumerate(tables.items()):
        x = MARGIN + number % columns * (across + _TABLE_GAP)
        _draw_table(page, (x, top + number // columns * block), name, values, (height, cell))
    _write_ranking(page, below, ranking, width)
    return page


def _draw_table(
    page: Canvas,
    place: tuple[int, int],
    name: str,
    values: Float[np.ndarray, "l h"],
    cell: tuple[int, int],
) -> None:
    """Draw one table with its axes and its scale."""
    (x, y), font = place, load_font(SMALL)
    page.text((x, y), name, TEXT, load_font(SMALL + 2))
    left = x + _AXIS
    top = y + _LABEL
    finite = values[np.isfinite(values)]
    low = float(finite.min(initial=np.inf))
    high = float(finite.max(initial=-np.inf))
    high = high if high > low else low + 1e-6
    layers, heads = values.shape
    size = (layers * cell[0], heads * cell[1])
    rows, columns = (np.linspace(0, count, each, endpoint=False).astype(int)
                     for count, each in zip(values.shape, scaled_size(size, page.detail),
                                            strict=True))  # fmt: skip
    large = values[rows[:, None], columns]
    page.paste(draw_cells(None, large, vmin=low, vmax=high), (left, top), size)
    for count, step, draw in (
        (heads, max(1, -(-22 // cell[1])), lambda index, text: page.text(
            (left + (index + 0.5) * cell[1], top - 4), text, MUTED, font, anchor="ms")),
        (layers, max(1, -(-14 // cell[0])), lambda index, text: page.text(
            (left - 6, top + (index + 0.5) * cell[0]), text, MUTED, font, anchor="rm")),
    ):  # fmt: skip
        for index in range(0, count, step):
            draw(index, str(index))
    page.text((left, top - 32), "head", MUTED, font)
    page.text((left - 6, top - 4), "layer", MUTED, font, anchor="rs")
    below = top + layers * cell[0] + 12
    length = min(160, max(heads * cell[1], 90))
    ramp = draw_cells(None, np.linspace(low, high, length)[None], vmin=low, vmax=high)
    page.paste(ramp, (left, below), (_BAR, length), is_ramp=True)
    page.text((left, below + _BAR + 4), f"{low:.2g}", MUTED, font)
    page.text((left + length, below + _BAR + 4), f"{high:.2g}", MUTED, font, anchor="ra")


def _write_ranking(page: Canvas, top: int, ranking: Sequence[Sequence[str]], width: int) -> None:
    """Write the ranking as a table; the last column takes the rest of the width."""
    if not ranking:
        return
    font = load_font(SMALL + 1)
    step = min(100, (width - 2 * MARGIN) // (len(ranking[0]) + 2))
    for number, row in enumerate(ranking):
        y = top + number * _LINE
        for column, text in enumerate(row):
            x = MARGIN + column * step
            last = column == len(row) - 1
            space = width - MARGIN - x if last else step - 8
            page.text((x, y), truncate_text(text, font, space), TEXT if number else MUTED, font)


def head_overview_figure(
    caption: Caption, *, width: int | None = None, scale: float = 1.0
) -> Figure:
    """Return how each head of each layer reads the photo, and the heads that localize best.

    Args:
        caption: A caption with `head_overview`.
        width: See `DrawOptions`.
        scale: See `DrawOptions`.

    Raises:
        ValueError: If the caption has no overview of heads.

    Example:
        >>> from visattn.results.attention_map import AttentionMap
        >>> maps = AttentionMap(torch.full((1, 2, 2), 0.25), "look", "words")
        >>> heads = HeadOverview(("a", "b"), *[torch.rand(2, 3) for _ in range(3)])
        >>> caption = Caption(("dog",), (-0.1,), (0.5,), maps, -0.1, True, head_overview=heads)
        >>> head_overview_figure(caption).image.width
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
    drawing = DrawOptions(width=width, scale=scale)

    def draw(detail: float) -> Canvas:
        return head_tables(
            {name: values.numpy() for name, values in tables.items()},
            ranking_rows(overview),
            title=caption.text,
            subtitle=f"means over {len(caption.words)} words; best first: {rule}",
            width=drawing.page_width,
            detail=detail,
        )

    return Figure(draw, drawing.zoom)


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
