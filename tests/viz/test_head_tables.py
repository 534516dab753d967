"""Tables of heads: cells in their place, heads that a layer lacks, errors."""

import numpy as np
import pytest

from visattn.viz.text_attention import head_tables


def bright(figure: np.ndarray) -> tuple[float, float]:
    (y, x) = np.nonzero((figure.astype(int).sum(-1) > 640) & (figure[..., 2] < 205))
    return float(y.mean()), float(x.mean())


def test_the_greatest_value_stands_at_its_layer_and_head() -> None:
    places = {}
    for layer, head in ((0, 0), (2, 0), (0, 4), (2, 4)):
        values = np.zeros((3, 5))
        values[layer, head] = 1.0
        figure = np.asarray(head_tables({"share": values}, []).paint())
        places[layer, head] = bright(figure[: figure.shape[0] - 95])  # above the scale
    assert places[2, 0][0] > places[0, 0][0] + 30
    assert places[2, 0][1] == pytest.approx(places[0, 0][1], abs=1)
    assert places[0, 4][1] - places[0, 0][1] == pytest.approx(4 * 34, abs=1)
    assert places[2, 4] == pytest.approx((places[2, 0][0], places[0, 4][1]), abs=1)


def test_deep_models_and_missing_heads_fit() -> None:
    values = np.random.default_rng(0).random((47, 31))
    values[5, 7:] = np.nan
    tables: dict[str, np.ndarray] = dict.fromkeys(["share", "entropy", "spread"], values)
    ranking = [["layer", "head", "options"], ["5", "3", "--layers 5 --heads 3"]]
    for width in (560, 1200):
        figure = np.asarray(head_tables(tables, ranking, title="a cat", width=width).paint())
        assert figure.shape[1] == width
    uniform = np.asarray(head_tables({"share": np.full((2, 3), 0.5)}, []).paint())
    assert uniform.dtype == np.uint8


def test_errors() -> None:
    with pytest.raises(ValueError, match="values of one shape"):
        head_tables({"a": np.zeros((2, 3)), "b": np.zeros((3, 2))}, [])
    with pytest.raises(ValueError, match="values of one shape"):
        head_tables({}, [])
