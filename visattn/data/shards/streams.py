"""Samples of tars that arrive as a stream, with limits on what is kept in memory.

Sizes of members are what their headers say: a few kilobytes of a sparse or compressed tar may
announce gigabytes. They are compared with the limits before they are read.

The webdataset library may execute commands in URLs and unpickle members unless its secure mode is
enabled before the import; it is enabled here, and the samples are decoded by visattn.
"""

import importlib
import os
import random
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, cast

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from visattn.data.loading.samplers import mix_seed
from visattn.data.shards.format import MAX_IMAGE_BYTES, MAX_RECORD_BYTES
from visattn.data.shards.sources import EXTENSIONS
from visattn.io.archives import DECOMPRESSION_ERRORS, BoundedMember
from visattn.io.messages import format_names
from visattn.io.safe_text import decode_utf8, parse_json, printable_name

MAX_SAMPLE_BYTES = MAX_IMAGE_BYTES + MAX_RECORD_BYTES
_MAX_MEMBERS = 100  # of one sample
_KEY_AND_SUFFIX = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)


def read_tar_samples(stream: IO[bytes], url: str) -> Iterator[dict[str, Any]]:
    r"""Yield the samples of a tar, plain or compressed: neighboring files with one key.

    Yields:
        Content by suffix, with `__key__` and `__url__`.

    Raises:
        OSError: If it is not a tar, or only a part of one.
        ValueError: If a member, a sample or a header is larger than the limits, or two members have
            one name; the message names tar and key.

    Example:
        >>> import io
        >>> content, member = io.BytesIO(), tarfile.TarInfo("7.json")
        >>> member.size = 2
        >>> with tarfile.open(fileobj=content, mode="w") as tar:
        ...     tar.addfile(member, io.BytesIO(b"{}"))
        >>> list(read_tar_samples(io.BytesIO(content.getvalue()), "a.tar"))
        [{'__key__': '7', '__url__': 'a.tar', 'json': b'{}'}]
    """
    sample: dict[str, Any] = {}
    for name, content in _members(stream, url):
        match = _KEY_AND_SUFFIX.fullmatch(name)
        if match is None:
            continue
        key = match[1]
        suffix = match[2].lower()
        if key != sample.get("__key__"):
            if sample:
                yield sample
            sample = {"__key__": key, "__url__": url}
        if suffix in sample:
            raise ValueError(f"{tar_location(url, key)}: two members {printable_name(name)}")
        sample[suffix] = content
        size = sum(len(value) for value in sample.values() if isinstance(value, bytes))
        if size > MAX_SAMPLE_BYTES or len(sample) > _MAX_MEMBERS:
            raise ValueError(
                f"{tar_location(url, key)}: a sample must have at most {MAX_SAMPLE_BYTES:,} bytes "
                f"in {_MAX_MEMBERS} files; write each sample under its own key"
            )
    if sample:
        yield sample


def tar_location(url: object, key: object) -> str:
    """Return where a sample is, for messages; keys are a stranger's text."""
    return f"{url}, key {printable_name(str(key))}"


def _members(stream: IO[bytes], url: str) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the regular files of a tar."""
    try:
        with tarfile.open(fileobj=stream, mode="r|*", tarinfo=BoundedMember) as tar:
            for member in tar:
                if not member.isreg() or member.name.startswith("__"):
                    continue  # folders, links, and entries about the tar itself
                if member.issparse() or member.size > MAX_IMAGE_BYTES:
                    kind = "a sparse file" if member.issparse() else "a file"
                    raise ValueError(
                        f"{tar_location(url, member.name)}: {kind} of {member.size:,} bytes; "
                        f"members must be plain files of at most {MAX_IMAGE_BYTES:,}"
                    )
                file = tar.extractfile(member)
                yield member.name, file.read() if file is not None else b""
                cast("Any", tar).members = []  # else it remembers all
    except ValueError as error:
        if str(error).startswith(f"{url}, "):
            raise
        raise ValueError(f"{url}: {error}") from error
    # TypeError: of the header of a gzip file that ends in it
    except (tarfile.TarError, EOFError, OSError, TypeError, *DECOMPRESSION_ERRORS) as error:
        raise OSError(
            f"{url} is not a complete tar ({error}); check the URL and the connection"
        ) from error


SCHEMES = ("https", "http", "hf", "gs", "ais", "sftp", "ftps", "scp")


class StreamedSample(NamedTuple):
    """A sample from a tar.

    Args:
        location: URL of the tar, and the key.
        label: Its class index; -1 without classes.
    """

    location: str
    image: bytes
    record: Mapping[str, Any]
    label: int


class SampleStream:
    """Training samples of one process in one epoch, shuffled approximately.

    In each epoch the tars are assigned anew to processes and workers; samples are shuffled in a
    buffer. So that all processes take the same number of steps, each yields the same number of
    samples: with fewer samples in its tars it repeats some, with more it skips some.

    Args:
        transform: Makes a training sample of a streamed sample and a unique number.

    Raises:
        ImportError: If webdataset is not installed.
        ValueError: If a URL is not allowed, or there are too few tars or samples.
        OSError: During iteration, if a URL gives no tar, or only a part of it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        num_samples: int,
        transform: Callable[[StreamedSample, int], Any],
        *,
        batch_size: int,
        buffer_size: int = 1000,
        seed: int = 0,
        rank: int = 0,
        num_replicas: int = 1,
        num_workers: int = 0,
    ) -> None:
        for tar in urls:
            check_url(tar)
        readers = num_replicas * max(1, num_workers)
        if (
            len(urls) < readers
            or num_samples < batch_size * num_replicas
            or min(batch_size, buffer_size) < 1
        ):
            raise ValueError(
                f"{num_replicas} processes with {num_workers} workers and batches of {batch_size} "
                f"need {readers} tars and {batch_size * num_replicas} samples, got {len(urls)} and "
                f"{num_samples:,}; lower the "
                "workers or the batch, or write more samples in smaller tars (--per-shard)"
            )
        self.urls = tuple(urls)
        self.made = transform
        self.batch = batch_size
        self.buffer = buffer_size
        self.seed = seed
        self.rank = rank
        self.world = num_replicas
        self.batches = num_samples // (batch_size * num_replicas)
        self.epoch = 0
        import_webdataset()  # raises now if it is not installed

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, readers = (worker.id, worker.num_workers) if worker else (0, 1)
        library = import_webdataset()
        generator = torch.Generator().manual_seed(mix_seed(self.seed, self.epoch))
        order = torch.randperm(len(self.urls), generator=generator).tolist()
        # Each tar belongs to one worker of one process.
        own_urls = [self.urls[index] for index in order[self.rank :: self.world][number::readers]]
        start = (self.seed, self.epoch, self.rank, number)
        pipeline = library.DataPipeline(
            library.SimpleShardList(own_urls),
            _read_opened,
            library.shuffle(self.buffer, initial=self.buffer, rng=random.Random(mix_seed(*start))),
        )
        # The workers share the batches of their process; the first ones take what does not divide.
        num_batches = self.batches // readers + (number < self.batches % readers)
        if not num_batches:  # the library takes 0 samples as no limit
            return
        for count, members in enumerate(pipeline.with_epoch(num_batches * self.batch)):
            yield self.made(parse_streamed_sample(members), mix_seed(*start, count))


