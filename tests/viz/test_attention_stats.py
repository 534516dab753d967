"""Plots of attention statistics: points for heads, a line for their mean."""

from collections.abc import Callable

import numpy as np
import pytest

from visattn.viz.attention_stats import plot_attention_stats
from visattn.viz.canvas import ACCENT, BACKGROUND, TEXT


def places(drawn: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    return np.argwhere(np.abs(drawn.astype(int) - color).max(2) < 40)


def test_layer_means_are_at_their_values() -> None:
    layers = [{"entropy": np.array([0.0, 0.5])}, {"entropy": np.array([1.0, 1.0])}]
    drawn = plot_attention_stats(layers)[34:190, 44:326]  # the plot: 156 x 282 pixels
    at = places(drawn, TEXT)
    left, right = at[at[:, 1].argmin()], at[at[:, 1].argmax()]
    assert left[0] == pytest.approx(0.75 * 156, abs=4)
    assert left[1] == pytest.approx(0.25 * 282, abs=4)
    assert right[0] == pytest.approx(0, abs=4)
    assert right[1] == pytest.approx(0.75 * 282, abs=4)
    rings = places(drawn[:, : 282 // 2], ACCENT)
    assert rings[:, 0].min() == pytest.approx(0.5 * 156, abs=6)
    assert rings[:, 0].max() == pytest.approx(156, abs=6)


def test_panel_for_each_available_statistic() -> None:
    known, unknown = np.array([0.5]), np.array([np.nan])
    layers = [
        {"entropy": known, "distance": 7 * known, "to class": known, "pixels": unknown},
        {"entropy": known, "sink": known},
    ]
    drawn = plot_attention_stats(layers, (120, 160))
    assert drawn.shape == (240, 480, 3)
    assert (drawn[120:, 160:] == BACKGROUND).all()


@pytest.mark.parametrize("count", [1, 12, 64])
def test_plots_of_any_number_of_layers(count: int) -> None:
    drawn = plot_attention_stats([{"distance": np.array([3.0, 0.0])}] * count)
    assert drawn.shape == (220, 340, 3)
    assert (drawn[:, -2:] == BACKGROUND).all()


def test_no_statistics_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one layer must have a statistic"):
        plot_attention_stats([{"entropy": np.array([np.nan])}])


def test_golden_image_of_dots(golden: Callable[[str, np.ndarray], None]) -> None:
    drawn = plot_attention_stats(
        [{"entropy": np.array([0.2, 0.4])}, {"entropy": np.array([0.9])}], (190, 250)
    )
    golden("diagnostic_dots", drawn[94:190, 44:140])
