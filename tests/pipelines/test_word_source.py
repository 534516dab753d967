"""Methods for words need nothing of a model but what `WordSource` says: a model by hand."""

from collections.abc import Sequence
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

    def __init__(self, attention: Tensor | None = None) -> None:
        self.model, self.attention, self.runs = nn.Linear(1, 1), attention, 0

    def check(self, method: str) -> None:
        if method == "tam":
            raise ValueError("tam does not fit")

    def run(self) -> WordRun:
        self.runs += 1
        cells = torch.tensor([[1.0], [2.0]], requires_grad=True)
        weights = torch.tensor([[[0.25, 0.75], [1.0, 0.0]]], requires_grad=True)
        layer = WordLayer("look", (weights,), torch.tensor([0, 1]))
        log_probs = -(((weights[0] @ cells)[:, 0] - 3) ** 2)
        return WordRun(log_probs, (layer,), TokenVectors(cells, Tensor.detach))

    def place(self, rows: Tensor) -> tuple[WordGrids, ...]:
        return (WordGrids(rows[:, None], PLACE),)

    def occlude(self, window_cells: int | None) -> tuple[WordGrids, ...]:
        return (WordGrids(torch.full((2, 1, 2), float(window_cells or 7)), PLACE),)

    def further(self, methods: Sequence[str]) -> dict[str, tuple[WordGrids, ...]]:
        return {name: (WordGrids(torch.zeros(2, 1, 2), PLACE),) for name in methods}

    def described(self, caption: Caption, selected: dict[str, list[int]]) -> Caption:
        return replace(caption, notes=f"{caption.maps.info.method} {selected}")


def test_methods_share_one_run() -> None:
    source = TwoCells()
    grids = word_grids(source, ["occlusion", "gradient_attention", "attention", "own"])
    assert [*grids] == ["occlusion", "gradient_attention", "attention", "own"]
    assert source.runs == 1
    # the gradient for a weight is 2 (3 - mean) times its cell: 2.5 and 4 times 1 and 2
    [(values, place)] = grids["gradient_attention"]
    assert values[:, 0].tolist() == [[0.625, 3.75], [4.0, 0.0]]
    assert place is PLACE
    [(values, _)] = grids["attention"]
    assert values[:, 0].tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert grids["occlusion"][0].values.unique().tolist() == [7.0]


def test_known_attention_needs_no_run() -> None:
    source = TwoCells(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    [[(values, _)]] = word_grids(source, ["attention"]).values()
    assert (values.unique().tolist(), source.runs) == ([0.5], 0)
    [[(values, _)]] = word_grids(source, ["attention"], layers=[0]).values()  # which it says not of
    assert (values[:, 0].tolist(), source.runs) == ([[0.25, 0.75], [1.0, 0.0]], 1)


def test_captions_get_the_maps_of_a_method() -> None:
    source = TwoCells()
    maps = AttentionMap(torch.ones(2, 1, 2), "look", "words", labels=source.words)
    said = Caption(source.words, (-0.1, -0.2), (1.0, 1.0), maps, -0.3, finished=True)
    assert with_word_maps(said, source, "attention") is said
    drawn = with_word_maps(said, source, "gradient_attention", layers=[0])
    assert (drawn.maps.kind, drawn.maps.geometry) == ("gradient", PLACE)
    assert drawn.quantity == "attention \N{MULTIPLICATION SIGN} gradient"
    assert drawn.notes == "gradient_attention {'layers': [0]}"
    for method, message in (("tam", "tam does not fit"), ("gradcam", "select attention weights")):
        with pytest.raises(ValueError, match=message):
            with_word_maps(said, source, method, heads=[0])