class StreamLoader:
    """Batches of a stream, which restarts in every epoch in the order of that epoch.

    A run resumed in the middle of an epoch sees the first samples of that epoch again.

    Args:
        epoch: Returns the current epoch.
    """

    def __init__(
        self,
        stream: SampleStream,
        collate_fn: Callable[[list[Any]], Any],
        *,
        epoch: Callable[[], int] = lambda: 0,
        num_workers: int = 0,
    ) -> None:
        self.stream = stream
        self.collate = collate_fn
        self.epoch = epoch
        self.workers = num_workers

    def __len__(self) -> int:
        return self.stream.batches

    def __iter__(self) -> Iterator[Any]:
        self.stream.epoch = self.epoch()
        return iter(
            DataLoader(
                _StreamDataset(self.stream),
                batch_size=self.stream.batch,
                drop_last=True,
                collate_fn=self.collate,
                num_workers=self.workers,
                generator=torch.Generator(),  # else each epoch would advance the global generator
            )
        )


class _StreamDataset(IterableDataset[Any]):
    """Iterable dataset of a stream."""

    def __init__(self, samples: SampleStream) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


def check_url(url: str) -> None:
    """Raise unless a URL has an allowed scheme; above all, refuse `pipe:` commands.

    Raises:
        ValueError: If the scheme is not allowed.

    Example:
        >>> check_url("pipe:cat train-000000.tar")
        Traceback (most recent call last):
        ValueError: the URL of a stream must start with https://, http://, ..., got 'pipe:cat ...
    """
    scheme, mark, rest = url.partition("://")
    if not mark or not rest or scheme not in SCHEMES:
        schemes = ", ".join(f"{name}://" for name in SCHEMES)
        raise ValueError(
            f"the URL of a stream must start with {schemes}, got {url!r}; read local shards with "
            "ShardCaptionDataModule and ShardClassificationDataModule"
        )


def import_webdataset() -> Any:
    """Import webdataset in its secure mode, which runs no commands and unpickles nothing.

    Raises:
        ImportError: If it is not installed.
        ValueError: If it was imported before without its secure mode.
    """
    os.environ["WDS_SECURE"] = "1"  # read at import
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


def _read_opened(sources: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the samples of the tars whose addresses come in."""
    opener = importlib.import_module("webdataset.tariterators").url_opener
    for source in opener(sources):
        yield from read_tar_samples(source["stream"], source["url"])


def parse_streamed_sample(members: Mapping[str, Any]) -> StreamedSample:
    """Return the sample in the members of a tar.

    Raises:
        ValueError: If it has no image or no record; the message names tar and key.

    Example:
        >>> members = {"jpg": b"...", "json": b"{}", "__url__": "https://a/b.tar", "__key__": "7"}
        >>> parse_streamed_sample(members).location
        'https://a/b.tar, key 7'
    """
    location = tar_location(members.get("__url__"), members.get("__key__"))
    image = next((members[name] for name in EXTENSIONS.values() if name in members), None)
    try:
        record = parse_json(decode_utf8(members["json"]))
        label = int(members.get("cls", -1))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{location}: invalid JSON record or class: {error!r}") from error
    if image is None or not isinstance(record, dict):
        raise ValueError(
            f"{location}: expected an image and a JSON object, got "
            f"{format_names([printable_name(name) for name in members if name[:2] != '__'], 9)}"
        )
    return StreamedSample(location, image, record, label)
