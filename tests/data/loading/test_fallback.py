"""Images that cannot be read in training: others stand in, always the same, and are counted."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from visattn.data.images.reader import ImageError
from visattn.data.loading.fallback import ReadFallback


def reader(bad: set[int]) -> Callable[[int], int]:
    def reading(number: int) -> int:
        if number in bad:
            raise ImageError(f"{number}.jpg: truncated")
        return number

    return reading


@given(count=st.integers(2, 40), seed=st.integers(0, 99), data=st.data())
def test_what_stands_in_can_be_read_and_is_always_the_same(
    count: int, seed: int, data: st.DataObject
) -> None:
    numbers = st.integers(0, count - 1)
    bad = data.draw(st.sets(numbers, max_size=count // 2))
    asked = data.draw(st.lists(numbers, min_size=1))
    first, again = ReadFallback(count, seed=seed), ReadFallback(count, seed=seed)
    found = [first.read(number, reader(bad)) for number in asked]
    for number, other in zip(asked, found, strict=True):
        assert other not in bad
        assert (other == number) == (number not in bad)
    # neither the order nor what was read before has a say
    assert [again.read(number, reader(bad)) for number in asked[::-1]] == found[::-1]
    assert set(first.lost) >= bad & set(asked)
    assert set(first.lost) <= bad


def test_other_images_stand_in_for_others() -> None:
    substitutes = ReadFallback(1009)
    chosen = [next(substitutes.others(number)) for number in range(500)]
    assert len(set(chosen)) > 350
    assert ReadFallback(1009, seed=1).read(3, reader({3})) != substitutes.read(3, reader({3}))


def test_nothing_is_invented_where_nothing_can_be_read() -> None:
    with pytest.raises(ImageError, match=r"2\.jpg: truncated; nor can one of the 6 images"):
        ReadFallback(7).read(2, reader(set(range(7))))
    with pytest.raises(ImageError, match=r"0\.jpg: truncated; nor can one of the 0 images"):
        ReadFallback(1).read(0, reader({0}))


def test_other_errors_are_not_hidden() -> None:
    def reading(number: int) -> int:
        raise OSError(28, "No space left on device")

    substitutes = ReadFallback(7)
    with pytest.raises(OSError, match="No space left"):
        substitutes.read(2, reading)
    assert substitutes.lost == []


class Numbers(Dataset[int]):
    def __init__(self, substitutes: ReadFallback) -> None:
        self.substitutes = substitutes

    def __len__(self) -> int:
        return self.substitutes.count

    def __getitem__(self, number: int) -> int:
        return self.substitutes.read(number, reader({1, 5, 12}))


def test_workers_count_together_and_choose_alike(tmp_path: Path) -> None:
    alone, together = ReadFallback(13), ReadFallback(13)
    here = [int(number) for number in DataLoader(Numbers(alone), batch_size=None)]
    there = torch.cat(list(DataLoader(Numbers(together), batch_size=2, num_workers=2))).tolist()
    assert here == there
    assert alone.lost == together.lost == [1, 5, 12]
