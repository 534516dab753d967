"""Samples put together: longest caption first, and nobody's image lost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from visattn.data.captions.batch import CaptionSample, caption_batch
from visattn.data.captions.vocabulary import Vocabulary
from visattn.data.phrases.phrases import Phrase
from visattn.models.captioner import END, PAD, START

VOCABULARY = Vocabulary.of(["a b c d e"])
CAPTIONS = st.lists(st.sampled_from("abcde"), max_size=7).map(" ".join)


def sample(number: int, *captions: str) -> CaptionSample:
    image = torch.full((3, 2, 5), number, dtype=torch.uint8)
    return CaptionSample(str(number), image, captions)


@given(told=st.lists(st.lists(CAPTIONS, min_size=1, max_size=5), min_size=1, max_size=7))
def test_every_caption_keeps_its_image(told: list[list[str]]) -> None:
    samples = [sample(number, *captions) for number, captions in enumerate(told)]
    batch = caption_batch(samples, VOCABULARY)
    assert batch.samples == tuple(samples)
    assert batch.images is not None
    assert batch.images[:, 0, 0, 0].tolist() == list(range(len(told)))
    assert (batch.lengths.diff() <= 0).all()
    assert int(batch.lengths[0]) + 1 == batch.captions.shape[1]
    read = []
    for row, length, owner in zip(
        batch.captions.tolist(), batch.lengths.tolist(), batch.owners.tolist(), strict=True
    ):
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
    moved = [part for part in batch if isinstance(part, torch.Tensor)]
    assert len(moved) == 4
    assert {part.device.type for part in moved} == {"meta"}
    assert batch.samples[0].id == "0"


def test_a_image_of_which_nothing_is_said_is_refused() -> None:
    with pytest.raises(ValueError, match=r"these have none: \['1'\]"):
        caption_batch([sample(0, "a"), sample(1)], VOCABULARY)


def test_features_take_the_place_of_images() -> None:
    grids = (torch.rand(7, 3, 5), torch.rand(11, 2, 2))
    kept = [CaptionSample(str(n), None, ("a",), grids=grids) for n in range(3)]
    batch = caption_batch(kept, VOCABULARY).to("meta")
    assert batch.images is None
    assert [tuple(grid.shape) for grid in batch.grids] == [(3, 7, 3, 5), (3, 11, 2, 2)]
    assert {grid.device.type for grid in batch.grids} == {"meta"}


def test_a_long_caption_loses_its_end() -> None:
    batch = caption_batch([sample(0, "a b c d"), sample(1, "a")], VOCABULARY, max_words=3)
    assert batch.lengths.tolist() == [3, 2]
    assert END not in batch.captions[0]
    assert batch.captions[1].tolist()[:3] == [START, VOCABULARY.encode("a")[1], END]


def test_each_caption_finds_its_phrases() -> None:
    first, second = (Phrase(0, 1, ((0.0, 0.0, 1.0, 1.0),), (), text) for text in ("a", "b"))
    told = sample(0, "a", "b c d")._replace(phrases=((first,), (second,)))
    batch = caption_batch([told, sample(1, "a b")], VOCABULARY)
    assert batch.phrases() == [(second,), (), (first,)]
