"""Files of the commands: input images, output folders, and unique names."""

import contextlib
import fcntl
import itertools
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from visattn.commands.schedulers import Share
from visattn.io.atomic import (
    DISK_ERRNOS,
    explained_disk_errors,
    remove_partial_files,
    temporary_folder,
)
from visattn.io.locations import Source
from visattn.io.safe_text import print_message

if TYPE_CHECKING:
    from visattn.images.reader import LoadedImage

PathLike = str | os.PathLike[str]


def create_folder(folder: Path) -> None:
    """Create a folder, check that files can be written, remove what killed writers left in it.

    Raises:
        OSError: If it cannot be created or written; the message names `--out`.

    Example:
        >>> create_folder(Path(__file__))
        Traceback (most recent call last):
        ...
        OSError: --out ...files.py cannot be written: File exists; choose another folder
    """
    try:
        with explained_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        remove_partial_files(folder)
        # Fails now if nothing can be written, not after the first images.
        with temporary_folder(folder / "visattn"):
            pass
    except OSError as error:
        if error.errno in DISK_ERRNOS:
            raise
        raise OSError(
            f"--out {folder} cannot be written: {error.strerror}; choose another folder"
        ) from error


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder while a file that several processes share is read and rewritten.

    Waits for another process that holds the lock. File systems without locks are not locked.

    Example:
        >>> with folder_lock(getfixture("tmp_path")):
        ...     pass
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # This releases the lock; so does the end of the process.
        os.close(descriptor)


def check_no_overwrite(folder: Path | str, files: Iterable[str], images: Iterable[Source]) -> None:
    """Check that no output file would replace an input image.

    Args:
        folder: Value of `--out`, a folder or a URL.
        files: Names of the output files.
        images: Input images.

    Raises:
        ValueError: If an output file would replace an image.

    Example:
        >>> check_no_overwrite(Path("out"), ["dog.png"], [Path("photos/dog.png")])
    """
    # Unlike resolve, realpath accepts link loops.
    inputs = {
        os.path.realpath(path) if isinstance(path, Path) else _plain_url(str(path))
        for path in images
    }
    for file in files:
        if isinstance(folder, str):
            written = f"{_plain_url(folder)}/{file}"
        else:
            written = os.path.realpath(folder / file)
        if written in inputs:
            raise ValueError(
                f"--out {folder} would overwrite the input image {file}; choose another folder"
            )


def _plain_url(url: str) -> str:
    """Return a URL as it is compared: memory:///a/ is memory://a."""
    return url.replace(":///", "://").rstrip("/")


def result_names(
    sources: Sequence[Source], roots: Iterable[PathLike] = (), *, reserved: str = "index"
) -> dict[Source, str]:
    """Return a unique file name without suffix for each photo: its path below what was searched.

    Photos of the same name are distinguished by more of their folders, and where these do not help
    (a.jpg beside a.png, or names that differ only in case) by a number.

    Args:
        sources: Photos.
        roots: Folders that were searched for them.
        reserved: A name that no file may have, alone or with a number as in index-2.

    Example:
        >>> photos = ["a/b/dog.jpg", "c/dog.jpg", "d/dog.jpg", "cat.jpg", "a/index.png"]
        >>> list(result_names([Path(photo) for photo in photos], ["a"]).values())
        ['b/dog', 'c/dog', 'd/dog', 'cat', 'index_2']
    """
    folders = {Path(root) for root in roots}
    parts = {source: _relative_parts(source, folders) for source in sources}
    whole = {source: "/".join([*above, *own]).casefold() for source, (above, own) in parts.items()}
    # a.jpg beside a.png: no folder tells them apart, so that one of them stands for both.
    first: dict[str, Source] = {}
    for source, path in whole.items():
        first.setdefault(path, source)
    names = {source: "/".join(parts[source][1]) for source in first.values()}
    deepest = max((len(above) for above, _ in parts.values()), default=0)
    for depth in range(1, deepest + 1):
        for source in _duplicates(names):
            above, own = parts[source]
            names[source] = "/".join([*above[-depth:], *own])
    return _numbered({source: names[first[path]] for source, path in whole.items()}, reserved)


def _relative_parts(source: Source, roots: Collection[Path]) -> tuple[list[str], list[str]]:
    """Return the folders above what was searched, and those below with the name of a photo."""
    if isinstance(source, Path):
        parts = source.absolute().parts[1:]  # not resolved: links keep their names
        root = next((parent for parent in source.parents if parent in roots), source.parent)
        count = len(source.relative_to(root).parts)
        above, own = parts[:-count], parts[-count:]
    else:
        above, own = source.source, source.relative.parts
    own = (*own[:-1], Path(own[-1]).stem)
    named = ([_printable(part) for part in each if part != ".."] for each in (above, own))
    first, second = named
    return first, second


