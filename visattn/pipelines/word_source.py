"""Maps of the words of a caption by several methods, whatever model generated it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from jaxtyping import Float
from torch import Tensor, nn

from visattn.attribution.words import (
    WORD_GRADIENT_METHODS,
    WordRun,
    word_attention,
    word_attributions,
)
from visattn.geometry.affine import Geometry
from visattn.recording.frozen import frozen
from visattn.results.captions import Caption
from visattn.results.kinds import WORD_QUANTITIES

SELECTABLE = ("attention", "gradient_attention")
"""Methods that read attention weights of single layers and heads."""


class WordGrids(NamedTuple):
    """A map per word, and where its cells lie on the image."""

    values: Float[Tensor, "w *f gy gx"]
    geometry: Geometry


Placed = tuple[WordGrids, ...]
"""The maps on each image that the caption describes."""


class WordSource(Protocol):
    """A caption with its model and images: all that methods for words need to know of them."""

    @property
    def model(self) -> nn.Module:
        """The model that reads the words."""
        ...

    @property
    def words(self) -> tuple[str, ...]:
        """The words."""
        ...

    @property
    def attention(self) -> Float[Tensor, "t i"] | None:
        """Attention of each token, if it is known without another run."""
        ...

    def check(self, method: str) -> None:
        """Refuse a method that is unknown or does not fit.

        Raises:
            ValueError: With what would fit.
        """
        ...

    def run(self) -> WordRun:
        """Return a differentiable forward pass over the words."""
        ...

    def place(self, rows: Float[Tensor, "t i"]) -> Placed:
        """Return values of image tokens for each token of the caption as maps of its words."""
        ...

    def occlude(self, window_cells: int | None) -> Placed:
        """Return the decrease of each word's log-probability where a window hides the image."""
        ...

    def further(self, methods: Sequence[str]) -> dict[str, Placed]:
        """Return the maps of methods that only such models have."""
        ...

    def described(self, caption: Caption, selected: dict[str, list[int]]) -> Caption:
        """Return a caption with the maps of a method, and with what the model says of them."""
        ...


def word_grids(
    source: WordSource,
    methods: Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    window_cells: int | None = None,
) -> dict[str, Placed]:
    """Return a map per word by several methods; gradients take one backward pass per token.

    Args:
        source: The caption.
        methods: Names of methods for words.
        layers: For `attention` and `gradient_attention`: indices of layers that attend to the
            image.
        heads: For these: indices of heads.
        window_cells: For `occlusion`: side of the window in cells; None for that of the model.

    Raises:
        ValueError: If a method is unknown, does not fit, or does not take an argument.
    """
    for method in methods:
        source.check(method)
        check_selection(method, layers, heads)
    selected = (layers, heads) != (None, None)
    by_gradient = [name for name in methods if name in WORD_GRADIENT_METHODS]
    attention = None if by_gradient or selected else source.attention
    rows: dict[str, Tensor] = {}
    if by_gradient or ("attention" in methods and attention is None):
        with frozen(source.model):
            run = source.run()
            rows = word_attributions(run, by_gradient, layers=layers, heads=heads)
            if "attention" in methods:
                attention = word_attention(run, layers=layers, heads=heads)
    if "attention" in methods and attention is not None:
        rows["attention"] = attention
    placed = {name: source.place(values.detach()) for name, values in rows.items()}
    if "occlusion" in methods:
        placed["occlusion"] = source.occlude(window_cells)
    placed |= source.further([name for name in methods if name not in placed])
    return {name: placed[name] for name in methods}


def check_selection(method: str, layers: Sequence[int] | None, heads: Sequence[int] | None) -> None:
    """Refuse layers and heads for a method that does not read them one by one.

    Raises:
        ValueError: If some are selected.

    Example:
        >>> check_selection("gradcam", None, [0])
        Traceback (most recent call last):
        ValueError: layers and heads select attention weights, which gradcam does not read one by
        one; use attention or gradient_attention, or leave them out
    """
    if method not in SELECTABLE and (layers, heads) != (None, None):
        raise ValueError(
            f"layers and heads select attention weights, which {method} does not read one by one; "
            f"use {' or '.join(SELECTABLE)}, or leave them out"
        )


def with_word_maps(
    caption: Caption,
    source: WordSource,
    method: str,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    window_cells: int | None = None,
) -> Caption:
    """Return a caption with the maps of another method; its gates stay those of the attention.

    The source is the same caption; arguments as for `word_grids`.

    Raises:
        ValueError: If the method is unknown, does not fit, or does not take an argument.
    """
    options = {"layers": layers, "heads": heads}
    selected = {name: list(chosen) for name, chosen in options.items() if chosen is not None}
    if method == "attention" and not selected:
        return caption
    [grids] = word_grids(source, [method], window_cells=window_cells, **options).values()
    kind = "words" if method == "attention" else "gradient"
    maps = tuple(
        replace(
            old,
            values=new.values,
            kind=kind,
            geometry=new.geometry,
            info=replace(old.info, method=method, quantity=WORD_QUANTITIES.get(method, "")),
        )
        for old, new in zip((caption.maps, *caption.further_maps), grids, strict=True)
    )
    return source.described(replace(caption, maps=maps[0], further_maps=maps[1:]), selected)
