"""Pairs of neighbors stay together, and every sample comes once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from visattn.data.captions.batch import CaptionSample, caption_batch
from visattn.data.captions.vocabulary import Vocabulary
from visattn.data.loading.samplers import PairsOnce


@given(count=st.integers(1, 97), world=st.integers(1, 7))
def test_every_sample_comes_once_and_with_its_partner(count: int, world: int) -> None:
    if (count + 1) // 2 < world:
        with pytest.raises(ValueError, match=f"each of {world} processes needs a pair"):
            PairsOnce(count, rank=0, world=world)
        return
    parts = [list(PairsOnce(count, rank=rank, world=world)) for rank in range(world)]
    assert sorted(number for part in parts for number in part) == list(range(count))
    for rank, part in enumerate(parts):
        assert len(part) == len(PairsOnce(count, rank=rank, world=world))
        for place, number in enumerate(part):
            assert number % 2 == place % 2
            if place % 2:
                assert part[place - 1] == number - 1


def test_a_batch_swaps_each_image_with_its_partner() -> None:
    blank = [torch.full((3, 1, 1), n, dtype=torch.uint8) for n in range(5)]
    samples = [CaptionSample(str(n), blank[n], ("red",)) for n in range(5)]
    batch = caption_batch(samples, Vocabulary.of(["red"]))
    swapped = batch.swapped()
    assert batch.paired == 4
    assert swapped.images is not None
    assert swapped.images[:, 0, 0, 0].tolist() == [1, 0, 3, 2, 4]
    assert swapped.samples == batch.samples