def _numbered(names: dict[Source, str], reserved: str) -> dict[Source, str]:
    """Return names with a number where two are equal but for their case, or reserved."""
    used: set[str] = set()
    taken = re.compile(rf"(?:{re.escape(reserved)}|index)(?:-[0-9]+)?")
    for path, name in names.items():
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        names[path] = next(
            new
            for new in itertools.chain([name], numbered)
            if new.casefold() not in used and not taken.fullmatch(new.rpartition("/")[2].casefold())
        )
        used.add(names[path].casefold())
    return names


def _duplicates(names: dict[Source, str]) -> list[Source]:
    """Return the photos whose name is not unique, ignoring case."""
    counts = Counter(name.casefold() for name in names.values())
    return [path for path, name in names.items() if counts[name.casefold()] > 1]


def _printable(part: str) -> str:
    """Return a part of a path with unprintable characters replaced by underscores."""
    return "".join(letter if letter.isprintable() else "_" for letter in part)


Key = TypeVar("Key")
Value = TypeVar("Value")

# Decoded images wait in memory until their batch is full: at most about this many pixels.
PIXELS_PER_BATCH = 64_000_000


def find_input_images(
    paths: Sequence[PathLike],
    out: Path | str | None,
    skipped: list[str],
    *,
    keep_missing: bool = False,
) -> list[Source]:
    """Return the images of sources, without those in the output folder.

    Folders below with results of an earlier command are skipped, and named on stderr.

    Args:
        paths: Files, folders, archives, tables and URLs of the command line.
        out: Output folder or URL, if there is one.
        skipped: Receives the reasons why folders could not be listed.
        keep_missing: Whether a file that does not exist is skipped when it is read.

    Raises:
        FileNotFoundError: If a path does not exist, or there is no image at all.
        ValueError: If the output folder is searched for images.

    Example:
        >>> find_input_images([Path("no_such_folder")], None, [])
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not exist; give image files or folders
    """
    from visattn.images.reader import is_result_folder
    from visattn.images.sources import find_sources

    def skip(folder: Path) -> bool:
        is_result = is_result_folder(folder)
        if is_result:
            print_message(f"skipped {folder}: results of visattn; to include it, give its path")
        return is_result

    for path in paths:
        if out is not None and _is_same_place(out, path):
            raise ValueError(
                f"--out {out} is searched for images: the next run would read the results as "
                f"photos; choose another folder, for instance {os.fspath(path)}/results"
            )
    photos = find_sources(
        paths,
        keep_missing=keep_missing,
        omit=out if isinstance(out, Path) else None,
        skip=skip,
        onerror=lambda error: skipped.append(f"{error.filename}: {error.strerror}"),
        report=print_message,
    )
    if not isinstance(out, str):
        return photos
    inside = f"{_plain_url(out)}/"
    photos = [each for each in photos if not _plain_url(str(each)).startswith(inside)]
    if not photos:
        raise FileNotFoundError(f"there is no photo beside those in --out {out}")
    return photos


def _is_same_place(out: Path | str, path: PathLike) -> bool:
    """Whether a source is the output folder or URL."""
    if isinstance(out, str):
        return _plain_url(out) == _plain_url(os.fspath(path))
    are_folders = os.path.isdir(out) and os.path.isdir(path)  # noqa: PTH112 (raises nothing)
    return are_folders and out.samefile(path)


def read_images(
    paths: Iterable[Source], skipped: list[str], *, strict: bool
) -> "Iterator[tuple[Source, LoadedImage]]":
    """Yield paths and their images; unreadable images are skipped and reported.

    Args:
        paths: Image files.
        skipped: Receives the reasons.
        strict: Raise an error for the first unreadable image instead.

    Raises:
        ImageError: If `strict` is set and an image cannot be read.
    """
    from visattn.images.reader import ImageError, read_image

    for path, result in map_in_threads(read_image, paths):
        try:
            image = result()
        except ImageError as error:
            if strict:
                raise
            skipped.append(str(error))
        else:
            yield path, image


def thread_count() -> int:
    """Return the number of threads that read and write images: one per core, at most 8.

    Example:
        >>> 1 <= thread_count() <= 8
        True
    """
    from visattn.data.loading.loader import available_cores

    return min(8, available_cores())


