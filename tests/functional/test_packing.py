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


def test_a_packing_is_returned_as_it_is() -> None:
    packing = pack_words(torch.tensor([3, 1]))
    assert pack_words(packing) is packing
    assert packing.image_indices.tolist() == packing.rows.tolist()


def test_unsorted_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="decreasing order"):
        pack_words(torch.tensor([1, 3]))
