"""Plots of attention statistics by layer, with a dot for each head."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from visattn.viz.figures import ACCENT, LINE, TEXT, Figure, axes_in_rows, style

_COLUMNS = 3
_UNIT_RANGE = frozenset({"entropy", "saturated", "diversity", "sink"})
_TITLES = {
    "entropy": "normalized entropy (1: uniform)",
    "saturated": "saturated rows (one key)",
    "distance": "mean distance, patches",
    "pixels": "mean distance, input pixels",
    "diversity": "diversity of heads",
    "sink": "attention to the strongest key",
}


def plot_attention_stats(layers: Sequence[Mapping[str, Float[np.ndarray, " _"]]]) -> Figure:
    """Return a plot of each statistic over layers: a dot per head, and a line of their mean.

    Statistics without any finite value are left out.

    Args:
        layers: For each layer, in the order of the model: the values of its heads by statistic.

    Raises:
        ValueError: If there is no statistic with a finite value.

    Example:
        >>> layers = [{"entropy": np.array([0.5, 0.7])}, {"entropy": np.array([0.2, 0.9])}]
        >>> [ax.get_title(loc="left") for ax in plot_attention_stats(layers).axes]
        ['normalized entropy (1: uniform)']
    """
    nothing = np.full(1, np.nan)
    named = {name: [layer.get(name, nothing) for layer in layers]
             for layer in layers for name in layer}  # fmt: skip
    named = {
        name: heads for name, heads in named.items() if np.isfinite(np.concatenate(heads)).any()
    }
    if not named:
        raise ValueError("at least one layer must have a statistic with finite values, got none")
    rows = -(-len(named) // _COLUMNS)
    with style():
        figure, axes = axes_in_rows(
            [0.6] * rows, min(_COLUMNS, len(named)), above=1.3 * LINE, below=2 * LINE
        )
        places = [ax for row in axes for ax in row]
        for ax in places[len(named) :]:
            ax.remove()
        for ax, (name, heads) in zip(places, named.items(), strict=False):
            number = np.repeat(np.arange(len(heads)), list(map(len, heads)))
            values = np.concatenate(heads)
            ax.plot(number, values, "o", color=ACCENT, fillstyle="none", markersize=3)
            means = [float(np.mean(own[np.isfinite(own)])) if np.isfinite(own).any() else np.nan
                     for own in heads]  # fmt: skip
            ax.plot(means, "-o", color=TEXT, linewidth=1.2, markersize=2.5)
            title = (
                f"attention {name} tokens" if name.startswith("to ") else _TITLES.get(name, name)
            )
            ax.set_title(title, loc="left")
            ax.set_xlabel("layer")
            unit = name in _UNIT_RANGE or name.startswith("to ")
            ax.set_ylim(0, 1.02 if unit else 1.05 * float(np.nanmax(values)) or 1.0)
            ax.grid(axis="y", linewidth=0.4, alpha=0.5)
            box = ax.get_position()
            ax.set_position((box.x0 + 0.03, box.y0, box.width - 0.03, box.height))
    return figure
