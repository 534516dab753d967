"""Figures of what words attend to beside the photo, and of the heads that read it."""

from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.results.captions import Caption
from visattn.results.word_statistics import HeadOverview
from visattn.viz.captions.head_tables import head_tables
from visattn.viz.captions.text_matrix import MatrixColumn, text_matrix

_RANKED = 10


def text_attention_figure(
    caption: Caption, *, width: int = 1200, **options: Any
) -> UInt8[np.ndarray, "height width 3"]:
    """Return the matrix of a caption's words by the text that they attend to.

    Args:
        caption: A caption with `text_attention`.
        width: Width of the figure in pixels.
        options: Arguments of `visattn.viz.captions.text_matrix.text_matrix`.

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
        >>> text_attention_figure(caption).shape[1]
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
    return text_matrix(attention.words, columns, weights, shares=attention.photo.numpy(),
                       title=caption.text, subtitle=subtitle, width=width, **options)  # fmt: skip


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


def statistics_figures(caption: Caption) -> dict[str, UInt8[np.ndarray, "height width 3"]]:
    """Return the figures of the statistics that a caption has, by the ending of their files.

    Args:
        caption: A caption with words.
    """
    figures: dict[str, Any] = {}
    if caption.text_attention is not None and caption.words:
        figures["text"] = text_attention_figure(caption)
    if caption.head_overview is not None:
        figures["heads"] = head_overview_figure(caption)
    return figures
