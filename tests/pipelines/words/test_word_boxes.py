"""Boxes of words: of captioners and text recognizers of transformers, on the photo."""

from dataclasses import replace

import pytest
import torch
from vlm_runs import greedy, photo

from visattn.geometry.affine import Geometry


@pytest.mark.parametrize("family", ["llava_next", "trocr", "donut", "got_ocr2", "deepseek_vl"])
def test_each_word_has_boxes_that_hold_its_peak(family: str) -> None:
    """Grids with tiles, whole pages, and padding: boxes lie on the photo, around the peak."""
    caption = greedy(family).caption()
    maps, size = caption.maps, photo().size
    result = maps.boxes(smooth=False)
    assert result.image_size == size
    assert {each.label for each in result} == set(caption.words)
    placed = maps.resize_to_image(smooth=False).nan_to_num(0.0)
    for index, boxes in enumerate(result.per_map()):
        row, column = divmod(int(placed[index].argmax()), size[1])
        assert any(b[0] <= column < b[2] and b[1] <= row < b[3] for b in boxes)
        assert all(0 <= b[0] < b[2] <= size[1] and 0 <= b[1] < b[3] <= size[0] for b in boxes)


def test_the_box_of_a_token_is_its_own() -> None:
    """All weight on one token of the tiles of LLaVA-NeXT, drawn as its cells."""
    replay = greedy("llava_next")
    placement = replay.placement
    token = len(placement.columns) - 1
    row = torch.zeros(len(replay.words), len(placement.columns))
    row[:, token] = 1.0
    maps = replace(replay.caption().maps, values=placement.rasterize(row))
    [result] = maps[0].boxes(smooth=False)
    left, top, right, bottom = placement.boxes[token].tolist()
    assert result.box == pytest.approx((left, top, right, bottom), abs=1.0)  # whole pixels
    assert result.score == pytest.approx(1.0)
    assert placement.geometry.image_size == Geometry.identity(photo().size).image_size
