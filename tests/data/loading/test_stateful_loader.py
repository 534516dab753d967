"""Loaders that are taken up again: the same batches, from any place, with any number of workers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visattn.data.loading.samplers import EpochIndexSampler, LengthBucketBatchSampler
from visattn.data.loading.stateful_loader import StatefulDataLoader


class Read(list[int]):
    """Samples that note what was asked of them."""

    asked: list[int]

    def __getitem__(self, number: Any) -> Any:
        self.asked.append(number)
        return number


def loader(
    batch: int = 3, *, count: int = 31, workers: int = 0, rank: int = 0, numbered: bool = True
) -> StatefulDataLoader:
    samples = Read(range(count))
    samples.asked = []
    order = LengthBucketBatchSampler(
        count, lambda index: index % 5, batch=batch, pool=2, seed=7, rank=rank, world=2
    )
    known = EpochIndexSampler(order) if numbered else order
    return StatefulDataLoader(samples, known, collate=list, workers=workers)


def epochs(made: StatefulDataLoader, numbers: range) -> list[list[list[int]]]:
    read = []
    for number in numbers:
        made.order.set_epoch(number)
        read.append(list(made))
    return read


@given(batch=st.integers(1, 7), rank=st.integers(0, 1), data=st.data())
def test_the_rest_of_an_epoch_and_the_later_ones_are_those_without_a_break(
    batch: int, rank: int, data: st.DataObject
) -> None:
    whole = epochs(loader(batch, rank=rank), range(4))
    epoch = data.draw(st.integers(0, 2))
    done = data.draw(st.integers(0, len(whole[0])))
    broken = loader(batch, rank=rank)
    broken.order.set_epoch(epoch)
    batches = iter(broken)
    first = [next(batches) for _ in range(done)]
    state = broken.state_dict()
    again = loader(batch, rank=rank)
    again.load_state_dict(state)
    assert again.state_dict() == state
    rest, *later = epochs(again, range(epoch, 4))
    assert [*first, *rest] == whole[epoch]
    assert later == whole[epoch + 1 :]


def test_a_state_is_known_before_and_after_it_is_gone_on_from() -> None:
    made = loader()
    assert made.state_dict() == {"epoch": 0, "done": 0, "together": 6}
    made.load_state_dict({"epoch": 3, "done": 2, "together": 6})
    assert made.state_dict() == {"epoch": 3, "done": 2, "together": 6}
    batches = iter(made)
    assert made.state_dict()["done"] == 2
    next(batches)
    assert made.state_dict() == {"epoch": 3, "done": 3, "together": 6}
    made.order.set_epoch(3)  # which is told again
    assert made.state_dict()["done"] == 3
    made.order.set_epoch(4)
    assert made.state_dict() == {"epoch": 4, "done": 0, "together": 6}
    assert len(list(made)) == len(made) == 5
    assert made.state_dict() == {"epoch": 4, "done": 5, "together": 6}


def test_nothing_is_read_before_it_is_asked_for() -> None:
    made = loader()
    batches = iter(made)
    assert made.dataset.asked == []  # type: ignore[attr-defined]
    made.order.set_epoch(1)
    assert next(batches)[0] >= 31


@pytest.mark.parametrize("numbered", [True, False])
def test_workers_make_no_difference(*, numbered: bool) -> None:
    plain, ahead = loader(numbered=numbered), loader(workers=2, numbered=numbered)
    for made in (plain, ahead):
        made.load_state_dict({"epoch": 1, "done": 2, "together": 6})
    assert epochs(ahead, range(1, 4)) == epochs(plain, range(1, 4))


def test_other_batches_are_told() -> None:
    with pytest.warns(UserWarning, match="batches held 4 samples of all processes and now hold 6"):
        loader().load_state_dict({"epoch": 0, "done": 1, "together": 4})
