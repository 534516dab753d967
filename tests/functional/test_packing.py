"""Packed order of the words of captions: laws, images with several captions, no further work."""

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.functional.captions import pack_words

captions = st.lists(st.tuples(st.integers(1, 7), st.integers(0, 4)), min_size=1, max_size=11)


@given(captions)
def test_words_are_in_order_of_steps_and_count_up_within_captions_and_images(
    rows: list[tuple[int, int]],
) -> None:
    rows.sort(key=lambda row: -row[0])
    lengths, images = (torch.tensor(part) for part in zip(*rows, strict=True))
    packing = pack_words(lengths, images)
    words = list(zip(packing.steps.tolist(), packing.rows.tolist(), strict=True))
    assert words == sorted(
        (step, row) for row, (length, _) in enumerate(rows) for step in range(length)
    )
    assert list(packing.counts) == packing.steps.bincount().tolist()
    assert packing.image_indices.tolist() == images[packing.rows].tolist()
    words_of_image: dict[int, int] = {}
    for image, rank in zip(packing.image_indices.tolist(), packing.ranks.tolist(), strict=True):
        assert rank == words_of_image.get(image, 0)
        words_of_image[image] = rank + 1
    assert packing.words_per_image == max(words_of_image.values())
    values = torch.arange(len(packing.rows))
    table = packing.by_image(values, 5, fill=-1)
    for image, row in enumerate(table):
        assert row[row >= 0].tolist() == values[packing.image_indices == image].tolist()
    assert torch.equal(packing.from_images(table), values)


def test_a_packing_is_returned_as_it_is() -> None:
    packing = pack_words(torch.tensor([3, 1]))
    assert pack_words(packing) is packing
    assert packing.image_indices.tolist() == packing.rows.tolist()


@pytest.mark.parametrize("lengths", [[1, 3], [3, 0], [2, 3, 3]])
def test_unsorted_lengths_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="must be in decreasing order and at least 1"):
        pack_words(torch.tensor(lengths))
