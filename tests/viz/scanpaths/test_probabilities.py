"""Plots of class probabilities with readable labels."""

from collections.abc import Callable

import numpy as np
import pytest

from visattn.viz.canvas import BACKGROUND, TEXT, Canvas
from visattn.viz.scanpaths.panel import class_colors, plot_probabilities, top_classes

TWO = np.array([[0.5, 0.5], [0.1, 0.9], [1.0, 0.0]])


def painted(canvas: Canvas) -> np.ndarray:
    return np.asarray(canvas.paint())


def columns(drawn: np.ndarray, color: tuple[int, int, int], near: int = 12) -> np.ndarray:
    return np.argwhere(np.abs(drawn.astype(int) - color).max(2) < near)


def test_prediction_is_first_followed_by_classes_by_final_probability() -> None:
    probabilities = np.array([[0.05, 0.6, 0.3, 0.05], [0.5, 0.0, 0.1, 0.4]])
    assert top_classes(probabilities) == [0, 3, 2, 1]
    assert top_classes(probabilities, max_classes=3) == [0, 3, 1]  # 1 was likely once, 2 less
    assert top_classes(probabilities, max_classes=1) == [0]


def test_at_most_five_classes_are_shown() -> None:
    assert len(top_classes(np.full((3, 1000), 0.001))) == 5
    assert len(top_classes(TWO)) == 2
    assert len(set(class_colors(5))) == 5


def test_all_labels_of_a_sequence_are_shown() -> None:
    read = np.eye(7)[[3, 3, 0, 0, 6, 6, 1, 1, 5, 5, 2, 2]]
    assert top_classes(read, glimpses_per_label=2) == [3, 0, 6, 1, 5, 2]
    assert len(set(class_colors())) == len(class_colors()) == 8
    many = np.eye(11)[:10]
    assert top_classes(many, glimpses_per_label=1) == list(range(8))


def test_lines_are_at_their_probabilities() -> None:
    drawn = painted(plot_probabilities(TWO, ("a", "b"), (240, 280)))
    at = columns(drawn[:206, 48:255], TEXT)
    assert at[:, 0].min() == pytest.approx(12, abs=4)  # 1.0 at the top
    lowest = at[at[:, 0].argmax()]
    assert lowest[0] == pytest.approx(12 + 0.9 * 194, abs=4)  # 0.1 in the middle
    assert lowest[1] == pytest.approx(at[:, 1].mean(), abs=30)


def test_labels_do_not_overlap() -> None:
    names = ("one", "two", "three", "four", "five")
    drawn = painted(plot_probabilities(np.full((2, 5), 0.2), names, (240, 280)))
    written = (drawn[:, 245:] != BACKGROUND).any((1, 2)).astype(int)
    assert (np.diff(written) == 1).sum() == 5  # lines of text with background between them


@pytest.mark.parametrize("count", [1, 2, 9, 50])
@pytest.mark.parametrize("classes", [2, 7])
def test_plots_of_any_number_of_glimpses_and_classes(count: int, classes: int) -> None:
    shares = np.full((count, classes), 1 / classes)
    names = tuple("incomprehensibilities" + str(item) for item in range(classes))
    drawn = painted(plot_probabilities(shares, names, (240, 284)))
    assert drawn.shape == (240, 284, 3)
    assert (drawn[:, -2:] == BACKGROUND).all()


def test_each_class_needs_a_name() -> None:
    with pytest.raises(ValueError, match="each of 2 classes needs a name, got 3"):
        painted(plot_probabilities(TWO, ("a", "b", "c"), (240, 280)))


def test_golden_image_of_lines(golden: Callable[[str, np.ndarray], None]) -> None:
    # the middle of a plot: letters differ between releases of the library that draws them
    five = np.array([[0.1, 0.5, 0.2, 0.1, 0.1], [0.3, 0.3, 0.2, 0.1, 0.1], [0.8, 0, 0.1, 0, 0.1]])
    drawn = painted(plot_probabilities(five, tuple("abcde"), (140, 150)))
    golden("probability_lines", drawn[8:104, 50:130])
