"""Samples that come one after the other out of tars at an address: for training alone.

The library that reads them runs code that tars hold, or that stands in an address, unless it is
told not to before it is imported; it is told here, and what it reads is decoded by us.
"""

import importlib
import json
import os
import random
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from visattn.data.loading.sample_seed import mixed
from visattn.data.shards.sources import ENDINGS

SCHEMES = ("https", "http", "hf", "gs", "ais", "sftp", "ftps", "scp")


class StreamedSample(NamedTuple):
    """A sample out of a tar.

    Args:
        place: The tar's address and the key.
        image: The bytes of an image's file.
        record: What is told of it.
        label: The number of its class; -1 where there are none.
    """

    place: str
    image: bytes
    record: Mapping[str, Any]
    label: int


class SampleStream:
    """Training samples of one process in one epoch, in a mixed order that is only nearly random.

    The tars are dealt out anew in each epoch, to the processes and to those that read ahead for
    them; samples are mixed in a buffer. So that all processes take as many steps, each takes its
    share of the samples' number: where its tars hold fewer it reads some twice, and where they
    hold more it leaves some out.

    Args:
        tars: Their addresses.
        samples: In all of them.
        made: Makes of a sample, and a number that no other has, what training is to get.
        batch: Samples per batch and process.
        buffer: Samples among which the next is drawn.
        seed: Another seed, another order.
        rank: Which process this is.
        world: How many there are.
        workers: Processes that read ahead, for each of them.

    Raises:
        ImportError: If webdataset is not installed.
        ValueError: If an address is none that may be read, or there are too few tars or samples.
        OSError: While samples come, if an address gives no tar, or not all of it.
    """

    def __init__(
        self,
        tars: Sequence[str],
        samples: int,
        made: Callable[[StreamedSample, int], Any],
        *,
        batch: int,
        buffer: int = 1000,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
    ) -> None:
        for tar in tars:
            check_address(tar)
        readers = world * max(1, workers)
        if len(tars) < readers or samples < batch * world or min(batch, buffer) < 1:
            raise ValueError(
                f"{world} processes with {workers} workers and batches of {batch} need {readers} "
                f"tars and {batch * world} samples, got {len(tars)} and {samples:,}; lower the "
                "workers or the batch, or write more samples in smaller tars (--per-shard)"
            )
        self.tars, self.made, self.batch, self.buffer = tuple(tars), made, batch, buffer
        self.seed, self.rank, self.world = seed, rank, world
        self.batches = samples // (batch * world)
        self.epoch = 0
        secure_webdataset()  # or say at once that it is not there

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, readers = (worker.id, worker.num_workers) if worker else (0, 1)
        library = secure_webdataset()
        draws = torch.Generator().manual_seed(mixed(self.seed, self.epoch))
        order = torch.randperm(len(self.tars), generator=draws).tolist()
        own = [self.tars[one] for one in order[self.rank :: self.world][number::readers]]
        start = (self.seed, self.epoch, self.rank, number)
        pipeline = library.DataPipeline(
            library.SimpleShardList(own),
            library.tarfile_to_samples(),
            library.shuffle(self.buffer, initial=self.buffer, rng=random.Random(mixed(*start))),
        )
        due = self.batches // readers + (number < self.batches % readers)
        if not due:  # to the library, 0 samples are all there are
            return
        try:
            for count, found in enumerate(pipeline.with_epoch(due * self.batch)):
                yield self.made(streamed_sample(found), mixed(*start, count))
        except tarfile.TarError as error:  # its last word is the address
            raise OSError(
                f"{error.args[-1]} does not give a whole tar ({error.args[0]}); look at the "
                "address, and at the connection to it"
            ) from error


class StreamLoader:
    """Batches of a stream; every epoch begins it anew, in the order of that epoch.

    A run that is taken up in the middle of an epoch sees that epoch's first samples again.

    Args:
        stream: The samples.
        collate: What makes a batch of samples.
        epoch: Says which epoch it is.
        workers: Processes that read ahead; 0 reads in between.
    """

    def __init__(
        self,
        stream: SampleStream,
        collate: Callable[[list[Any]], Any],
        *,
        epoch: Callable[[], int] = lambda: 0,
        workers: int = 0,
    ) -> None:
        self.stream, self.collate, self.epoch, self.workers = stream, collate, epoch, workers

    def __len__(self) -> int:
        return self.stream.batches

    def __iter__(self) -> Iterator[Any]:
        self.stream.epoch = self.epoch()
        return iter(
            DataLoader(
                _Reader(self.stream),
                batch_size=self.stream.batch,
                drop_last=True,
                collate_fn=self.collate,
                num_workers=self.workers,
                generator=torch.Generator(),  # else each epoch would draw from everybody's
            )
        )


class _Reader(IterableDataset[Any]):
    """What a loader takes for samples that have no numbers."""

    def __init__(self, samples: SampleStream) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


def check_address(address: str) -> None:
    """Refuse what is no address of a store: above all a command, which streams could run.

    Raises:
        ValueError: If it is none.

    Example:
        >>> check_address("pipe:cat train-000000.tar")
        Traceback (most recent call last):
        ValueError: a stream must begin with https://, http://, ..., got 'pipe:cat train-000000...
    """
    scheme, mark, rest = address.partition("://")
    if not mark or not rest or scheme not in SCHEMES:
        known = ", ".join(f"{one}://" for one in SCHEMES)
        raise ValueError(
            f"a stream must begin with {known}, got {address!r}; shards on a disk are read by "
            "ShardCaptionDataModule and ShardClassificationDataModule, exactly and without another "
            "library"
        )


def secure_webdataset() -> Any:
    """Return the library webdataset, which runs no command and unpickles nothing.

    Raises:
        ImportError: If it is not installed.
        ValueError: If it was imported before without its secure mode.
    """
    os.environ["WDS_SECURE"] = "1"  # it looks when it is imported
    try:
        library: Any = importlib.import_module("webdataset")
    except ImportError as error:
        raise ImportError("streams need webdataset: pip install 'visattn[webdataset]'") from error
    if not importlib.import_module("webdataset.utils").enforce_security:
        raise ValueError(
            "webdataset was imported without its secure mode, in which it runs no command and "
            "unpickles nothing; set WDS_SECURE=1 before it is imported"
        )
    return library


def streamed_sample(found: Mapping[str, Any]) -> StreamedSample:
    """Return a sample of what the members of a tar hold.

    Raises:
        ValueError: If it holds no image with what is told of it; the message names tar and key.

    Example:
        >>> members = {"jpg": b"...", "json": b"{}", "__url__": "https://a/b.tar", "__key__": "7"}
        >>> streamed_sample(members).place
        'https://a/b.tar, key 7'
    """
    place = f"{found.get('__url__')}, key {found.get('__key__')}"
    image = next((found[one] for one in ENDINGS.values() if one in found), None)
    try:
        record, label = json.loads(found["json"]), int(found.get("cls", -1))
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"{place}: no JSON of what is told, or no class: {error!r}") from error
    if image is None or not isinstance(record, dict):
        raise ValueError(
            f"{place}: expected an image and a JSON object, got "
            f"{', '.join(name for name in found if not name.startswith('__'))}"
        )
    return StreamedSample(place, image, record, label)
