"""Methods for words need nothing of a model but what `WordSource` says: a model by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from visattn.attribution.words import TokenVectors, WordLayer, WordRun
from visattn.geometry.affine import Geometry
from visattn.pipelines.word_source import WordGrids, with_word_maps, word_grids
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption

PLACE = Geometry.identity((10, 20))


class TwoCells:
    """Words whose log-probability is minus the squared distance of a mean of two cells from 3."""

    words = ("a", "dog")

    def __init__(self) -> None:
        self.model, self.runs = nn.Linear(1, 1), 0

    def run(self) -> WordRun:
        self.runs += 1
        cells = torch.tensor([[1.0], [2.0]], requires_grad=True)
        weights = torch.tensor([[[0.25, 0.75], [1.0, 0.0]]], requires_grad=True)
        layer = WordLayer("look", (weights,), torch.tensor([0, 1]))
        log_probs = -(((weights[0] @ cells)[:, 0] - 3) ** 2)
        return WordRun(log_probs, (layer,), TokenVectors(cells, Tensor.detach))

    def place(self, rows: Tensor) -> WordGrids:
        return WordGrids(rows[:, None], PLACE)

    def occlude(self, window_cells: int | None) -> WordGrids:
        return WordGrids(torch.full((2, 1, 2), float(window_cells or 7)), PLACE)

    def described(self, caption: Caption, selected: dict[str, list[int]]) -> Caption:
        return replace(caption, notes=f"{caption.maps.info.method} {selected}")


def test_a_method_takes_one_run_if_it_needs_weights() -> None:
    source = TwoCells()
    assert word_grids(source, "occlusion").values.unique().tolist() == [7.0]
    assert source.runs == 0
    # the gradient for a weight is 2 (3 - mean) times its cell: 2.5 and 4 times 1 and 2
    values, place = word_grids(source, "gradient_attention")
    assert values[:, 0].tolist() == [[0.625, 3.75], [4.0, 0.0]]
    assert place is PLACE
    assert source.runs == 1
    values, _ = word_grids(source, "attention", layers=[0])
    assert values[:, 0].tolist() == [[0.25, 0.75], [1.0, 0.0]]


def test_captions_get_the_maps_of_a_method() -> None:
    source = TwoCells()
    maps = AttentionMap(torch.ones(2, 1, 2), "look", "words", labels=source.words)
    said = Caption(source.words, (-0.1, -0.2), (1.0, 1.0), maps, -0.3, finished=True)
    assert with_word_maps(said, source, "attention") is said
    drawn = with_word_maps(said, source, "gradient_attention", layers=[0])
    assert (drawn.maps.kind, drawn.maps.geometry) == ("gradient", PLACE)
    assert drawn.quantity == "attention \N{MULTIPLICATION SIGN} gradient"
    assert drawn.notes == "gradient_attention {'layers': [0]}"
    for method, message in (("rollout", "methods for words are"), ("gradcam", "attention weights")):
        with pytest.raises(ValueError, match=message):
            with_word_maps(said, source, method, heads=[0])
