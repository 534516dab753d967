"""Captions as data frames: a row per word, and a row per distinct word of many captions."""

import pytest
import torch

from visattn.geometry.affine import Geometry
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption, word_table

pytest.importorskip("pandas")


def caption(image: str, *words: str) -> Caption:
    """Return a caption whose word n has its peak in cell n of 2 x 3 cells of 10 pixels."""
    values = torch.eye(6)[: len(words)].view(-1, 2, 3)
    maps = AttentionMap(values, "words", "words", Geometry.identity((20, 30)), labels=words)
    shares = tuple(0.1 * (number + 1) for number in range(len(words)))
    return Caption(words, tuple(-float(number) for number in range(len(words))), shares, maps, -1.0,
                   finished=True, image=image)  # fmt: skip


def test_a_row_per_word() -> None:
    table = caption("a.jpg", "The", "red", "dog,", "sits").to_pandas()
    assert table.columns.tolist() == ["photo", "word", "log_prob", "on_photo", "x", "y"]
    assert table["x"].tolist() == [5.0, 15.0, 25.0, 5.0]
    assert table["y"].tolist() == [5.0, 5.0, 5.0, 15.0]
    assert table.iloc[2].tolist()[:4] == ["a.jpg", "dog,", -2.0, pytest.approx(0.3)]
    assert len(caption("b.jpg").to_pandas()) == 0


def test_a_row_per_distinct_word_of_many_captions() -> None:
    table = word_table([caption("a.jpg", "A", "dog,"), caption("b.jpg", "Dog")])
    assert table.index.tolist() == ["dog", "a"]
    assert table["count"].tolist() == [2, 1]
    assert table["log_prob"].tolist() == [-0.5, 0.0]
    assert table["on_photo"].tolist() == pytest.approx([0.15, 0.1])