def map_in_threads(
    function: Callable[[Key], Value],
    items: Iterable[Key],
    *,
    ahead: int = 0,
    report: Callable[[Key, Value], object] = lambda _item, _result: None,
    threads: int | None = None,
) -> Iterator[tuple[Key, Callable[[], Value]]]:
    """Yield each item with a function that waits for its result, or raises its error.

    One thread per core works ahead of the caller. Decoders and encoders of images release Python's
    lock. An error of `items` is raised after the results of the items before it.

    Args:
        function: Called with each item, in a thread.
        items: Taken in order, at most one per thread ahead of the caller.
        ahead: How many more of them may be ahead, so that all threads have work while the next
            items are made.
        report: Called with each item and its result, in the order of the items, as soon as the
            result is there: in a thread, so that it need not wait for the next item to be made.
        threads: Number of threads; None is one per core.

    Example:
        >>> [(item, result()) for item, result in map_in_threads(abs, [-3, 2], report=print)]
        -3 3
        2 2
        [(-3, 3), (2, 2)]
    """
    num_threads = thread_count() if threads is None else threads
    waiting: deque[tuple[Key, Future[Value]]] = deque()
    reports = _ReportsInOrder(report)
    remaining = iter(items)
    failure = None
    with ThreadPoolExecutor(num_threads) as pool:
        try:
            while True:
                try:
                    item = next(remaining)
                except BaseException as error:  # noqa: BLE001 (raised below)
                    failure = error
                    break
                waiting.append((item, pool.submit(function, item)))
                reports.add(*waiting[-1])
                if len(waiting) > num_threads + ahead:
                    done, future = waiting.popleft()
                    yield done, future.result
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result
        finally:
            # Also if the caller stops early: items that wait for a thread are dropped.
            pool.shutdown(cancel_futures=True)
    reports.raise_error()
    if not isinstance(failure, StopIteration):
        raise failure


class _ReportsInOrder(Generic[Key, Value]):
    """Reports results in the order of their items, whichever thread is done first."""

    def __init__(self, report: Callable[[Key, Value], object]) -> None:
        self._report = report
        self._waiting: deque[tuple[Key, Future[Value]]] = deque()
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def add(self, item: Key, future: "Future[Value]") -> None:
        self.raise_error()
        self._waiting.append((item, future))
        future.add_done_callback(self._report_finished)

    def raise_error(self) -> None:
        """Raise the error of a report in the caller's thread, such as that of a closed stream."""
        if self._error is not None:
            raise self._error

    def _report_finished(self, _future: "Future[Any]") -> None:
        with self._lock:
            while self._waiting and self._waiting[0][1].done():
                item, future = self._waiting.popleft()
                if self._error or future.cancelled() or future.exception() is not None:
                    continue  # the caller gets the error of the future
                try:
                    self._report(item, future.result())
                except BaseException as error:  # noqa: BLE001 (raised in the caller's thread)
                    self._error = error


def select_shard(names: Mapping[Source, str], shard: Share | None) -> dict[Source, str]:
    """Return the images of one of several commands that share the work; all without `--shard`.

    Args:
        names: Name of each image.
        shard: The part of this command.

    Example:
        >>> names = {Path(name): name for name in "abcde"}
        >>> [[*select_shard(names, Share(number, 2)).values()] for number in (1, 2)]
        [['a', 'b'], ['c', 'd', 'e']]
    """
    if shard is None:
        return dict(names)
    number, count, _ = shard
    first, last = (len(names) * end // count for end in (number - 1, number))
    return dict(itertools.islice(names.items(), first, last))


def batched(
    images: "Iterable[tuple[Key, LoadedImage]]", size: int, *, pixels: int = PIXELS_PER_BATCH
) -> "Iterator[list[tuple[Key, LoadedImage]]]":
    """Yield batches of images.

    Args:
        images: Pairs of a key and an image.
        size: Images per batch.
        pixels: Number of pixels at which a smaller batch is full, too.

    Example:
        >>> from visattn.images.reader import LoadedImage
        >>> dots = [(name, LoadedImage(np.zeros((1, 1, 3), np.uint8))) for name in "abc"]
        >>> [[name for name, _ in batch] for batch in batched(dots, 2)]
        [['a', 'b'], ['c']]
    """
    batch: list[tuple[Key, LoadedImage]] = []
    for key, image in images:
        batch.append((key, image))
        waiting = sum(image.size[0] * image.size[1] for _, image in batch)
        if len(batch) == size or waiting >= pixels:
            yield batch
            batch = []
    if batch:
        yield batch


@contextlib.contextmanager
def count_on_interrupt(done: Sized, count: int) -> Iterator[None]:
    """Add the number of finished images to the message of a keyboard interrupt.

    Args:
        done: Finished images; grows while the context is open.
        count: Number of all images.

    Example:
        >>> try:
        ...     with count_on_interrupt(["a.png"], 3):
        ...         raise KeyboardInterrupt
        ... except KeyboardInterrupt as interruption:
        ...     print(interruption)
        1 of 3 images are done
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{len(done)} of {count} images are done") from None


def report_failures(
    skipped: Sequence[str], not_written: Mapping[str, Sequence[str]], count: int
) -> int:
    """Print the failures on stderr; return the exit code.

    Args:
        skipped: Reasons why images could not be read.
        not_written: Reasons why files of an image could not be written, by its name.
        count: Number of all images.

    Example:
        >>> report_failures([], {}, 3)
        0
    """
    for reason in skipped:
        print_message(f"skipped {reason}")
    for reason in itertools.chain.from_iterable(not_written.values()):
        print_message(f"not written: {reason}")
    for reasons, text in ((skipped, "images skipped"), (not_written, "images not written")):
        if reasons:
            print_message(f"{len(reasons)} of {count} {text}")
    return 1 if skipped or not_written else 0
