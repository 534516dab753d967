"""Matrix of words by text: columns in their place, the rest summed, errors."""

import numpy as np
import pytest

from visattn.viz.canvas import BACKGROUND
from visattn.viz.text_attention import MatrixColumn, text_matrix

WORDS = ["red", "cat"]
COLUMNS = [MatrixColumn("<s>", "prompt", special=True), MatrixColumn("what", "prompt"),
           MatrixColumn("red", "caption")]  # fmt: skip
SHARES = np.array([0.75, 0.5])


def bright(figure: np.ndarray) -> list[list[int]]:
    """Return the rows and columns of the cells that are drawn brightest."""
    (y, x) = np.nonzero((figure.astype(int).sum(-1) > 640) & (figure[..., 2] < 205))
    return [[int(y.min()), int(y.max())], [int(x.min()), int(x.max())]]


def test_strong_weights_stand_below_their_column() -> None:
    places = []
    for column in range(3):
        weights = np.full((2, 3), 0.01)
        weights[1, column] = 0.5
        columns = [each._replace(special=False) for each in COLUMNS]
        figure = np.asarray(text_matrix(WORDS, columns, weights, shares=SHARES).paint())
        legend = figure.shape[0] - 70
        places.append(bright(figure[: legend - 8]))
    rows = {tuple(each[0]) for each in places}
    assert len(rows) == 1
    lefts = [each[1][0] for each in places]
    assert lefts[0] < lefts[1] < lefts[2]
    assert lefts[2] - lefts[1] > lefts[1] - lefts[0]  # groups are apart


def test_special_tokens_do_not_darken_words() -> None:
    weights = np.array([[0.9, 0.02, 0.0], [0.9, 0.01, 0.04]])
    figure = np.asarray(text_matrix(WORDS, COLUMNS, weights, shares=SHARES).paint())
    places = bright(figure[:-78])
    assert places[1][1] - places[1][0] > 100  # from the special token to the word of 0.04


def test_later_words_stay_blank() -> None:
    weights = np.array([[0.5, 0.25, 0.0], [0.5, 0.25, 0.5]])
    figure = np.asarray(text_matrix(WORDS, COLUMNS, weights, shares=SHARES).paint())
    filled = np.asarray(text_matrix(WORDS, COLUMNS, np.full((2, 3), 0.5), shares=SHARES).paint())
    same = (figure == filled).all(-1)
    blank = (figure == np.array(BACKGROUND)).all(-1)
    assert bool((blank & ~same).any())  # the cell of the word itself


def test_what_does_not_fit_is_one_column_of_sums() -> None:
    columns = [MatrixColumn(f"w{number}", "prompt") for number in range(301)]
    weights = np.full((2, 301), 0.001)
    weights[:, 7] = 0.6
    figure = np.asarray(text_matrix(WORDS, columns, weights, shares=SHARES, width=560).paint())
    assert figure.shape[1] == 560
    [_, (left, right)] = bright(figure[:-78])
    assert right - left < 20  # the strongest alone is bright, the others are in the last one


def test_errors() -> None:
    with pytest.raises(ValueError, match="a row for each word and a value per column"):
        text_matrix(WORDS, COLUMNS, np.zeros((2, 2)), shares=SHARES)
    with pytest.raises(ValueError, match="at least 560 pixels wide"):
        text_matrix(WORDS, COLUMNS, np.zeros((2, 3)), shares=SHARES, width=300)
