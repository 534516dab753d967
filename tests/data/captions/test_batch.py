"""Collated caption batches: sorted by length, aligned with their images."""

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.data.captions.batch import CaptionSample, Vocabulary, collate_captions
from visattn.results.captions import Phrase
from visattn.results.kinds import END, PAD, START

VOCABULARY = Vocabulary.from_captions(["a b c d e"])
CAPTIONS = st.lists(st.sampled_from("abcde"), max_size=7).map(" ".join)


def sample(number: int, *captions: str) -> CaptionSample:
    image = torch.full((3, 2, 5), number, dtype=torch.uint8)
    return CaptionSample(str(number), image, captions)


@given(content=st.lists(st.lists(CAPTIONS, min_size=1, max_size=5), min_size=1, max_size=7))
def test_every_caption_keeps_its_image_index(content: list[list[str]]) -> None:
    samples = [sample(number, *captions) for number, captions in enumerate(content)]
    batch = collate_captions(samples, VOCABULARY)
    assert batch.samples == tuple(each._replace(image=None) for each in samples)  # not sent twice
    assert batch.images is not None
    assert batch.images[:, 0, 0, 0].tolist() == list(range(len(content)))
    assert (batch.lengths.diff() <= 0).all()
    assert int(batch.lengths[0]) + 1 == batch.captions.shape[1]
    read = []
    for row, length, owner in zip(
        batch.captions.tolist(), batch.lengths.tolist(), batch.image_indices.tolist(), strict=True
    ):
        assert row[0] == START
        assert row[length] == END
        assert set(row[length + 1 :]) <= {PAD}
        read.append((owner, VOCABULARY.decode(row)))
    assert sorted(read) == sorted(
        (owner, caption) for owner, captions in enumerate(content) for caption in captions
    )


def test_captions_of_equal_length_keep_their_order() -> None:
    batch = collate_captions([sample(0, "a", "b"), sample(1, "c"), sample(2, "d e")], VOCABULARY)
    assert batch.image_indices.tolist() == [2, 0, 0, 1]


def test_batch_moves_to_a_device_completely() -> None:
    batch = collate_captions([sample(0, "a")], VOCABULARY).to("meta")
    moved = [part for part in batch if isinstance(part, torch.Tensor)]
    assert len(moved) == 4
    assert {part.device.type for part in moved} == {"meta"}
    assert batch.samples[0].id == "0"


def test_image_without_captions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"these have none: \['1'\]"):
        collate_captions([sample(0, "a"), sample(1)], VOCABULARY)


def test_cached_features_replace_images() -> None:
    grids = (torch.rand(7, 3, 5), torch.rand(11, 2, 2))
    kept = [CaptionSample(str(n), None, ("a",), grids=grids) for n in range(3)]
    batch = collate_captions(kept, VOCABULARY).to("meta")
    assert batch.images is None
    assert [tuple(grid.shape) for grid in batch.grids] == [(3, 7, 3, 5), (3, 11, 2, 2)]
    assert {grid.device.type for grid in batch.grids} == {"meta"}


def test_long_captions_are_truncated() -> None:
    batch = collate_captions([sample(0, "a b c d"), sample(1, "a")], VOCABULARY, max_words=3)
    assert batch.lengths.tolist() == [3, 2]
    assert END not in batch.captions[0]
    assert batch.captions[1].tolist()[:3] == [START, VOCABULARY.encode("a")[1], END]


def test_phrases_follow_their_captions() -> None:
    first, second = (Phrase(0, 1, ((0.0, 0.0, 1.0, 1.0),), (), text) for text in ("a", "b"))
    content = sample(0, "a", "b c d")._replace(phrases=((first,), (second,)))
    batch = collate_captions([content, sample(1, "a b")], VOCABULARY)
    assert batch.phrases() == [(second,), (), (first,)]


def test_swap_images_swaps_each_image_with_its_partner() -> None:
    blank = [torch.full((3, 1, 1), n, dtype=torch.uint8) for n in range(5)]
    samples = [CaptionSample(str(n), blank[n], ("red",)) for n in range(5)]
    batch = collate_captions(samples, Vocabulary.from_captions(["red"]))
    swapped = batch.swap_images()
    assert batch.num_paired == 4
    assert swapped.images is not None
    assert swapped.images[:, 0, 0, 0].tolist() == [1, 0, 3, 2, 4]
    assert swapped.samples == batch.samples
