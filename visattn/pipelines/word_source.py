"""Maps of the words of a caption by one of several methods, whatever model generated it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, get_args

from jaxtyping import Float
from torch import Tensor, nn

from visattn.attribution.words import WordRun, word_attention, word_attributions
from visattn.geometry.affine import Geometry
from visattn.recording.frozen import frozen
from visattn.results.captions import Caption
from visattn.results.kinds import WORD_QUANTITIES, WordMethod

_SELECTABLE = ("attention", "gradient_attention")
"""Methods that read attention weights of single layers and heads."""


class WordGrids(NamedTuple):
    """A map per word, and where its cells lie on the image."""

    values: Float[Tensor, "w gy gx"]
    geometry: Geometry


class WordSource(Protocol):
    """A caption with its model and image: all that methods for words need to know of them."""

    @property
    def model(self) -> nn.Module:
        """The model that reads the words."""
        ...

    def run(self) -> WordRun:
        """Return a differentiable forward pass over the words."""
        ...

    def place(self, rows: Float[Tensor, "t i"]) -> WordGrids:
        """Return values of image tokens for each token of the caption as maps of its words."""
        ...

    def occlude(self, window_cells: int | None) -> WordGrids:
        """Return the decrease of each word's log-probability where a window hides the image."""
        ...

    def described(self, caption: Caption, selected: dict[str, list[int]]) -> Caption:
        """Return a caption with the maps of a method, and with what the model says of them."""
        ...


def word_grids(
    source: WordSource,
    method: str,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    window_cells: int | None = None,
) -> WordGrids:
    """Return a map per word; gradients take one backward pass per token.

    Args:
        source: The caption.
        method: Name of a method for words.
        layers: For `attention` and `gradient_attention`: indices of layers that attend to the
            image.
        heads: For these: indices of heads.
        window_cells: For `occlusion`: side of the window in cells; None for that of the model.

    Raises:
        ValueError: If the method is unknown, or does not take an argument.
    """
    check_method(method, layers, heads)
    if method == "occlusion":
        return source.occlude(window_cells)
    with frozen(source.model):
        run = source.run()
        if method == "attention":
            rows = word_attention(run, layers=layers, heads=heads)
        else:
            rows = word_attributions(run, [method], layers=layers, heads=heads)[method]
    return source.place(rows.detach())


def check_method(method: str, layers: Sequence[int] | None, heads: Sequence[int] | None) -> None:
    """Refuse an unknown method, and layers and heads for one that does not read them one by one.

    Raises:
        ValueError: If the method is unknown, or layers or heads do not apply.

    Example:
        >>> check_method("gradcam", None, [0])
        Traceback (most recent call last):
        ValueError: layers and heads select attention weights, which gradcam does not read one by
        one; use attention or gradient_attention, or leave them out
    """
    known = get_args(WordMethod)
    if method not in known:
        raise ValueError(f"methods for words are {', '.join(known)}; got {method!r}")
    if method not in _SELECTABLE and (layers, heads) != (None, None):
        raise ValueError(
            f"layers and heads select attention weights, which {method} does not read one by one; "
            f"use {' or '.join(_SELECTABLE)}, or leave them out"
        )


def with_word_maps(
    caption: Caption,
    source: WordSource,
    method: str,
    *,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    window_cells: int | None = None,
) -> Caption:
    """Return a caption with the maps of another method; its gates stay those of the attention.

    The source is the same caption; arguments as for `word_grids`.

    Raises:
        ValueError: If the method is unknown, or does not take an argument.
    """
    selected = {
        name: [chosen] if isinstance(chosen, int) else list(chosen)
        for name, chosen in (("layers", layers), ("heads", heads))
        if chosen is not None
    }
    if method == "attention" and not selected:
        return caption
    grids = word_grids(source, method, window_cells=window_cells, **selected)
    kind = "words" if method == "attention" else "gradient"
    info = replace(caption.maps.info, method=method, quantity=WORD_QUANTITIES.get(method, ""))
    maps = replace(caption.maps, values=grids.values, kind=kind, geometry=grids.geometry, info=info)
    return source.described(replace(caption, maps=maps), selected)
