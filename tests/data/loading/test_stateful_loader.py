"""Stateful data loader: resumes at any batch, with any number of workers."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from visattn.data.loading.loader import StatefulDataLoader
from visattn.data.loading.samplers import EpochIndexSampler, LengthBucketBatchSampler


class Read(list[int]):
    """Dataset that records the requested indices."""

    requested: list[int]

    def __getitem__(self, number: Any) -> Any:
        self.requested.append(number)
        return number


def loader(
    batch: int = 3, *, count: int = 31, workers: int = 0, rank: int = 0, numbered: bool = True
) -> StatefulDataLoader:
    samples = Read(range(count))
    samples.requested = []
    order = LengthBucketBatchSampler(
        count,
        lambda index: index % 5,
        batch_size=batch,
        batches_per_pool=2,
        seed=7,
        rank=rank,
        num_replicas=2,
    )
    known = EpochIndexSampler(order) if numbered else order
    return StatefulDataLoader(samples, known, collate_fn=list, num_workers=workers)


def epochs(made: StatefulDataLoader, numbers: range) -> list[list[list[int]]]:
    read = []
    for number in numbers:
        made.epoch_sampler.set_epoch(number)
        read.append(list(made))
    return read


@given(batch=st.integers(1, 7), rank=st.integers(0, 1), data=st.data())
def test_resumed_run_equals_uninterrupted_one(batch: int, rank: int, data: st.DataObject) -> None:
    whole = epochs(loader(batch, rank=rank), range(4))
    epoch = data.draw(st.integers(0, 2))
    done = data.draw(st.integers(0, len(whole[0])))
    broken = loader(batch, rank=rank)
    broken.epoch_sampler.set_epoch(epoch)
    batches = iter(broken)
    first = [next(batches) for _ in range(done)]
    state = broken.state_dict()
    again = loader(batch, rank=rank)
    again.load_state_dict(state)
    assert again.state_dict() == state
    rest, *later = epochs(again, range(epoch, 4))
    assert [*first, *rest] == whole[epoch]
    assert later == whole[epoch + 1 :]


def test_state_before_and_after_resuming() -> None:
    made = loader()
    assert made.state_dict() == {"epoch": 0, "batches_done": 0, "global_batch_size": 6}
    made.load_state_dict({"epoch": 3, "batches_done": 2, "global_batch_size": 6})
    assert made.state_dict() == {"epoch": 3, "batches_done": 2, "global_batch_size": 6}
    batches = iter(made)
    assert made.state_dict()["batches_done"] == 2
    next(batches)
    assert made.state_dict() == {"epoch": 3, "batches_done": 3, "global_batch_size": 6}
    made.epoch_sampler.set_epoch(3)  # the same epoch again
    assert made.state_dict()["batches_done"] == 3
    made.epoch_sampler.set_epoch(4)
    assert made.state_dict() == {"epoch": 4, "batches_done": 0, "global_batch_size": 6}
    assert len(list(made)) == len(made) == 5
    assert made.state_dict() == {"epoch": 4, "batches_done": 5, "global_batch_size": 6}


def test_nothing_is_read_before_the_first_batch() -> None:
    made = loader()
    batches = iter(made)
    assert made.dataset.requested == []  # type: ignore[attr-defined]
    made.epoch_sampler.set_epoch(1)
    assert next(batches)[0] >= 31


@pytest.mark.parametrize("numbered", [True, False])
def test_workers_make_no_difference(*, numbered: bool) -> None:
    plain, ahead = loader(numbered=numbered), loader(workers=2, numbered=numbered)
    for made in (plain, ahead):
        made.load_state_dict({"epoch": 1, "batches_done": 2, "global_batch_size": 6})
    assert epochs(ahead, range(1, 4)) == epochs(plain, range(1, 4))


def test_changed_batch_size_warns() -> None:
    with pytest.warns(UserWarning, match="the global batch size was 4 and is now 6"):
        loader().load_state_dict({"epoch": 0, "batches_done": 1, "global_batch_size": 4})
