"""Samples put together: longest caption first, and nobody's picture lost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from visattn.data.batches import CaptionSample, caption_batch
from visattn.data.vocabularies import Vocabulary
from visattn.models.captioners import END, PAD, START

VOCABULARY = Vocabulary.of(["a b c d e"])
CAPTIONS = st.lists(st.sampled_from("abcde"), max_size=7).map(" ".join)


def sample(number: int, *captions: str) -> CaptionSample:
    picture = torch.full((3, 2, 5), number, dtype=torch.uint8)
    return CaptionSample(str(number), picture, captions)


@given(told=st.lists(st.lists(CAPTIONS, min_size=1, max_size=5), min_size=1, max_size=7))
def test_every_caption_keeps_its_picture(told: list[list[str]]) -> None:
    samples = [sample(number, *captions) for number, captions in enumerate(told)]
    batch = caption_batch(samples, VOCABULARY)
    assert batch.samples == tuple(samples)
    assert batch.pictures[:, 0, 0, 0].tolist() == list(range(len(told)))
    assert (batch.lengths.diff() <= 0).all()
    assert int(batch.lengths[0]) + 1 == batch.captions.shape[1]
    read = []
    for row, length, owner in zip(*(part.tolist() for part in batch[2:]), strict=True):
        assert row[0] == START
        assert row[length] == END
        assert set(row[length + 1 :]) <= {PAD}
        read.append((owner, VOCABULARY.decode(row)))
    assert sorted(read) == sorted(
        (owner, caption) for owner, captions in enumerate(told) for caption in captions
    )


def test_captions_of_one_length_keep_their_order() -> None:
    batch = caption_batch([sample(0, "a", "b"), sample(1, "c"), sample(2, "d e")], VOCABULARY)
    assert batch.owners.tolist() == [2, 0, 0, 1]


def test_a_batch_moves_as_a_whole() -> None:
    batch = caption_batch([sample(0, "a")], VOCABULARY).to("meta")
    assert {part.device.type for part in batch[1:]} == {"meta"}
    assert batch.samples[0].id == "0"


def test_a_picture_of_which_nothing_is_said_is_refused() -> None:
    with pytest.raises(ValueError, match=r"these have none: \['1'\]"):
        caption_batch([sample(0, "a"), sample(1)], VOCABULARY)
