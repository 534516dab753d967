"""Fallback for unreadable training images: reproducible replacements, and their record."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import DataLoader, Dataset

from visattn.data.loading.loader import ReadFallback
from visattn.images.reader import ImageError


def reader(bad: set[int]) -> Callable[[int], int]:
    def load(number: int) -> int:
        if number in bad:
            raise ImageError(f"{number}.jpg: truncated")
        return number

    return load


@given(count=st.integers(2, 40), seed=st.integers(0, 99), data=st.data())
def test_replacements_are_readable_and_reproducible(
    count: int, seed: int, data: st.DataObject
) -> None:
    numbers = st.integers(0, count - 1)
    bad = data.draw(st.sets(numbers, max_size=count // 2))
    indices = data.draw(st.lists(numbers, min_size=1))
    first, again = ReadFallback(count, seed=seed), ReadFallback(count, seed=seed)
    loaded = [first.read(number, reader(bad)) for number in indices]
    for number, other in zip(indices, loaded, strict=True):
        assert other not in bad
        assert (other == number) == (number not in bad)
    # independent of the order and of earlier reads
    assert [again.read(number, reader(bad)) for number in indices[::-1]] == loaded[::-1]
    assert set(first.unreadable) >= bad & set(indices)
    assert set(first.unreadable) <= bad


def test_replacements_differ() -> None:
    fallback = ReadFallback(1009)
    chosen = [next(fallback.candidates(number)) for number in range(500)]
    assert len(set(chosen)) > 350
    assert ReadFallback(1009, seed=1).read(3, reader({3})) != fallback.read(3, reader({3}))


def test_no_readable_replacement_is_an_error() -> None:
    with pytest.raises(ImageError, match=r"2\.jpg: truncated; none of the 6 images"):
        ReadFallback(7).read(2, reader(set(range(7))))
    with pytest.raises(ImageError, match=r"0\.jpg: truncated; none of the 0 images"):
        ReadFallback(1).read(0, reader({0}))


def test_other_errors_are_not_hidden() -> None:
    def load(number: int) -> int:
        raise OSError(28, "No space left on device")

    fallback = ReadFallback(7)
    with pytest.raises(OSError, match="No space left"):
        fallback.read(2, load)
    assert fallback.unreadable == []


class Numbers(Dataset[int]):
    def __init__(self, fallback: ReadFallback) -> None:
        self.fallback = fallback

    def __len__(self) -> int:
        return self.fallback.num_samples

    def __getitem__(self, number: int) -> int:
        return self.fallback.read(number, reader({1, 5, 12}))


def test_workers_share_the_record(tmp_path: Path) -> None:
    alone, together = ReadFallback(13), ReadFallback(13)
    here = [int(number) for number in DataLoader(Numbers(alone), batch_size=None)]
    there = torch.cat(list(DataLoader(Numbers(together), batch_size=2, num_workers=2))).tolist()
    assert here == there
    assert alone.unreadable == together.unreadable == [1, 5, 12]
